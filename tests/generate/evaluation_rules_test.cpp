// Rules of the evaluation tasks that the agreement test with lm-evaluation-harness (te_evaluate_test.cpp) does not
// cover: text operations, formats of data files, statistics.
#include <cmath>
#include <filesystem>
#include <tuple>

#include "core/error.h"
#include "data/data_testing.h"
#include "generate/begin_token.h"
#include "generate/evaluation/compare.h"
#include "generate/evaluation/metrics.h"
#include "generate/evaluation/mmlu.h"
#include "generate/evaluation/python_text.h"
#include "generate/evaluation/requests.h"
#include "generate/evaluation/task_files.h"
#include "generate/evaluation/task_rules.h"
#include "testing/log_capture.h"

namespace te::testing {
namespace {

using namespace generate;

// --- text ------------------------------------------------------------------------------------------------------------

// Expected results come from Python 3.11; below, from lm-evaluation-harness' functions.
TEST(PythonText, MatchesPython) {
  EXPECT_EQ(python::length("aé中😀"), 4);
  EXPECT_EQ(python::strip(" \t\n\x1c\u00a0\u2003 a b \u3000\u0085"), "a b");
  EXPECT_EQ(python::strip(" \u200b "), "\u200b");  // not white space
  EXPECT_EQ(python::rstrip("  a "), "  a");
  EXPECT_EQ(python::lstrip("  "), "");
  EXPECT_EQ(python::capitalize("the Man FROM Évora"), "The man from évora");
  EXPECT_EQ(python::capitalize("écru"), "Écru");
  EXPECT_EQ(python::capitalize(""), "");
  EXPECT_EQ(python::capitalize("\xff"
                               "A"),
            "\xff"
            "a");
  EXPECT_EQ(python::replace("aaa", "aa", "b"), "ba");
  EXPECT_EQ(python::count_words(""), 1);
  EXPECT_EQ(python::count_words(" a  b\n"), 4);
  EXPECT_EQ(python::count_words("a\u00a0b"), 2);
}

TEST(TaskRules, RemovesMarksOfWikiHow) {
  EXPECT_EQ(hellaswag_text(" [header] How to x [title] Do it. [step] Now."), " How to x. Do it. Now.");
  EXPECT_EQ(hellaswag_text("a [x\ny] b [z] c"), "a [x\ny] b c");
  EXPECT_EQ(hellaswag_text("a ] [ b"), "a ] [ b");
}

TEST(TaskRules, RemovesSpacesOfWikitext) {
  EXPECT_EQ(wikitext_detokenized(" a @-@ b , c @,@ 000 ( d ) \" e \" . \n the dogs ' , it 's N x "),
            " a-b, c,000 (d) \"e\".\nthe dogs', it's 1 x ");
  EXPECT_EQ(wikitext_detokenized("= = = x = = ="), "=== x ===");
  EXPECT_EQ(wikitext_detokenized("( a ( b ) c )"), "(a ( b) c )");
  EXPECT_EQ(wikitext_detokenized("/' 7/ 20 ° C"), "/'[0-9]/ 20°C");
}

// --- files -----------------------------------------------------------------------------------------------------------

class TaskFiles : public ::testing::Test {
 protected:
  std::vector<Task> read(const std::vector<std::string>& names, int64_t limit = 0, int64_t shots = 5) const {
    return read_tasks(names, {.data = folder_.path(), .limit = limit, .num_fewshot = shots});
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    write_file(folder_ / name, text);
  }
  void expect_refused(const std::vector<std::string>& names, const std::string& part,
                      int64_t shots = 5) const {
    try {
      read(names, 0, shots);
      ADD_FAILURE() << names[0] << " was read";
    } catch (const UserError& error) {
      TE_EXPECT_CONTAINS(std::string(error.what()), part);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  TemporaryFolder folder_;
};

TEST_F(TaskFiles, MmluQuestionsFollowTheirExamples) {
  write("mmlu_anatomy.jsonl",
        R"({"question": " Where is\nthe heart? ", "choices": ["chest", "foot", "head", "a, b"], "answer": 0})"
        "\n");
  write("mmlu_anatomy_dev.jsonl", R"({"question": "One?", "choices": ["1", "2", "3", "4"], "answer": 3}
{"question": "Two?", "choices": ["5", "6", "7", "8"], "answer": 1}
{"question": "Three?", "choices": ["1", "1", "1", "1"], "answer": 0}
)");
  const Task task = read({"mmlu_anatomy"}, 0, 2)[0];
  EXPECT_EQ(task.group, "mmlu_stem");
  ASSERT_EQ(task.documents.size(), 1u);
  EXPECT_EQ(task.documents[0].requests[2].context,
            "The following are multiple choice questions (with answers) about anatomy.\n\n"
            "One?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: D\n\nTwo?\nA. 5\nB. 6\nC. 7\nD. 8\nAnswer: B\n\n"
            "Where is\nthe heart?\nA. chest\nB. foot\nC. head\nD. a, b\nAnswer:");
  EXPECT_EQ(task.documents[0].requests[2].continuation, " C");
  EXPECT_EQ(task.documents[0].gold, 0);
  expect_refused({"mmlu_anatomy"}, "mmlu_anatomy_dev.jsonl: has 3 questions");
  expect_refused({"mmlu"}, "mmlu_abstract_algebra");
  expect_refused({"mmlu_alchemy"}, "mmlu_alchemy: is neither");
  write("mmlu_anatomy.jsonl", R"({"question": "Where?", "choices": ["a", "b", "c"], "answer": 0})"
                              "\n");
  expect_refused({"mmlu_anatomy"}, "must have four elements", 0);
  EXPECT_EQ(mmlu_tasks("mmlu").size(), 57u);
  EXPECT_EQ(mmlu_tasks("mmlu_stem").size(), 19u);
  EXPECT_EQ(mmlu_tasks("mmlu_other").size(), 13u);
  EXPECT_EQ(mmlu_tasks("mmlu_social_sciences").size(), 12u);
  EXPECT_EQ(mmlu_tasks("mmlu_humanities").size(), 13u);
}

TEST_F(TaskFiles, FormatsOfPublishedData) {
  const std::string endings = R"("endings": ["a", "b", "c", "d"])";
  write("hellaswag_val.jsonl",
        R"({"activity_label": "Rowing", "ctx_a": "A man rows.", "ctx_b": "the OLD man", "label": 1, )" +
            endings + "}\n" + R"({"activity_label": "R", "ctx_a": "He.", "ctx_b": "", "label": "0", )" +
            endings + "}\n");
  write(
      "sciq/test.json",
      R"([{"question":"q","distractor3":"c","distractor1":"a","distractor2":"b","correct_answer":"d","support":" s"}])");
  write("boolq/dev.jsonl", R"({"question":"is it","title":"t","answer":true,"passage":"p"})"
                           "\n");
  const std::vector<Task> tasks = read({"hellaswag", "sciq", "boolq"});
  EXPECT_EQ(tasks[0].documents.size(), 2u);
  EXPECT_EQ(tasks[0].documents[0].requests[1].context, "Rowing: A man rows. The old man");
  EXPECT_EQ(tasks[0].documents[0].gold, 1);
  EXPECT_EQ(tasks[1].documents[0].requests[3].context, "s\nQuestion: q\nAnswer:");
  EXPECT_EQ(tasks[1].documents[0].requests[3].continuation, " d");
  EXPECT_EQ(tasks[2].documents[0].gold, 1);
  EXPECT_EQ(read({"hellaswag"}, 1)[0].documents.size(), 1u);
  EXPECT_EQ(read({"hellaswag"}, 1)[0].original, 2);
}

TEST_F(TaskFiles, CustomTasksByNameAndByPath) {
  const std::string line = R"({"context":"c","choices":["a","bé"],"gold":1})"
                           "\n";
  write("mine.jsonl", line);
  for (const std::string& name : {std::string("mine"), std::string(folder_ / "mine.jsonl")}) {
    const Task task = read({name})[0];
    EXPECT_EQ(task.name, "mine");
    EXPECT_EQ(task.documents[0].choice_lengths, (std::vector<int64_t>{1, 2}));
  }
  expect_refused({"mine", folder_ / "mine.jsonl"}, "named twice");
  expect_refused({"nothing"}, "--tasks nothing: is neither a task");
  expect_refused({"arc_easy"}, "has no data of arc_easy");
  for (const char* bad :
       {R"({"context":"c","choices":["a"],"gold":0})", R"({"context":"c","choices":["a","b"],"gold":2})",
        R"({"choices":["a","b"],"gold":0})", R"({"context":3,"choices":["a","b"],"gold":0})",
        R"({"context":"c","choices":["a",""],"gold":0})", R"({"context":"c","choices":"ab","gold":0})",
        R"(["c"])", "{", ""}) {
    write("bad.jsonl", line + bad + "\n");
    if (*bad != '\0') expect_refused({"bad"}, "bad.jsonl:2: ");
  }
  write("bad.jsonl", "");
  expect_refused({"bad"}, "has no document");
}

// --- requests --------------------------------------------------------------------------------------------------------

// The tokens are bytes.
TEST(Requests, MovesSpacesAndTruncatesLongRequests) {
  const auto bytes = text::make_tokenizer("bytes");
  const RequestEncoder encoder(*bytes, false, bytes->vocab_size(), 6);
  Task task;
  task.name = "t";
  Document document;
  document.requests = {{"ab  ", " c"}, {"", "xy"}, {"abcdefgh", " ij"}};
  task.documents = {document};
  const auto requests = encoder.encode(task, task.documents);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0][0].tokens, (std::vector<int32_t>{'a', 'b', ' ', ' ', ' ', 'c'}));
  EXPECT_EQ(requests[0][0].scored, 4);
  EXPECT_EQ(requests[1][0].tokens, (std::vector<int32_t>{256, 'x', 'y'}));
  EXPECT_EQ(requests[2][0].tokens, (std::vector<int32_t>{'e', 'f', 'g', 'h', ' ', 'i', 'j'}));
  EXPECT_TRUE(requests[2][0].truncated);
  EXPECT_FALSE(requests[0][0].truncated);
  task.documents[0].requests = {{"a", ""}};
  EXPECT_THROW(encoder.encode(task, task.documents), UserError);
  task.documents[0].requests = {{"a", "1234567"}};
  EXPECT_THROW(encoder.encode(task, task.documents), UserError);
}

// A tokenizer may have tokens outside the model's vocabulary, as long as they do not occur.
TEST(Requests, RefusesTokensOutsideTheVocabulary) {
  const auto bytes = text::make_tokenizer("bytes");
  const RequestEncoder encoder(*bytes, false, 'z', 6);
  for (const TaskKind kind : {TaskKind::multiple_choice, TaskKind::rolling}) {
    Task task{.name = "t", .kind = kind};
    task.documents.emplace_back();
    if (kind == TaskKind::multiple_choice) {
      task.documents[0].requests = {{"ab", " c"}};
      EXPECT_EQ(encoder.encode(task, task.documents)[0][0].tokens,
                (std::vector<int32_t>{'a', 'b', ' ', 'c'}));
    }
    task.documents[0].requests = {{"az", " c"}};
    try {
      encoder.encode(task, task.documents);
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      TE_EXPECT_CONTAINS(error.what(), "task t, document 0: tokenizer bytes produces token ");
      TE_EXPECT_CONTAINS(error.what(), "the model's vocabulary has 122");
    }
  }
}

TEST(Requests, DividesATextIntoWindows) {
  const auto bytes = text::make_tokenizer("bytes");
  const RequestEncoder encoder(*bytes, false, bytes->vocab_size(), 4);
  Task task{.name = "t", .kind = TaskKind::rolling};
  Document document;
  document.requests = {{"", "abcdefghij"}};
  task.documents = {document};
  const auto windows = encoder.encode(task, task.documents)[0];
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_EQ(windows[0].tokens, (std::vector<int32_t>{256, 'a', 'b', 'c', 'd'}));
  EXPECT_EQ(windows[0].scored, 4);
  EXPECT_EQ(windows[1].tokens, (std::vector<int32_t>{'d', 'e', 'f', 'g', 'h'}));
  EXPECT_EQ(windows[2].tokens, (std::vector<int32_t>{'f', 'g', 'h', 'i', 'j'}));
  EXPECT_EQ(windows[2].scored, 2);
}

// --- statistics ------------------------------------------------------------------------------------------------------

Task choice_task(const std::vector<int64_t>& golds) {
  Task task{.name = "t"};
  for (const int64_t gold : golds) {
    task.documents.push_back(multiple_choice("c", {"a", "bb"}, gold));
    task.documents.back().id = static_cast<int64_t>(task.documents.size()) - 1;
  }
  return task;
}

TEST(Metrics, ATieSelectsTheFirstChoice) {
  const DocumentScores tie = {{-2.0, false}, {-2.0, false}}, longer = {{-2.0, false}, {-3.0, false}};
  EXPECT_EQ(chosen(tie), 0);
  EXPECT_EQ(chosen_by_character(tie, {1, 2}), 1);
  EXPECT_EQ(chosen(longer), 0);
  EXPECT_EQ(chosen_by_character({{-2.0, false}, {-4.0, false}}, {1, 2}), 0);
}

TEST(Metrics, MeansAndStandardErrors) {
  const Task task = choice_task({0, 0, 1, 0});
  const std::vector<DocumentScores> scores(4, {{-1.0, false}, {-1.5, false}});
  const std::vector<Metric> metrics = task_metrics(task, scores);
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_DOUBLE_EQ(metrics[0].value, 0.75);
  EXPECT_DOUBLE_EQ(*metrics[0].stderr_of_mean, 0.25);  // sqrt(0.1875 * 4 / 3 / 4)
  EXPECT_DOUBLE_EQ(metrics[1].value, 0.25);
  Task words{.name = "w", .kind = TaskKind::last_word};
  words.documents.resize(2);
  const std::vector<Metric> last = task_metrics(words, {{{-1.0, true}}, {{-3.0, false}}});
  EXPECT_DOUBLE_EQ(last[0].value, std::exp(2.0));
  EXPECT_DOUBLE_EQ(*last[0].stderr_of_mean, std::exp(2.0));
  EXPECT_DOUBLE_EQ(last[1].value, 0.5);
}

// A group's value is the mean over all documents; its standard error is lm-evaluation-harness' pooled_sample_stderr.
TEST(Metrics, GroupsOfMmlu) {
  std::vector<EvaluatedTask> tasks;
  for (const std::string& name : mmlu_tasks("mmlu_other")) {
    const size_t count = tasks.empty() ? 4 : 2;
    EvaluatedTask task{choice_task(std::vector<int64_t>(count, 0)), {}, {}};
    task.task.name = name, task.task.group = "mmlu_other", task.task.acc_norm = false;
    task.scores.assign(count, {{-1.0, false}, {-2.0, false}});
    if (!tasks.empty()) task.scores[1][0].log_probability = -3.0;
    task.metrics = task_metrics(task.task, task.scores);
    tasks.push_back(task);
  }
  const std::vector<GroupResult> groups = group_results(tasks);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].name, "mmlu_other");
  EXPECT_EQ(groups[0].documents, 28);
  EXPECT_DOUBLE_EQ(groups[0].acc.value, 16.0 / 28.0);
  EXPECT_DOUBLE_EQ(*groups[0].acc.stderr_of_mean, std::sqrt(12 * (1 * 0.25 * 2) / (28.0 - 13.0) / 28.0));
  const nlohmann::ordered_json json = results_json(tasks, {{"model", "m"}});
  EXPECT_EQ(json["results"]["mmlu_other"]["acc,none"], groups[0].acc.value);
  EXPECT_EQ(json["results"]["mmlu_virology"]["alias"], "virology");
  EXPECT_EQ(json["groups"]["mmlu_other"]["alias"], "other");
  EXPECT_EQ(json["group_subtasks"]["mmlu_other"].size(), 13u);
  EXPECT_EQ(json["n-samples"]["mmlu_virology"]["effective"], 2);
  tasks.pop_back();
  EXPECT_TRUE(group_results(tasks).empty());
  EXPECT_FALSE(results_json(tasks, {}).contains("groups"));
}

