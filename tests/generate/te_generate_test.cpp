// End-to-end tests of te-generate on checkpoints of te-train.
#include <fcntl.h>

#include <algorithm>

#include "core/json.h"
#include "testing/testing.h"
#include "train/te_train_testing.h"

namespace te::testing {
namespace {

/// Trains once with te-train and runs te-generate on its checkpoints.
class TeGenerate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TrainFolder>();
    const Result trained = folder_->run("run", {"data.tokenizer=bytes", "training.eval_interval=6",
                                                "training.eval_microbatches=3", "checkpoint.save_every=3"});
    ASSERT_EQ(trained.code, 0) << trained.error;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string checkpoints() { return folder_->run_folder("run") + "/checkpoints"; }
  static Result run(const std::string& arguments, const std::string& shell = "",
                    const std::string& before = "") {
    const std::string command = before + shell + " " TE_GENERATE_EXECUTABLE " " + arguments + " >" +
                                (*folder_ / "out") + " 2>" + (*folder_ / "err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(*folder_ / "out"),
            read_file(*folder_ / "err"), 0};
  }
  static Result generate(const std::string& arguments, const std::string& shell = "",
                         const std::string& before = "") {
    return run("--checkpoint " + checkpoints() + " --quiet " + arguments, shell, before);
  }
  static void expect_refused(const Result& result, const std::string& part) {
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
    TE_EXPECT_CONTAINS(result.error, "te-generate: error: ");
    TE_EXPECT_CONTAINS(result.error, part);
  }

  static std::unique_ptr<TrainFolder> folder_;
};
std::unique_ptr<TrainFolder> TeGenerate::folder_;

TEST_F(TeGenerate, EverySourceOfAPromptGivesTheSameText) {
  const Result first = generate("--prompt 'the small ' --max-tokens 4");
  ASSERT_EQ(first.code, 0) << first.error;
  EXPECT_EQ(first.error, "");
  ASSERT_TRUE(first.out.ends_with("\n"));
  write_file(*folder_ / "prompt", "the small \r\n");
  EXPECT_EQ(generate("--max-tokens 4 --prompt-file " + (*folder_ / "prompt")).out, first.out);
  EXPECT_EQ(generate("--max-tokens 4", "", "printf 'the small ' | ").out, first.out);
  EXPECT_EQ(generate("--prompt 'the small ' --max-tokens 4 --echo").out, "the small " + first.out);
  // A step folder as checkpoint, and the precisions of training.
  EXPECT_EQ(
      run("--quiet --checkpoint " + folder_->checkpoint("run", 6) + " --prompt 'the small ' --max-tokens 4")
          .out,
      first.out);
  EXPECT_EQ(generate("--prompt 'the small ' --max-tokens 4 --dtype bf16").code, 0);
  EXPECT_EQ(generate("--prompt 'the small ' --max-tokens 4 --dtype bf16 --fp8 hybrid").code, 0);
  // Several prompts, in order.
  EXPECT_EQ(generate("--prompt 'the small ' --prompt 'the small ' --max-tokens 4 --batch 1").out,
            "==> prompt 1 <==\n" + first.out + "\n==> prompt 2 <==\n" + first.out);
  EXPECT_EQ(generate("--prompt 'the small ' --prompt 'the small ' --max-tokens 4").out,
            "==> prompt 1 <==\n" + first.out + "\n==> prompt 2 <==\n" + first.out);
}

TEST_F(TeGenerate, WarningsAreNotInTheText) {
  const Result quiet = generate("--prompt 'the small ' --max-tokens 4");
  const std::string latest = checkpoints() + "/latest", before = read_file(latest);
  write_file(latest, "step_00000099\n");
  const Result warned = generate("--prompt 'the small ' --max-tokens 4");
  write_file(latest, before);
  EXPECT_EQ(warned.out, quiet.out);
  TE_EXPECT_CONTAINS(warned.error, "warning: ");
  TE_EXPECT_CONTAINS(warned.error, "the newest complete checkpoint");
}

// Prompts of different lengths as lines of JSON: each has the text that it has alone, although the slots of the batch
// are reused.
TEST_F(TeGenerate, PromptsAndResultsAsJsonLines) {
  std::string lines;
  std::vector<std::string> texts = {"the small ", "a", "one two three", "the ", "b"};
  for (size_t i = 0; i < texts.size(); ++i)
    lines += fmt::format("{{\"prompt\": \"{}\", \"id\": {}}}\n", texts[i], 10 * i);
  write_file(*folder_ / "prompts", lines);
  const std::string output = *folder_ / "results";
  for (const char* options : {"--batch 2", "--batch 2 --stop e", "--batch 9"}) {
    const Result result = generate(
        fmt::format("--prompts {} --output {} --max-tokens 3 {}", *folder_ / "prompts", output, options));
    ASSERT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.out, "");
    const std::vector<std::string> results = split(read_file(output), '\n');
    ASSERT_EQ(results.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const Result alone = generate(fmt::format("--prompt '{}' --max-tokens 3 {}", texts[i], options));
      const nlohmann::json record = parse_json(results[i]);
      EXPECT_EQ(record["text"].get<std::string>() + "\n", alone.out);
      EXPECT_EQ(record["id"], 10 * i);
      EXPECT_EQ(record["prompt_tokens"], texts[i].size());
    }
  }
  write_file(*folder_ / "prompts", "{\"prompt\": 3}\n");
  expect_refused(generate("--prompts " + (*folder_ / "prompts")),
                 "prompts:1: has no field `prompt` with text");
  write_file(*folder_ / "prompts", "{\"prompt\": \"a\"}\n{\"prompt\": \"" + std::string(50, 'a') + "\"}\n");
  expect_refused(generate("--prompts " + (*folder_ / "prompts")), "prompt 2: the prompt has 50 tokens");
  write_file(*folder_ / "prompts", "");
  expect_refused(generate("--prompts " + (*folder_ / "prompts")), "has no prompt");
  expect_refused(generate("--prompt a --output /nowhere/x"), "--output /nowhere/x");
}

