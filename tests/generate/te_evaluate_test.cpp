// Compares te-generate evaluate with lm-evaluation-harness on the same models and documents
// (scripts/evaluate_agreement.py --write-fixtures): tokens and choices are equal, log probabilities within 1e-4.
#include <cmath>
#include <filesystem>

#include "core/json.h"
#include "generate/te_generate_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;

constexpr double kTolerance = 1e-4;
const std::string kFixtures = TE_SOURCE_DIR "/tests/fixtures/evaluate/";
const char* const kTasks =
    "hellaswag,lambada_openai,arc_easy,arc_challenge,piqa,openbookqa,sciq,boolq,winogrande,wikitext,"
    "mmlu_abstract_algebra,mmlu_high_school_us_history,own_task";

class TeEvaluate : public GenerateFolder, public ::testing::WithParamInterface<const char*> {
 protected:
  Result evaluate(const std::string& arguments, const std::string& shell = "",
                  const std::string& model = "gpt2") {
    return run("evaluate --checkpoint " + kFixtures + model + " --data " + kFixtures + "data " + arguments,
               shell);
  }
  json results(const std::string& name) const { return parse_json(read_file(file(name))); }
  std::vector<json> items(const std::string& name) const {
    std::vector<json> lines;
    std::stringstream text(read_file(file(name)));
    for (std::string line; std::getline(text, line);) lines.push_back(parse_json(line));
    return lines;
  }
};

void expect_number(const json& actual, const json& expected, const std::string& what) {
  ASSERT_TRUE(actual.is_number()) << what << ": " << actual;
  const auto wanted = expected.get<double>();
  EXPECT_NEAR(actual.get<double>(), wanted, kTolerance * std::max(1.0, std::abs(wanted))) << what;
}

void expect_document(const json& item, const json& expected, const std::string& what) {
  ASSERT_EQ(item["token_requests"].size(), expected["tokens"].size()) << what;
  for (size_t request = 0; request < expected["tokens"].size(); ++request) {
    json tokens = json::array();
    for (const json& part : item["token_requests"][request]) tokens.push_back(part["tokens"]);
    EXPECT_EQ(tokens, expected["tokens"][request]) << what;
    const json &mine = item["filtered_resps"][request], &theirs = expected["filtered_resps"][request];
    expect_number(theirs.is_array() ? mine[0] : mine, theirs.is_array() ? theirs[0] : theirs, what);
    if (theirs.is_array()) {
      EXPECT_EQ(mine[1], theirs[1]) << what;
    }
  }
  for (const char* metric : {"acc", "acc_norm"}) {
    if (!expected.contains(metric)) continue;
    EXPECT_EQ(item[metric], expected[metric]) << what << " " << metric;
  }
}

TEST_P(TeEvaluate, AgreesWithLmEvaluationHarness) {
  const std::string model = GetParam();
  const json expected = parse_json(read_file(kFixtures + "expected/" + model + ".json"));
  const Result result = evaluate(std::string("--tasks ") + kTasks + " --output " + file("results.json") +
                                     " --items " + file("items.jsonl") + " --items-inputs",
                                 "", model);
  ASSERT_EQ(result.code, 0) << result.error;
  const json output = results("results.json");
  size_t documents = 0;
  for (const auto& [task, there] : expected.items()) {
    for (const auto& [metric, value] : there["results"].items()) {
      const json& mine = output["results"][task][metric];
      if (value.is_string() || mine.is_string()) continue;  // N/A
      expect_number(mine, value, task + " " + metric);
    }
    documents += there["documents"].size();
    EXPECT_EQ(output["n-samples"][task]["effective"], there["documents"].size());
  }
  EXPECT_EQ(output["n-shot"]["mmlu_abstract_algebra"], 5);
  EXPECT_EQ(output["versions"]["boolq"], 2.0);
  EXPECT_EQ(output["higher_is_better"]["lambada_openai"]["perplexity"], false);
  const std::vector<json> lines = items("items.jsonl");
  ASSERT_EQ(lines.size(), documents);
  for (const json& item : lines) {
    const json& there = expected[item["task"].get<std::string>()]["documents"];
    const auto place = item["doc_id"].get<size_t>();
    ASSERT_EQ(there[place]["doc_id"], place);
    expect_document(item, there[place],
                    model + " " + item["task"].get<std::string>() + " " + std::to_string(place));
  }
}
// prompt_tokens shows whether a begin-of-document token was prepended.
TEST_P(TeEvaluate, GreedyTextsEqualThoseOfTransformers) {
  const std::string model = GetParam(), expected = kFixtures + "expected/" + model + "_greedy.jsonl";
  const Result result = run("--checkpoint " + kFixtures + model + " --prompts " + expected + " --output " +
                            file("texts") + " --max-tokens 24 --batch 3 --ignore-end --quiet");
  ASSERT_EQ(result.code, 0) << result.error;
  std::stringstream wanted(read_file(expected));
  size_t count = 0;
  for (const json& text : items("texts")) {
    std::string line;
    ASSERT_TRUE(std::getline(wanted, line));
    const json there = parse_json(line);
    EXPECT_EQ(text["prompt"], there["prompt"]);
    EXPECT_EQ(text["prompt_tokens"], there["prompt_tokens"]);
    EXPECT_EQ(text["tokens"], there["tokens"]) << model << " " << there["prompt"];
    ++count;
  }
  EXPECT_EQ(count, 4u);
}
INSTANTIATE_TEST_SUITE_P(Models, TeEvaluate, ::testing::Values("llama", "qwen2", "gpt2"));