TEST(Compare, McNemarsTestIsExact) {
  EXPECT_DOUBLE_EQ(mcnemar_exact(0, 0), 1.0);
  EXPECT_NEAR(mcnemar_exact(0, 5), 2.0 / 32.0, 1e-12);
  EXPECT_NEAR(mcnemar_exact(3, 1), 2.0 * (1 + 4) / 16.0, 1e-12);
  EXPECT_DOUBLE_EQ(mcnemar_exact(4, 4), 1.0);
  EXPECT_NEAR(mcnemar_exact(400, 500), 9.564441369189e-4, 1e-12);  // exact fractions in Python
}

// Expected values are scipy.stats.t.ppf(0.975, degrees).
TEST(Compare, QuantilesOfStudentsT) {
  for (const auto& [degrees, quantile] : std::map<int64_t, double>{{1, 12.706204736432},
                                                                   {2, 4.302652729911},
                                                                   {5, 2.570581835637},
                                                                   {30, 2.042272456301},
                                                                   {31, 2.039513446396},
                                                                   {10041, 1.960200271001}})
    EXPECT_NEAR(student_t_95(degrees), quantile, 1e-8) << degrees;
}

class CompareFiles : public ::testing::Test {
 protected:
  /// `right`: a digit per document, 1 if the answer was correct.
  std::string file(const std::string& name, const std::string& right, double log = -1.0) const {
    std::string text;
    for (size_t i = 0; i < right.size(); ++i)
      text += fmt::format(R"({{"task":"t","doc_id":{},"acc":{}.0,"word_perplexity":[{},{}]}})"
                          "\n",
                          i, right[i], log * static_cast<double>(i + 1), 2 * i + 2);
    write_file(folder_ / name, text);
    return folder_ / name;
  }
  TemporaryFolder folder_;
};

