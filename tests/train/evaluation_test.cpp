// Whole runs of te-train: several validation sets, the best checkpoints, early stopping, and the loss of each dataset
// of a blend. On the CPU losses are deterministic, so runs that compute the same loss are compared bitwise.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "te_train_testing.h"

namespace te {
namespace {

namespace fs = std::filesystem;

using testing::operator+;
using testing::expect_refused;
using testing::Overrides;
using testing::read_file;
using testing::Result;
using testing::split;
using testing::TrainFolder;
using testing::write_dataset;
class Evaluation : public ::testing::Test {
 protected:
  Evaluation() {
    // A second text with nothing in common with the first: a repeated letter.
    testing::Documents documents(8, std::vector<int32_t>(120, 'x'));
    for (std::vector<int32_t>& document : documents) document.push_back(256);
    write_dataset(folder_ / "letters", documents);
  }
  Result run(const std::string& name, const Overrides& overrides) {
    const Result result = folder_.run(name, overrides);
    EXPECT_EQ(result.code, 0) << result.out << result.error;
    return result;
  }
  std::vector<nlohmann::json> records(const std::string& run) { return folder_.records(run); }
  std::string saved(const std::string& run) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.run_folder(run) + "/checkpoints"))
      if (entry.is_directory())
        names.push_back(std::to_string(std::stoll(entry.path().filename().string().substr(5))));
    std::ranges::sort(names);
    std::string all;
    for (const std::string& name : names) all += name + " ";
    return all;
  }
  std::string best(const std::string& run) {
    return read_file(folder_.run_folder(run) + "/checkpoints/best");
  }
  std::string both_sets() {
    return "data.valid={letters: " + (folder_ / "letters") + ", text: " + (folder_ / "valid") + "}";
  }
  const Overrides often_ = {"training.eval_interval=2", "training.eval_microbatches=3"};
  TrainFolder folder_;
};

TEST_F(Evaluation, EachSetHasASeparateLoss) {
  run("text", often_);
  run("letters", often_ + Overrides{"data.valid=" + (folder_ / "letters")});
  const Result result = run("both", often_ + Overrides{both_sets()});
  TE_EXPECT_CONTAINS(result.out, ": valid text loss ");
  TE_EXPECT_CONTAINS(result.out, ": valid letters loss ");
  EXPECT_EQ(folder_.column("both", "loss"), folder_.column("text", "loss"));
  EXPECT_EQ(folder_.column("both", "valid_loss.text"), folder_.column("text", "valid_loss"));
  EXPECT_EQ(folder_.column("both", "valid_loss.letters"), folder_.column("letters", "valid_loss"));
  EXPECT_EQ(folder_.column("both", "valid_loss"), folder_.column("letters", "valid_loss"));
  EXPECT_NE(folder_.column("text", "valid_loss"), folder_.column("letters", "valid_loss"));
  const nlohmann::json record = records("both").back();
  for (const char* set : {"text", "letters"}) {
    const double loss = record["valid"][set]["loss"];
    EXPECT_EQ(record["valid"][set]["perplexity"].get<double>(), std::exp(loss));
  }
  EXPECT_EQ(record["valid_loss"], record["valid"]["letters"]["loss"]);
}

// A resumed run with other validation sets does not change the columns of a log.
TEST_F(Evaluation, LogKeepsItsColumns) {
  run("a", often_ + Overrides{both_sets(), "training.train_steps=2"});
  run("a", often_ + Overrides{"data.valid={letters: " + (folder_ / "letters") +
                                  ", more: " + (folder_ / "valid") + "}",
                              "checkpoint.resume=auto"});
  const auto rows = folder_.csv("a");
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[5].at("valid_loss.text"), "");
  EXPECT_NE(rows[5].at("valid_loss.letters"), "");
  EXPECT_TRUE(records("a").back()["valid"].contains("more"));
}

TEST_F(Evaluation, TheBestCheckpointsAreKept) {
  // Trained on words, the model becomes worse at letters: the first evaluation is the best.
  const Overrides common = {"training.eval_interval=1", "training.eval_microbatches=3", both_sets(),
                            "checkpoint.keep_best=2", "optimizer.lr=0.02"};
  run("a", common + Overrides{"checkpoint.save_every=2", "checkpoint.keep=1"});
  const std::vector<double> losses = folder_.column("a", "valid_loss.letters");
  std::vector<size_t> order = {0, 1, 2, 3, 4, 5};
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return losses[a] < losses[b]; });
  const auto step = [&](size_t place) { return static_cast<int64_t>(order[place]) + 1; };
  EXPECT_EQ(best("a"), fs::path(folder_.checkpoint("a", step(0))).filename().string() + "\n");
  for (const int64_t kept : {step(0), step(1), int64_t{6}})
    EXPECT_TRUE(fs::exists(folder_.checkpoint("a", kept))) << kept << " of " << saved("a");
  EXPECT_LE(split(saved("a"), ' ').size(), 3u) << saved("a");
  EXPECT_EQ(folder_
                .run("tuned", {"training.train_steps=1",
                               "checkpoint.init_from=" + folder_.run_folder("a") + "/checkpoints/best"})
                .code,
            0);
  // The same run, interrupted, has the same best checkpoints.
  run("b", common + Overrides{"training.train_steps=3", "optimizer.decay_steps=6"});
  run("b", common + Overrides{"checkpoint.resume=auto"});
  EXPECT_EQ(folder_.column("b", "valid_loss.letters"), losses);
  EXPECT_EQ(best("b"), best("a"));
  // Checkpoints saved only for being the best have been deleted; left are two of the best, and the last ones of both
  // parts.
  for (const std::string& name : split(saved("b"), ' '))
    EXPECT_TRUE(name == std::to_string(step(0)) || name == std::to_string(step(1)) || name == "3" ||
                name == "6")
        << saved("b");
}