// Each line is a message; several ranks give the same replies as one; errors are one line.
TEST_F(TeGenerate, ChatOnStandardInput) {
  write_file(*folder_ / "letters",
             "system: S{content}\\n\nuser: U{content}\\n\nassistant: A{content}{eos}{stop}\n");
  const std::string options =
      "chat --checkpoint " + checkpoints() + " --max-tokens 3 --template " + (*folder_ / "letters");
  const Result one = run(options + " --quiet", "", "printf 'a\n\n' | ");
  ASSERT_EQ(one.code, 0) << one.error;
  EXPECT_EQ(one.error, "");
  EXPECT_FALSE(one.out.empty());
  EXPECT_EQ(run(options + " --quiet --tensor 2", TE_MPIRUN " 2", "printf 'a\n' | ").out, one.out);
  EXPECT_EQ(run(options + " --quiet", "", "printf 'a' | ").out, one.out);
  EXPECT_EQ(run(options, "", "true | ").out, "");
  expect_refused(run(options + " --quiet", "", "printf 'aaaaaaaaaaaaaaaa\n' | "),
                 "the conversation has 19 tokens");
  expect_refused(run(options + " --context 17", "", "true | "), "--context 17");
  expect_refused(run("chat --template chatml"), "--checkpoint PATH is required");
  write_file(*folder_ / "turns.json",
             R"({"format": "te-train chat turns 1", "template": "", "end": null, "tokens": [],
    "without_system": {"only": [{"text": "U"}, {"message": "user", "trim": "none"}, {"text": "\nA"}],
                       "first": [{"message": "user", "trim": "none"}, {"message": "assistant", "trim": "none"}],
                       "middle": [{"message": "user", "trim": "none"}, {"message": "assistant", "trim": "none"}],
                       "last": [{"message": "user", "trim": "none"}]}})");
  const std::string by_turns = "chat --quiet --checkpoint " + checkpoints() + " --max-tokens 3 --template " +
                               (*folder_ / "turns.json");
  EXPECT_EQ(run(by_turns, "", "printf 'a\n' | ").out, one.out);  // both are "Ua\nA"
  expect_refused(run(by_turns + " --system x", "", "true | "), "does not support system messages");
  expect_refused(run("chat --checkpoint " + checkpoints()), "--template: tokenizer bytes");
  write_file(*folder_ / "long", std::string((16u << 20) + 1, 'a'));
  expect_refused(run(by_turns + " <" + (*folder_ / "long")),
                 "standard input: a message is longer than 16 MiB");
  expect_refused(run(options + " --top-k 2 --temperature 0"), "--temperature 0");
}