TEST_F(CompareFiles, PairedDifference) {
  const auto result = compare_items(file("a", "1001"), file("b", "1110", -2.0));
  ASSERT_EQ(result.size(), 2u);
  EXPECT_EQ(result[0].metric, "acc");
  EXPECT_DOUBLE_EQ(result[0].difference, 0.25);
  // Differences 0, 1, 1, -1 with mean 0.25.
  EXPECT_NEAR(result[0].stderr_of_difference, std::sqrt((0.0625 + 2 * 0.5625 + 1.5625) / 3.0 / 4.0), 1e-12);
  EXPECT_NEAR(result[0].high - result[0].low, 2 * 3.182446305284 * result[0].stderr_of_difference, 1e-11);
  EXPECT_EQ(result[0].only_b, 2);
  EXPECT_EQ(result[0].only_a, 1);
  EXPECT_DOUBLE_EQ(result[0].p_value, 1.0);
  EXPECT_EQ(result[1].metric, "log_probability_per_word");
  EXPECT_DOUBLE_EQ(result[1].a, -0.5);
  EXPECT_DOUBLE_EQ(result[1].difference, -0.5);
  EXPECT_NEAR(result[1].stderr_of_difference, 0.0, 1e-12);
}

TEST_F(CompareFiles, OneDocumentHasNoInterval) {
  const auto result = compare_items(file("a", "1"), file("b", "0"));
  EXPECT_DOUBLE_EQ(result[0].difference, -1.0);
  EXPECT_TRUE(std::isnan(result[0].low) && std::isnan(result[0].high));
}