TEST_F(Evaluation, RunWithoutImprovementStops) {
  // Updates that change no weight: the loss stays that of the first evaluation.
  const Overrides common =
      often_ + Overrides{"training.train_steps=40", "training.early_stopping_patience=2",
                         "optimizer.lr=1e-30", "optimizer.min_lr=0", "checkpoint.save_every=4"};
  const Result result = run("a", common);
  EXPECT_EQ(folder_.csv("a").size(), 6u);
  TE_EXPECT_CONTAINS(result.out,
                     "stopped early after step 6: the loss of validation set valid has not improved in 2 "
                     "evaluations (training.early_stopping_patience)");
  EXPECT_TRUE(fs::exists(folder_.checkpoint("a", 6)));
  TE_EXPECT_CONTAINS(read_file(folder_.run_folder("a") + "/run.json"), "\"end\": \"stopped early\"");
  // Resumed from step 4, after one evaluation without improvement, it stops at the same step.
  const Overrides from_4 = {"checkpoint.resume=" + folder_.checkpoint("a", 4)};
  run("a", common + from_4);
  EXPECT_EQ(folder_.csv("a").size(), 6u);
  const Result again = run("a", common + Overrides{"checkpoint.resume=auto"});
  TE_EXPECT_CONTAINS(again.out, "nothing to do: the run stopped early after step 6");
  run("a", common + Overrides{"checkpoint.resume=auto", "training.early_stopping_patience=3"});
  EXPECT_EQ(folder_.csv("a").size(), 8u);
  // Losses of other samples are not compared with those so far.
  const Result other = run("a", common + Overrides{"checkpoint.resume=auto", "training.eval_microbatches=1"});
  TE_EXPECT_CONTAINS(other.out, "the best losses so far are of other samples of data.valid");
  EXPECT_GT(folder_.csv("a").size(), 8u);
}

// A set that is evaluated to its end has the same samples with every microbatch size, and weights are relative.
TEST_F(Evaluation, TheSameSamplesKeepTheBestLosses) {
  const Overrides common = often_ + Overrides{"training.eval_microbatches=1000", "checkpoint.keep_best=1",
                                              "training.early_stopping_patience=50"};
  run("a", common + Overrides{"training.train_steps=3"});
  const Result resumed = run("a", common + Overrides{"checkpoint.resume=auto", "training.micro_batch_size=1",
                                                     "data.valid=[[0.5, " + (folder_ / "valid") + "]]"});
  EXPECT_EQ(resumed.out.find("best losses"), std::string::npos) << resumed.out;
}

// The mean over no tokens must not be 0, which would be the best loss.
TEST_F(Evaluation, SetWithoutCountedTokensIsRefused) {
  write_dataset(folder_ / "single", testing::Documents(40, std::vector<int32_t>(1, 'x')));
  const Overrides set = often_ + Overrides{"data.eod_mask_loss=true", "checkpoint.keep_best=1",
                                           "data.valid={text: " + (folder_ / "valid") +
                                               ", single: " + (folder_ / "single") + "}"};
  expect_refused(folder_.run("a", set), "data.valid: single: no token counts in the loss");
  EXPECT_FALSE(fs::exists(folder_.run_folder("a") + "/loss.csv"));
}

TEST_F(Evaluation, StepWithoutCountedTokensHasNoLoss) {
  // 31 documents of one token for each one of 20: usually no sample has two tokens of one document.
  testing::Documents documents(31 * 8, std::vector<int32_t>(1, 'x'));
  for (int i = 0; i < 8; ++i) documents.push_back(std::vector<int32_t>(20, 'x'));
  write_dataset(folder_ / "sparse", documents);
  const Result result = run(
      "a", {"data.eod_mask_loss=true", "data.train=" + (folder_ / "sparse"), "training.micro_batch_size=1",
            "training.global_batch_size=1", "training.train_steps=20", "training.loss_spikes=skip"});
  int without = 0;
  for (const nlohmann::json& record : records("a")) {
    const double loss = record["loss"].is_null() ? 1.0 : record["loss"].get<double>();
    without += record["loss"].is_null() ? 1 : 0;
    EXPECT_GT(loss, 0.0);
    EXPECT_FALSE(record["skipped"].get<bool>());
  }
  EXPECT_GT(without, 0);
  EXPECT_LT(without, 20);
  TE_EXPECT_CONTAINS(result.out, ": none of its tokens counts in the loss");
}