// The decoder runs the output layer in high precision, and a warning says so; perplexity runs it in FP8 as in training.
TEST_F(TeGenerate, OutputLayersTrainedInFp8) {
  const Result trained =
      folder_->run("fp8_head", {"data.tokenizer=bytes", "precision.dtype=bf16", "precision.fp8=hybrid",
                                "precision.fp8_recipe=tensorwise", "precision.fp8_output_layer=true",
                                "training.eval_interval=6", "training.eval_microbatches=3",
                                "checkpoint.save_every=6", "logging.generate_every=6",
                                "logging.generate_prompts=[the]", "logging.generate_tokens=2"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  TE_EXPECT_CONTAINS(trained.out, "samples and evaluation tasks run in bf16, without FP8");
  const std::string checkpoint = " --checkpoint " + folder_->run_folder("fp8_head") + "/checkpoints";
  const std::string note = "its output layer was trained in FP8 and runs in ";
  const std::string generation = "--quiet --prompt the --max-tokens 2" + checkpoint;
  TE_EXPECT_CONTAINS(run(generation).error, note + "fp32 here\n");
  TE_EXPECT_CONTAINS(run(generation + " --dtype bf16 --fp8 hybrid").error, note + "bf16 here\n");
  EXPECT_EQ(run("--quiet --prompt the --max-tokens 2 --checkpoint " + checkpoints()).error, "");
  const std::string perplexity =
      "perplexity --dtype bf16 --data " + (*folder_ / "valid") + " --max-samples 6" + checkpoint;
  const double loss = folder_->column("fp8_head", "valid_loss").back();
  const Result same = run(perplexity + " --fp8 hybrid"), other = run(perplexity);
  const auto loss_of = [](const Result& result) {
    const size_t at = result.out.find("loss ");
    return at == std::string::npos ? 0.0 : std::strtod(result.out.c_str() + at + 5, nullptr);
  };
  EXPECT_EQ(same.error, "");
  EXPECT_NEAR(loss_of(same), loss, 1e-5 * loss);
  TE_EXPECT_CONTAINS(other.error, note + "bf16 here\n");
  EXPECT_GT(std::abs(loss_of(other) - loss), 1e-5 * loss);
}

// Rules about the tokens of a microbatch (32 for mxfp8) are rules of training.
TEST_F(TeGenerate, AnyLengthWithEveryFp8Recipe) {
  for (const std::string recipe : {"rowwise", "blockwise", "mxfp8"}) {
    const Result trained = folder_->run(
        recipe, {"data.tokenizer=bytes", "precision.dtype=bf16", "precision.fp8=hybrid",
                 "precision.fp8_recipe=" + recipe, "model.ffn_hidden_size=64", "training.train_steps=1"});
    ASSERT_EQ(trained.code, 0) << trained.error;
    for (const int tokens : {1, 2}) {
      const Result result =
          run(fmt::format("--quiet --dtype bf16 --fp8 hybrid --prompt the --max-tokens {} --checkpoint {}",
                          tokens, folder_->run_folder(recipe) + "/checkpoints"));
      EXPECT_EQ(result.code, 0) << recipe << result.error;
    }
  }
}

// Norms without gains, capped logits: training, full passes and passes with the KV cache agree.
TEST_F(TeGenerate, ModelsLikeNanochat) {
  const Result trained =
      folder_->run("nanochat", kNanochat + Overrides{"data.tokenizer=bytes", "training.train_steps=30",
                                                     "optimizer.decay_steps=30", "training.eval_interval=30",
                                                     "training.eval_microbatches=3"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::string checkpoint = " --checkpoint " + folder_->run_folder("nanochat") + "/checkpoints";
  const double loss = folder_->column("nanochat", "valid_loss").back();
  const Result perplexity =
      run("perplexity --dtype bf16 --max-samples 6 --data " + (*folder_ / "valid") + checkpoint);
  const size_t at = perplexity.out.find("loss ");
  ASSERT_NE(at, std::string::npos) << perplexity.error;
  EXPECT_NEAR(std::strtod(perplexity.out.c_str() + at + 5, nullptr), loss, 1e-5 * loss);
  const auto text = [&](const std::string& prompt, size_t tokens, const std::string& shell = "",
                        const std::string& more = "") {
    const Result result = run(
        fmt::format("--quiet --prompt '{}' --max-tokens {}{}{}", prompt, tokens, more, checkpoint), shell);
    EXPECT_EQ(result.code, 0) << result.error;
    return result.out.substr(0, result.out.size() - 1);
  };
  const std::string all = text("the ", 6);
  ASSERT_EQ(all.size(), 6u) << all;
  for (size_t i = 1; i < all.size(); ++i)
    EXPECT_EQ(text("the " + all.substr(0, i), 1), all.substr(i, 1)) << all << ", token " << i;
  EXPECT_EQ(text("the ", 6, TE_MPIRUN " 2", " --tensor 2"), all);
  // So does the exported model.
  const std::string command = std::string(TE_CONVERT_EXECUTABLE) + " export " +
                              folder_->checkpoint("nanochat", 30) + " --out " + (*folder_ / "hf") + " 2>" +
                              (*folder_ / "err");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 0) << read_file(*folder_ / "err");
  const Result exported =
      run("--quiet --prompt 'the ' --max-tokens 6 --tokenizer bytes --checkpoint " + (*folder_ / "hf"));
  EXPECT_EQ(exported.out, all + "\n") << exported.error;
}

// A model has no divergence from itself, but some from itself in FP8.
TEST_F(TeGenerate, DivergenceOfTwoModels) {
  write_file(*folder_ / "text", "the small one two three and the big");
  const std::string options = "divergence --reference " + checkpoints() + " --text " + (*folder_ / "text");
  const Result same = run(options + " --checkpoint " + checkpoints());
  ASSERT_EQ(same.code, 0) << same.error;
  TE_EXPECT_CONTAINS(same.out, "tokens           35\nmean KL          0.000000e+00\n");
  TE_EXPECT_CONTAINS(same.out, "top-1 agreement  100.0000%\n");
  const Result fp8 = run(options + " --fp8 hybrid --dtype bf16 --seq-length 8 --max-tokens 20 --checkpoint " +
                         checkpoints());
  ASSERT_EQ(fp8.code, 0) << fp8.error;
  TE_EXPECT_CONTAINS(fp8.out, "tokens           20\n");
  EXPECT_EQ(fp8.out.find("mean KL          0.000000e+00"), std::string::npos) << fp8.out;
  expect_refused(run("divergence --checkpoint " + checkpoints()), "--reference PATH is required");
  expect_refused(run(options + " --seq-length 99 --checkpoint " + checkpoints()), "--seq-length 99");
  expect_refused(
      run("divergence --text /nowhere --reference " + checkpoints() + " --checkpoint " + checkpoints()),
      "--text /nowhere");
  write_file(*folder_ / "text", "");
  expect_refused(run(options + " --checkpoint " + checkpoints()), ": is empty");
}

TEST_F(TeGenerate, DrawsDependOnTheSeed) {
  const std::string options = "--prompt the --max-tokens 10 --temperature 1.5 --seed ";
  const Result one = generate(options + "1");
  ASSERT_EQ(one.code, 0) << one.error;
  EXPECT_EQ(generate(options + "1").out, one.out);
  EXPECT_NE(generate(options + "2").out, one.out);
}

TEST_F(TeGenerate, RanksThatShardTheModelGiveTheTextOfOneRank) {
  const std::string options = "--prompt 'the small ' --max-tokens 4 --temperature 1 --seed 5";
  const Result one = generate(options), two = generate(options + " --tensor 2", TE_MPIRUN " 2");
  ASSERT_EQ(two.code, 0) << two.error;
  EXPECT_EQ(two.out, one.out);
  EXPECT_EQ(generate(options + " --pipeline 2", TE_MPIRUN " 2").out, one.out);
  EXPECT_EQ(generate(options + " --tensor 2 --pipeline 2", TE_MPIRUN " 4").out, one.out);
  const Result piped = generate("--max-tokens 4 --tensor 2", TE_MPIRUN " 2", "printf 'the small ' | ");
  EXPECT_EQ(piped.out, generate("--prompt 'the small ' --max-tokens 4").out);
}

// Tensor-parallel ranks have whole experts: they decode all tokens, and divide full sequences. seq_aux_loss,
// for which tensor-parallel training needs one sequence per microbatch, does not matter.
TEST_F(TeGenerate, TensorParallelRanksHaveTheExpertsOfOneRank) {
  const Result trained = folder_->run(
      "experts",
      {"data.tokenizer=bytes", "precision.dtype=fp32", "model.ffn_hidden_size=64", "model.num_moe_experts=4",
       "model.moe_ffn_hidden_size=32", "model.moe_shared_expert_intermediate_size=16",
       "model.moe_router_load_balancing_type=seq_aux_loss", "model.moe_aux_loss_coeff=0.01"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::string checkpoint = " --checkpoint " + folder_->run_folder("experts") + "/checkpoints";
  const auto both = [&](const std::string& arguments) {
    const Result one = run(arguments + checkpoint),
                 two = run(arguments + checkpoint + " --tensor 2", TE_MPIRUN " 2");
    EXPECT_EQ(one.code, 0) << one.error;
    EXPECT_EQ(two.code, 0) << two.error;
    return std::pair{one.out, two.out};
  };
  const std::string text = "--quiet --prompt 'the small ' --max-tokens 5";  // an odd number of tokens
  const auto [one, two] = both(text);
  EXPECT_EQ(two, one);
  EXPECT_NE(both(text + " --fp8 hybrid").second, "");
  const auto loss = [](const std::string& text) {
    const size_t at = text.find("loss ");
    return at == std::string::npos ? 0.0 : std::strtod(text.c_str() + at + 5, nullptr);
  };
  const auto [alone, shared] = both("perplexity --batch 2 --max-samples 6 --data " + (*folder_ / "valid"));
  EXPECT_GT(loss(alone), 0);
  EXPECT_NEAR(loss(shared), loss(alone), 1e-5 * loss(alone));
}

// The validation loss of training: three microbatches of two samples.
TEST_F(TeGenerate, PerplexityEqualsTheValidationLossOfTraining) {
  const double trained = folder_->column("run", "valid_loss").back();
  const std::string valid = " --data " + (*folder_ / "valid") + " --max-samples 6 --dtype bf16";
  const auto loss_of = [](const Result& result) {
    EXPECT_EQ(result.code, 0) << result.error;
    const size_t at = result.out.find("loss ");
    return at == std::string::npos ? 0.0 : std::strtod(result.out.c_str() + at + 5, nullptr);
  };
  const Result result = run("perplexity --checkpoint " + checkpoints() + valid);
  EXPECT_NEAR(loss_of(result), trained, 1e-5 * trained);
  TE_EXPECT_CONTAINS(result.out, "6 samples of 16 tokens");
  TE_EXPECT_CONTAINS(result.out, "tokens      96\n");
  EXPECT_NEAR(loss_of(run("perplexity --batch 4 --checkpoint " + checkpoints() + valid)), trained,
              1e-5 * trained);
  // Another precision is close but not equal.
  const double fp8 = loss_of(run("perplexity --fp8 hybrid --checkpoint " + checkpoints() + valid));
  EXPECT_NEAR(fp8, trained, 0.05 * trained);
  EXPECT_NE(fp8, trained);
  const double two_ranks =
      loss_of(run("perplexity --tensor 2 --checkpoint " + checkpoints() + valid, TE_MPIRUN " 2"));
  EXPECT_NEAR(two_ranks, trained, 1e-3 * trained);  // the sums over ranks are rounded to BF16
  const std::string stages = "perplexity --pipeline 2 --checkpoint " + checkpoints() + valid;
  EXPECT_EQ(loss_of(run(stages, TE_MPIRUN " 2")), loss_of(result));
  // Context parallelism: two ranks exchange heads; four ranks, and two with two tensor-parallel ranks, exchange keys
  // and values.
  for (const auto& [ranks, options] :
       {std::pair{"2", "--context-ranks 2"}, std::pair{"4", "--context-ranks 4"},
        std::pair{"4", "--context-ranks 2 --tensor 2"}, std::pair{"4", "--context-ranks 2 --pipeline 2"}}) {
    SCOPED_TRACE(options);
    const Result shared = run(std::string("perplexity ") + options + " --checkpoint " + checkpoints() + valid,
                              std::string(TE_MPIRUN " ") + ranks);
    EXPECT_NEAR(loss_of(shared), trained, 1e-3 * trained);
    TE_EXPECT_CONTAINS(shared.out, "tokens      96\n");
  }
}

// As the validation of a run whose attention stays within documents, and whose loss leaves out their first tokens.
TEST_F(TeGenerate, PerplexityWithADocumentMask) {
  const std::string prefix = *folder_ / "short";
  std::vector<std::vector<int32_t>> documents;
  for (int32_t i = 0; i < 40; ++i)
    documents.push_back({97 + i % 7, 98 + i % 5, 99 + i % 3, 100 + i % 2, 256});
  write_dataset(prefix, documents);
  const Result trained = folder_->run(
      "short", {"data.tokenizer=bytes", "data.train=" + prefix, "data.valid=" + prefix,
                "data.document_mask=true", "data.eod_mask_loss=true", "training.train_steps=40",
                "optimizer.lr=0.02", "training.eval_interval=40", "training.eval_microbatches=3"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  const double expected = folder_->column("short", "valid_loss").back();
  const auto loss = [&](const std::string& more) {
    const Result result = run("perplexity --dtype bf16 --max-samples 6 --data " + prefix + " --checkpoint " +
                              folder_->run_folder("short") + more);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.out.find(", attention within documents") == std::string::npos, !more.empty())
        << result.out;
    return std::strtod(result.out.c_str() + std::min(result.out.find("loss  ") + 5, result.out.size()),
                       nullptr);
  };
  EXPECT_NEAR(loss(""), expected, 1e-5 * expected);
  EXPECT_GT(std::abs(loss(" --document-mask false") - expected), 1e-4 * expected);
}

// Two conversations of 8 tokens with a loss on the last three, in samples of 7 positions.
TEST_F(TeGenerate, PerplexityOfResponsesOnly) {
  const std::string prefix = *folder_ / "chat";
  const std::vector<std::vector<int32_t>> documents = {{116, 104, 101, 32, 115, 109, 97, 256},
                                                       {111, 110, 101, 32, 116, 119, 111, 256}};
  write_dataset(prefix, documents);
  const std::string options = "perplexity --seq-length 7 --data " + prefix + " --checkpoint " + checkpoints();
  const auto tokens_of = [&](const std::string& more) {
    const Result result = run(options + more);
    EXPECT_EQ(result.code, 0) << result.error;
    return result.out.substr(std::min(result.out.find("tokens      "), result.out.size()));
  };
  const std::string before = tokens_of("");
  TE_EXPECT_CONTAINS(before, "tokens      15\n");  // all of 16 except the first
  write_dataset(prefix + "_mask", {{0, 0, 0, 0, 0, 1, 1, 1}, {0, 0, 0, 0, 0, 1, 1, 1}}, data::TokenType::kU8);
  TE_EXPECT_CONTAINS(tokens_of(""), "tokens      6\n");
  EXPECT_EQ(tokens_of(" --all-tokens").substr(0, 40), before.substr(0, 40));
}

// A custom task on a checkpoint of te-train, in three precisions, with the tokenizer "bytes".
TEST_F(TeGenerate, EvaluatesItsOwnCheckpoints) {
  write_file(*folder_ / "mine.jsonl", R"({"context":"the","choices":["small","big"],"gold":0})"
                                      "\n"
                                      R"({"context":"one","choices":["two","a","three"],"gold":2})"
                                      "\n");
  std::map<std::string, std::vector<double>> sums;
  for (const std::string precision : {"", "--dtype bf16", "--dtype bf16 --fp8 hybrid"}) {
    const Result result = run("evaluate --checkpoint " + checkpoints() + " --tasks mine --data " +
                              (*folder_ / "") + " --items " + (*folder_ / "items") + " " + precision);
    ASSERT_EQ(result.code, 0) << result.error;
    TE_EXPECT_CONTAINS(result.out, "mine                          2 documents  acc_norm");
    for (const std::string& line : split(read_file(*folder_ / "items"), '\n')) {
      const nlohmann::json item = parse_json(line);
      for (const nlohmann::json& response : item["filtered_resps"])
        sums[precision].push_back(response[0].get<double>());
    }
    ASSERT_EQ(sums[precision].size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      const double exact = sums[""][i];
      EXPECT_NEAR(sums[precision][i], exact, 0.05 * std::abs(exact)) << precision;
      EXPECT_EQ(sums[precision][i] == exact, precision.empty()) << precision;
    }
  }
}

TEST_F(TeGenerate, ErrorsAreOneLine) {
  expect_refused(run("--prompt a"), "--checkpoint PATH is required");
  expect_refused(run("--checkpoint /nowhere --prompt a"), "/nowhere: does not exist");
  expect_refused(run("--checkpoint " + (*folder_ / "base.yaml") + " --prompt a"), "base.yaml");
  expect_refused(generate("--prompt a --no-such-flag"), "--no-such-flag");
  expect_refused(generate("--prompt a --max-tokens -3"),
                 "--max-tokens: -3 must be a whole number of at least 1");
  expect_refused(generate("--prompt '" + std::string(16, 'a') + "'"), "context of 16");
  expect_refused(generate("--prompt a --stop ''"), "--stop");
  expect_refused(generate("--prompt a --top-k 3 --temperature 0"), "--temperature 0");
  expect_refused(generate("--prompt a --temperature nan"), "nan must be a number from 0 to 1000");
  expect_refused(generate("--prompt a --top-p nan"), "--top-p");
  expect_refused(generate("--prompt a --top-p 0"), "0 must be a number above 0, at most 1");
  expect_refused(generate("--prompt a --min-p 1.5"), "1.5 must be a number from 0 to 1");
  expect_refused(generate("--prompt a --min-p 0.1 --temperature 0"), "--temperature 0");
  expect_refused(generate("--prompt a --repetition-penalty 1e-320"),
                 "--repetition-penalty: 1e-320 must be a number from 0.001 to 1000");
  EXPECT_EQ(generate("--prompt a --repetition-penalty 0.001 --max-tokens 5").code, 0);
  expect_refused(generate("--prompt a --max-tokens -1"), "-1 must be a whole number of at least 1");
  expect_refused(generate("--prompt a --max-tokens 1.5"), "--max-tokens");
  expect_refused(generate("--prompt a --seed -1"), "-1 must be a whole number of at least 0");
  expect_refused(generate("--prompt a --seed 18446744073709551615"), "must be at most 9223372036854775807");
  expect_refused(generate("--prompt a --begin"), "--begin: tokenizer bytes has no begin-of-document token");
  expect_refused(generate("--prompt a --tensor 2"), "mpirun -n 2");
  expect_refused(generate("--prompt a --pipeline 2"), "--pipeline 2 need a job of 2 ranks");
  expect_refused(generate("--prompt-file /nowhere"), "--prompt-file /nowhere");
  expect_refused(generate("--prompt a --tokenizer /nowhere"), "/nowhere");
  expect_refused(run("perplexity --checkpoint " + checkpoints()), "--data PREFIX is required");
  expect_refused(run("perplexity --data /nowhere --checkpoint " + checkpoints()), "/nowhere");
  expect_refused(run("perplexity --seq-length 99 --data x --checkpoint " + checkpoints()), "--seq-length 99");
}

// The run's checkpoints keep the tokenizer, so its original files may be removed.
TEST_F(TeGenerate, FindsTheTokenizerThatARunKeeps) {
  const std::string own = *folder_ / "own";
  write_tokenizer(own);
  const Result trained = folder_->run(
      "own", {"data.tokenizer=" + own, "training.train_steps=1", "checkpoint.save_optimizer=false"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  std::filesystem::remove_all(own);
  const Result result = run("--quiet --checkpoint " + folder_->run_folder("own") +
                            "/checkpoints --prompt abc --max-tokens 4 --ignore-end");
  EXPECT_EQ(result.code, 0) << result.error;
}

// The tokenizer has 3 tokens only.
// Ids are checked as they occur; another size alone is no mistake.
TEST_F(TeGenerate, WarnsOfATokenizerWithAnotherVocabulary) {
  write_file(*folder_ / "vocab.json", R"({"a": 0, "b": 1, "<|endoftext|>": 2})");
  write_file(*folder_ / "merges.txt", "#version: 0.2\n");
  const Result result =
      generate("--prompt a --max-tokens 1 --ignore-end --tokenizer " + (*folder_ / "vocab.json"));
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.error, "warning: tokenizer " + (*folder_ / "vocab.json") + " has 3 tokens");
}

TEST_F(TeGenerate, FailsIfOutputCannotBeWritten) {
  write_file(*folder_ / "out", "");
  const std::string lost = " >/dev/full 2>" + (*folder_ / "err") + " #",
                    message = "standard output could not be written";
  expect_refused(generate("--prompt a --max-tokens 2" + lost), message);
  expect_refused(run("perplexity --checkpoint " + checkpoints() + " --data " + (*folder_ / "valid") + lost),
                 message);
}

TEST_F(TeGenerate, RefusesAnEndlessPrompt) {
  expect_refused(generate("--prompt-file /dev/zero"),
                 "--prompt-file /dev/zero: cannot be read: is larger than 64 MiB");
  EXPECT_EQ(generate("--max-tokens 2 --prompt-file -", "", "printf 'the small ' |").out,
            generate("--max-tokens 2 --prompt 'the small '").out);
}

TEST_F(TeGenerate, Help) {
  const Result help = run("--help"), perplexity = run("perplexity --help");
  EXPECT_EQ(help.code, 0);
  TE_EXPECT_CONTAINS(help.out, "--temperature");
  EXPECT_EQ(perplexity.code, 0);
  TE_EXPECT_CONTAINS(perplexity.out, "--max-samples");
}

}  // namespace
}  // namespace te::testing