// lm-evaluation-harness' samples do not name their task.
TEST_F(CompareFiles, ASampleFileGetsTheTaskOfTheOtherFile) {
  const std::string a = file("a", "10");
  write_file(folder_ / "b", R"({"doc_id":0,"acc":true,"word_perplexity":[-1,2],"filter":"none"})"
                            "\n"
                            R"({"doc_id":1,"acc":1.0,"word_perplexity":[-2,4],"metrics":["acc"]})"
                            "\n");
  for (const auto& [first, second, sign] :
       {std::tuple(a, (folder_ / "b").string(), 1), {(folder_ / "b").string(), a, -1}}) {
    const auto result = compare_items(first, second);
    ASSERT_EQ(result.size(), 2u);
    EXPECT_EQ(result[0].task, "t");
    EXPECT_DOUBLE_EQ(result[0].difference, 0.5 * sign);
  }
}

TEST_F(CompareFiles, RefusesDifferentDocuments) {
  const std::string a = file("a", "100"), b = file("b", "10");
  EXPECT_THROW(compare_items(a, b), UserError);
  EXPECT_THROW(compare_items(b, a), UserError);
  write_file(folder_ / "c", R"({"doc_id":0,"acc":1.0})"
                            "\n");
  EXPECT_THROW(compare_items(b, folder_ / "c"), UserError);
  write_file(folder_ / "c", R"({"task":"t","doc_id":0,"acc":0.5})"
                            "\n");
  EXPECT_THROW(compare_items(folder_ / "c", folder_ / "c"), UserError);
  write_file(folder_ / "c", R"({"task":"t","acc":1})"
                            "\n");
  EXPECT_THROW(compare_items(folder_ / "c", folder_ / "c"), UserError);
  EXPECT_THROW(compare_items(a, "/nowhere"), UserError);
}