TEST_F(Evaluation, RefusesSettingsWithoutValidationLoss) {
  expect_refused(folder_.run("a", {"checkpoint.keep_best=1"}),
                 "checkpoint.keep_best (1) needs a validation loss");
}

// --- the loss of each dataset of a blend -------------------------------------------------------------------

class Blends : public Evaluation {
 protected:
  Overrides blend() {
    return {"data.train=[[3, " + (folder_ / "train") + "], [1, " + (folder_ / "letters") + "]]",
            "data.valid=[]", "logging.every=2"};
  }
  /// Compares the mean loss of each record's steps with the losses of the datasets.
  void expect_sources_make_up_the_loss(const std::string& run) {
    const std::vector<double> losses = folder_.column(run + "_every_step", "loss");
    const std::vector<nlohmann::json> all = records(run);
    ASSERT_EQ(all.size(), 4u);  // steps 1, 2, 4, 6
    int64_t before = 0;
    for (const nlohmann::json& record : all) {
      const int64_t step = record["step"];
      double sum = 0, expected = 0;
      int64_t tokens = 0;
      for (const auto& [name, source] : record["sources"].items()) {
        sum += source["tokens"].get<int64_t>() > 0
                   ? source["loss"].get<double>() * source["tokens"].get<double>()
                   : 0.0;
        tokens += source["tokens"].get<int64_t>();
      }
      EXPECT_EQ(tokens, (step - before) * 4 * 16);
      for (int64_t i = before; i < step; ++i)
        expected += losses[static_cast<size_t>(i)] / static_cast<double>(step - before);
      // loss.csv has seven digits.
      EXPECT_NEAR(sum / static_cast<double>(tokens), expected, 1e-6 * expected);
      before = step;
    }
    const nlohmann::json& last = all.back()["sources"];
    EXPECT_EQ(last[folder_ / "train"]["tokens"], 3 * last[folder_ / "letters"]["tokens"].get<int64_t>());
    EXPECT_NE(last[folder_ / "train"]["loss"], last[folder_ / "letters"]["loss"]);
  }
};

TEST_F(Blends, LossesOfDatasetsAddUpToTheLoss) {
  run("a_every_step", blend() + Overrides{"logging.every=1"});
  run("a", blend() + Overrides{"logging.loss_by_source=true"});
  expect_sources_make_up_the_loss("a");
  EXPECT_FALSE(records("a_every_step").back().contains("sources"));
  EXPECT_EQ(folder_.checkpoint_bytes("a", 6), folder_.checkpoint_bytes("a_every_step", 6));
}

TEST_F(Blends, NamesNeedNotBeUtf8) {
  const std::string name = folder_ / "letters\xff";
  for (const std::string suffix : {".bin", ".idx"})
    std::filesystem::copy(folder_ / ("letters" + suffix), name + suffix);
  run("a", {"data.train=[[3, " + (folder_ / "train") + "], [1, " + name + "]]", "data.valid=[]",
            "data.check=false", "logging.loss_by_source=true"});
  EXPECT_EQ(records("a").back()["sources"].size(), 2u);
}

TEST_F(Blends, WorkInDataTensorAndPipelineParallelRuns) {
  const std::pair<int, Overrides> jobs[] = {
      {2, {}}, {4, {"parallel.tensor=2"}}, {4, {"parallel.pipeline=2", "parallel.schedule=1f1b"}}};
  folder_.use_ranks(1);
  run("one", blend() + Overrides{"logging.loss_by_source=true", "precision.dtype=fp32"});
  const std::vector<nlohmann::json> expected = records("one");
  for (const auto& [ranks, layout] : jobs) {
    SCOPED_TRACE(ranks);
    folder_.use_ranks(ranks);
    const std::string name = "job" + std::to_string(&layout - &jobs[0].second);
    run(name, blend() + Overrides{"logging.loss_by_source=true", "precision.dtype=fp32"} + layout);
    const std::vector<nlohmann::json> actual = records(name);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      for (const auto& [source, values] : expected[i]["sources"].items()) {
        EXPECT_EQ(actual[i]["sources"][source]["tokens"], values["tokens"]) << i << source;
        if (values["tokens"] == 0) continue;
        EXPECT_NEAR(actual[i]["sources"][source]["loss"].get<double>(), values["loss"].get<double>(), 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace te