class EvaluateRuns : public TeEvaluate {};

// Replicas that divide the documents, and ranks that shard a model, give the same items up to rounding.
TEST_P(EvaluateRuns, RanksGiveTheItemsOfOneRank) {
  const std::string tasks = std::string("--tasks hellaswag,wikitext,arc_easy --items ");
  ASSERT_EQ(evaluate(tasks + file("one")).code, 0);
  const std::vector<json> one = items("one");
  const auto expect_equal = [&](const std::string& name) {
    const std::vector<json> other = items(name);
    ASSERT_EQ(other.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(other[i]["doc_id"], one[i]["doc_id"]);
      for (size_t r = 0; r < one[i]["filtered_resps"].size(); ++r) {
        const json &a = one[i]["filtered_resps"][r], &b = other[i]["filtered_resps"][r];
        expect_number(a.is_array() ? b[0] : b, a.is_array() ? a[0] : a, name);
      }
    }
  };
  const Result copies = evaluate(tasks + file("copies") + " --batch 2", TE_MPIRUN " 2");
  ASSERT_EQ(copies.code, 0) << copies.error;
  expect_equal("copies");
  const Result shared = evaluate(tasks + file("shared") + " --tensor 2", TE_MPIRUN " 2");
  ASSERT_EQ(shared.code, 0) << shared.error;
  expect_equal("shared");
  // Two replicas of two stages.
  const Result staged = evaluate(tasks + file("staged") + " --pipeline 2 --batch 2", TE_MPIRUN " 4");
  ASSERT_EQ(staged.code, 0) << staged.error;
  expect_equal("staged");
  const auto tokens_of = [](const Result& result) {  // "N requests, N tokens in ..." after mpirun's output
    const size_t end = result.error.find(" tokens in "), begin = result.error.rfind('\n', end) + 1;
    return end == std::string::npos ? "" : result.error.substr(begin, end - begin);
  };
  EXPECT_NE(tokens_of(copies), "") << copies.error;
  EXPECT_EQ(tokens_of(staged), tokens_of(copies));
  ASSERT_EQ(evaluate(tasks + file("small") + " --batch 1").code, 0);
  expect_equal("small");
}

TEST_P(EvaluateRuns, BF16IsCloseToFp32) {
  ASSERT_EQ(evaluate("--tasks hellaswag --items " + file("fp32")).code, 0);
  const Result result = evaluate("--tasks hellaswag --dtype bf16 --items " + file("bf16"));
  ASSERT_EQ(result.code, 0) << result.error;
  const auto a = items("fp32"), b = items("bf16");
  for (size_t i = 0; i < a.size(); ++i) {
    const auto of = [](const json& item) { return item["filtered_resps"][0][0].get<double>(); };
    EXPECT_NEAR(of(b[i]), of(a[i]), 0.02 * std::abs(of(a[i])));
    EXPECT_NE(of(b[i]), of(a[i]));
  }
}