// --- begin-of-document token -----------------------------------------------------------------------------------------

TEST(BeginToken, FollowsTheTokenizersFiles) {
  TemporaryFolder folder;
  const std::string source = TE_SOURCE_DIR "/tests/fixtures/evaluate/";
  const auto adds = [&](const std::string& spec) {
    return adds_begin_of_document(*text::make_tokenizer(spec));
  };
  EXPECT_TRUE(adds(source + "llama"));
  EXPECT_FALSE(adds(source + "gpt2"));
  EXPECT_FALSE(adds(source + "qwen2"));
  EXPECT_FALSE(adds("bytes"));
  EXPECT_TRUE(adds(TE_SOURCE_DIR "/tests/fixtures/tokenizers/sentencepiece.model"));
  // add_bos_token has priority, whether true or false.
  std::filesystem::copy(source + "llama/tokenizer.json", folder / "tokenizer.json");
  write_file(folder / "tokenizer_config.json",
             R"({"bos_token":"<s>","eos_token":"</s>","add_bos_token":false})");
  {
    const LogCapture log;
    EXPECT_FALSE(adds(folder.path()));
    TE_EXPECT_CONTAINS(log.text(), "add_bos_token is false, but the post_processor of tokenizer.json says");
  }
  EXPECT_FALSE(adds(folder / "tokenizer.json"));
  std::filesystem::remove(folder / "tokenizer.json");
  std::filesystem::copy(source + "gpt2/tokenizer.json", folder / "tokenizer.json");
  write_file(folder / "tokenizer_config.json",
             R"({"bos_token":"<|endoftext|>","eos_token":"<|endoftext|>","add_bos_token":true})");
  const LogCapture log;
  EXPECT_TRUE(adds(folder.path()));
  TE_EXPECT_CONTAINS(log.text(), "add_bos_token is true, but the post_processor of tokenizer.json says");
}

