// The samples that te-train generates during training equal te-generate's texts, and training computes the same bits
// with and without them.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "te_generate_testing.h"

namespace te::testing {
namespace {

class TrainingSamples : public GenerateFolder {
 protected:
  Result train(const std::string& name, const Overrides& overrides) {
    Overrides all = {"data.tokenizer=bytes", "training.train_steps=6", "optimizer.lr=0.02",
                     "checkpoint.save_every=3"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return folder_.run(name, all);
  }
  std::vector<nlohmann::json> samples(const std::string& name) {
    return folder_.records(name, "samples.jsonl");
  }
  const Overrides prompts_ = {"logging.generate_every=2", "logging.generate_prompts=[the small, a]",
                              "logging.generate_tokens=9"};
  TrainFolder folder_;
};

TEST_F(TrainingSamples, EqualThoseOfTeGenerate) {
  const Result result = train("a", prompts_ + Overrides{"training.train_steps=5"});
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  const std::vector<nlohmann::json> all = samples("a");
  ASSERT_EQ(all.size(), 6u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["step"], std::vector<int>({2, 4, 5})[i / 2]);
    EXPECT_EQ(all[i]["prompt"], i % 2 == 0 ? "the small" : "a");
    EXPECT_EQ(all[i]["ending"], i % 2 == 0 ? "context full" : "max tokens");
    EXPECT_EQ(all[i]["tokens"], i % 2 == 0 ? 7 : 9);  // of a context of 16
  }
  TE_EXPECT_CONTAINS(result.out, "sample of step 4 | \"the small\" -> ");
  for (const size_t last : {size_t{4}, size_t{5}}) {
    const Result text =
        run("--checkpoint " + folder_.checkpoint("a", 5) + " --dtype bf16 --max-tokens 9 --quiet --prompt '" +
            all[last]["prompt"].get<std::string>() + "'");
    ASSERT_EQ(text.code, 0) << text.error;
    EXPECT_EQ(text.out, all[last]["text"].get<std::string>() + "\n");
  }
}

TEST_F(TrainingSamples, TrainingComputesTheSameBits) {
  for (const Overrides& precision : {Overrides{"precision.fp8=hybrid"}, Overrides{"precision.dtype=fp32"}}) {
    SCOPED_TRACE(precision[0]);
    const std::string name = precision[0].substr(10, 3);
    ASSERT_EQ(train(name + "without", precision).code, 0);
    ASSERT_EQ(
        train(name + "with",
              precision + prompts_ + Overrides{"logging.generate_every=1", "logging.generate_temperature=1"})
            .code,
        0);
    EXPECT_EQ(folder_.column(name + "with", "loss"), folder_.column(name + "without", "loss"));
    EXPECT_EQ(folder_.checkpoint_bytes(name + "with", 6), folder_.checkpoint_bytes(name + "without", 6));
  }
}

// The draws depend on the seed only; a resumed run writes the same texts for the steps that it repeats.
TEST_F(TrainingSamples, AResumedRunGeneratesTheSame) {
  const Overrides drawn = prompts_ + Overrides{"logging.generate_temperature=0.9"};
  ASSERT_EQ(train("a", drawn).code, 0);
  ASSERT_EQ(train("b", drawn).code, 0);
  const std::string expected = read_file(folder_.run_folder("a") + "/samples.jsonl");
  ASSERT_EQ(train("b", drawn + Overrides{"checkpoint.resume=" + folder_.checkpoint("b", 3)}).code, 0);
  EXPECT_EQ(read_file(folder_.run_folder("b") + "/samples.jsonl"), expected);
}

TEST_F(TrainingSamples, WithRanksThatShardTheModel) {
  ASSERT_EQ(train("one", prompts_ + Overrides{"precision.dtype=fp32"}).code, 0);
  folder_.use_ranks(4);
  const Result result = train(
      "four", prompts_ + Overrides{"precision.dtype=fp32", "parallel.tensor=2", "parallel.sequence=true"});
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  EXPECT_EQ(samples("four"), samples("one"));
  const Result staged = train(
      "staged", prompts_ + Overrides{"precision.dtype=fp32", "parallel.pipeline=2", "parallel.tensor=2"});
  ASSERT_EQ(staged.code, 0) << staged.out << staged.error;
  EXPECT_EQ(samples("staged"), samples("one"));
}

// The decoder has the same stages as the run although it runs without FP8, for which the balanced split would differ:
// the output layer is 32 x 1024 and takes as long as six FP8 layers or four BF16 layers.
TEST_F(TrainingSamples, WithUnequalStages) {
  const Overrides deep =
      prompts_ + Overrides{"precision.dtype=fp32", "precision.fp8=hybrid", "model.num_layers=8",
                           "model.make_vocab_size_divisible_by=1024", "optimizer.clip_grad=0"};
  ASSERT_EQ(train("one", deep).code, 0);
  folder_.use_ranks(2);
  const auto expect_same_texts = [&](const std::string& name, const std::string& split) {
    const Result staged =
        train(name, deep + Overrides{"parallel.pipeline=2", "parallel.pipeline_split=" + split});
    ASSERT_EQ(staged.code, 0) << staged.out << staged.error;
    EXPECT_EQ(samples(name), samples("one")) << split;
  };
  expect_same_texts("balanced", "balanced");
  expect_same_texts("list", "3,5");
  TE_EXPECT_CONTAINS(read_file(folder_.run_folder("balanced") + "/start.txt"), "stages of 7, 1 layers");
}

// Context-parallel ranks train on parts of the sequences; one of them generates the texts.
TEST_F(TrainingSamples, WithContextParallelRanks) {
  ASSERT_EQ(train("one", prompts_ + Overrides{"precision.dtype=fp32"}).code, 0);
  folder_.use_ranks(2);
  const Result result = train("two", prompts_ + Overrides{"precision.dtype=fp32", "parallel.context=2"});
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  EXPECT_EQ(samples("two"), samples("one"));
}

TEST_F(TrainingSamples, ADivergedModelGeneratesNoText) {
  // Infinite updates make all weights NaN; such a model is not saved.
  const Result result =
      train("a", prompts_ + Overrides{"optimizer.lr=1e38", "optimizer.clip_grad=0", "checkpoint.save_every=0",
                                      "checkpoint.save_last=false", "training.max_nonfinite_steps=100"});
  ASSERT_EQ(result.code, 3) << result.out << result.error;
  ASSERT_EQ(samples("a").size(), 6u);
  for (const nlohmann::json& sample : samples("a")) {
    EXPECT_EQ(sample["text"], "");
    TE_EXPECT_CONTAINS(sample["ending"].get<std::string>(), "the model");
  }
}

// With a growing validation loss.
TEST_F(TrainingSamples, ARunThatStopsEarlyEndsWithSamples) {
  const Result result =
      train("a", prompts_ + Overrides{"logging.generate_every=5", "training.train_steps=40",
                                      "training.eval_interval=2", "training.loss_spikes=off",
                                      "training.early_stopping_patience=2", "optimizer.lr=0.3",
                                      "optimizer.min_lr=0.3", "optimizer.warmup_steps=0"});
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  const double last = folder_.column("a", "step").back();
  EXPECT_LT(last, 40);
  EXPECT_EQ(samples("a").back()["step"], last);
}

TEST_F(TrainingSamples, RefusesInvalidSettings) {
  const auto refused = [&](const Overrides& overrides, const std::string& part) {
    testing::expect_refused(train("x", overrides), part);
  };
  refused({"logging.generate_every=2"}, "logging.generate_every (2) needs logging.generate_prompts");
  refused(prompts_ + Overrides{"data.tokenizer="}, "logging.generate_every (2) needs data.tokenizer");
  refused(prompts_ + Overrides{"logging.generate_prompts=a prompt of more than sixteen bytes"},
          "logging.generate_prompts: prompt 1: the prompt has 35 tokens");
}

}  // namespace
}  // namespace te::testing