TEST_P(EvaluateRuns, LimitsAndContexts) {
  ASSERT_EQ(evaluate("--tasks hellaswag,arc_easy --limit 2 --output " + file("limited")).code, 0);
  const json limited = results("limited");
  EXPECT_EQ(limited["n-samples"]["hellaswag"]["effective"], 2);
  EXPECT_EQ(limited["n-samples"]["hellaswag"]["original"], 5);
  const Result cut = evaluate("--tasks hellaswag --max-length 64 --output " + file("cut"));
  EXPECT_EQ(cut.code, 0);
  TE_EXPECT_CONTAINS(cut.error, "requests are longer than the context of 64");
  EXPECT_EQ(results("cut")["config"]["max_length"], 64);
  // --begin prepends the begin-of-document token.
  ASSERT_EQ(evaluate("--tasks arc_easy --begin --items " + file("begun") + " --items-inputs").code, 0);
  for (const json& item : items("begun")) EXPECT_EQ(item["token_requests"][0][0]["tokens"][0], 0);
}

TEST_P(EvaluateRuns, TwoResultsAreCompared) {
  ASSERT_EQ(evaluate("--tasks hellaswag,lambada_openai,wikitext --items " + file("a")).code, 0);
  const std::string text = read_file(file("a"));
  write_file(file("b"), text);
  const Result same =
      run("evaluate --compare " + file("a") + " " + file("b") + " --output " + file("differences"));
  ASSERT_EQ(same.code, 0) << same.error;
  TE_EXPECT_CONTAINS(same.out, "hellaswag acc_norm: A ");
  TE_EXPECT_CONTAINS(same.out, "only B right 0, only A right 0, McNemar's exact p 1");
  const json differences = results("differences")["differences"];
  EXPECT_EQ(differences.size(), 6u);  // acc, acc_norm; acc, log-probability; per word, per byte
  for (const json& difference : differences) EXPECT_EQ(difference["difference"], 0.0);
  write_file(file("b"), text.substr(0, text.find('\n') + 1));
  expect_refused(run("evaluate --compare " + file("a") + " " + file("b")), "evaluate both on the same");
  expect_refused(run("evaluate --compare " + file("a")), "--compare");
}

TEST_P(EvaluateRuns, ErrorsAreOneLine) {
  expect_refused(run("evaluate --tasks hellaswag"), "--checkpoint PATH is required");
  expect_refused(evaluate(""), "--tasks TASK,... is required");
  expect_refused(evaluate("--tasks alchemy"), "--tasks alchemy: is neither a task");
  expect_refused(evaluate("--tasks hellaswag,hellaswag"), "hellaswag is named twice");
  expect_refused(evaluate("--tasks mmlu_anatomy"), "anatomy");
  expect_refused(evaluate("--tasks hellaswag --num-fewshot 3"), "--num-fewshot");
  expect_refused(evaluate("--tasks mmlu_abstract_algebra --num-fewshot 9"), "--num-fewshot 9");
  expect_refused(evaluate("--tasks hellaswag --max-length 9999"),
                 "--max-length 9999: the model's context is 256");
  expect_refused(evaluate("--tasks hellaswag --max-length 2"), "document");
  expect_refused(evaluate("--tasks hellaswag --items-inputs"), "--items-inputs");
  expect_refused(evaluate("--tasks hellaswag --limit -1"), "--limit");
  expect_refused(evaluate("--tasks hellaswag --batch nan"), "--batch");
  expect_refused(evaluate("--tasks hellaswag --begin --no-begin"), "--begin");
  expect_refused(evaluate("--tasks hellaswag --output /nowhere/x"), "--output /nowhere/x");
  expect_refused(evaluate("--tasks hellaswag --tensor 2"), "mpirun -n 2");
  EXPECT_FALSE(std::filesystem::exists(file("x.part")));
}
INSTANTIATE_TEST_SUITE_P(Gpt2, EvaluateRuns, ::testing::Values("gpt2"));

}  // namespace
}  // namespace te::testing