// In transformers 4, the tokenizer's class says whether add_bos_token or the post_processor decides.
TEST(BeginToken, DependsOnTheClass) {
  const std::string source = TE_SOURCE_DIR "/tests/fixtures/evaluate/llama/tokenizer.json";
  nlohmann::json tokenizer = parse_json(read_file(source));
  const nlohmann::json begins = tokenizer["post_processor"];
  TemporaryFolder folder;
  const auto adds = [&](const char* name, const nlohmann::json& post_processor, std::optional<bool> key) {
    tokenizer["post_processor"] = post_processor;
    write_file(folder / "tokenizer.json", tokenizer.dump());
    nlohmann::json config = {{"tokenizer_class", name}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
    if (key) config["add_bos_token"] = *key;
    write_file(folder / "tokenizer_config.json", config.dump());
    return adds_begin_of_document(*text::make_tokenizer(folder.path()));
  };
  const LogCapture log;
  for (const char* name :
       {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GPTNeoXTokenizer"}) {
    for (const nlohmann::json& processor : {begins, nlohmann::json()}) {
      EXPECT_EQ(adds(name, processor, {}), std::string(name) != "GPTNeoXTokenizer") << name;
      EXPECT_TRUE(adds(name, processor, true)) << name;
      EXPECT_FALSE(adds(name, processor, false)) << name;
    }
  }
  for (const char* name : {"PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer"}) {
    for (const auto& key : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
      EXPECT_TRUE(adds(name, begins, key)) << name;
      EXPECT_FALSE(adds(name, nullptr, key)) << name;
    }
  }
  TE_EXPECT_CONTAINS(log.text(),
                     "add_bos_token is false, but the post_processor of tokenizer.json says the "
                     "opposite; the latter is used, as in transformers 4");
  TE_EXPECT_CONTAINS(log.text(), "add_bos_token is true by default of LlamaTokenizer, but");
}

// A template can start with a token that is not the bos_token, or with one although bos_token is null.
TEST(BeginToken, TemplatesWithOtherTokensAreRefused) {
  const std::string source = TE_SOURCE_DIR "/tests/fixtures/evaluate/llama/";
  nlohmann::json tokenizer = parse_json(read_file(source + "tokenizer.json"));
  TemporaryFolder folder;
  const auto adds = [&](const nlohmann::json& post_processor, const std::string& bos) {
    tokenizer["post_processor"] = post_processor;
    write_file(folder / "tokenizer.json", tokenizer.dump());
    write_file(folder / "tokenizer_config.json", R"({"eos_token":"</s>","bos_token":)" + bos + "}");
    return adds_begin_of_document(*text::make_tokenizer(folder.path()));
  };
  const nlohmann::json roberta = {{"type", "RobertaProcessing"}, {"cls", {"<s>", 1}}, {"sep", {"</s>", 2}}};
  const nlohmann::json own = tokenizer["post_processor"];
  EXPECT_TRUE(adds(own, R"("<s>")"));
  EXPECT_TRUE(adds(roberta, R"("<s>")"));
  EXPECT_FALSE(adds({{"type", "ByteLevel"}}, "null"));
  for (const auto& processor : {own, roberta})
    for (const char* bos : {"null", R"("</s>")"})
      TE_EXPECT_CONTAINS(
          user_error_of([&] { adds(processor, bos); }),
          "the post_processor puts `<s>` before a text, which is not the tokenizer's bos_token");
}

}  // namespace
}  // namespace te::testing
