// Checkpoints have everything that determines later steps: a run that is resumed after any step takes bitwise the same
// steps as an uninterrupted one, and makes the same decisions.
#include <algorithm>
#include <filesystem>

#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "te_train_testing.h"

namespace te::testing {
namespace {

namespace fs = std::filesystem;

/// A short run that triggers every policy: one unusual document, whose samples are spikes, first in step 32.
class PolicyState : public ::testing::Test {
 protected:
  PolicyState() {
    Documents documents(30, std::vector<int32_t>(150, 7));
    std::vector<int32_t>& odd = documents.emplace_back();
    for (int i = 0; i < 40; ++i) odd.push_back(100 + i * 37 % 150);
    write_dataset(folder_ / "odd", documents);
    // Tokens that the model never sees: the first validation has the lowest loss.
    Documents unseen(30);
    for (int i = 0; i < 30 * 150; ++i) unseen[static_cast<size_t>(i / 150)].push_back(8 + i * 37 % 80);
    write_dataset(folder_ / "unseen", unseen);
  }
  static constexpr int64_t kSpike = 32, kEnd = 36;
  Result run(const std::string& name, const Overrides& more) const {
    return folder_.run(
        name, Overrides{"data.train=" + (folder_ / "odd"), "data.valid=" + (folder_ / "unseen"),
                        "training.seed=4", "training.train_steps=40", "optimizer.lr=1e-2",
                        "optimizer.decay=constant", "logging.fp8_stats_every=0", "checkpoint.save_every=1",
                        "checkpoint.keep_best=2", "training.eval_interval=4", "training.eval_microbatches=2",
                        // Only the first evaluation is an improvement: the run ends after eight more.
                        "training.early_stopping_patience=8"} +
                  more);
  }
  /// The logged values of each step, without its time.
  std::vector<std::string> steps(const std::string& name) const {
    std::vector<std::string> lines;
    for (const auto& row : folder_.csv(name)) {
      std::string& line = lines.emplace_back();
      for (const char* key : {"step", "consumed_samples", "loss", "valid_loss", "grad_norm", "lr", "skipped"})
        line += row.at(key) + " ";
    }
    return lines;
  }
  /// Recreates the run as if it had been killed after this step. Of the older checkpoints only the best ones, of the
  /// first two validations, are needed.
  void cut(const std::string& from, const std::string& name, int64_t step) const {
    fs::remove_all(folder_.run_folder(name));
    fs::create_directories(folder_.run_folder(name) + "/checkpoints");
    fs::copy(folder_.run_folder(from), folder_.run_folder(name));  // files
    for (int64_t kept = 1; kept <= step; ++kept)
      if ((kept <= 8 || kept >= step - 9) && saved(from, kept))
        fs::copy(folder_.checkpoint(from, kept), folder_.checkpoint(name, kept));
    write_file(folder_.run_folder(name) + "/checkpoints/latest", checkpoint::step_name(step) + "\n");
  }
  checkpoint::Progress progress(const std::string& name, int64_t step) const {
    return checkpoint::Reader(folder_.checkpoint(name, step)).progress();
  }
  bool saved(const std::string& name, int64_t step) const {
    return fs::exists(folder_.checkpoint(name, step));
  }
  /// Checks that the next checkpoint after a resume has the weights, the policies' state and the log of the
  /// uninterrupted run, which by induction holds for all later ones. The resumed run takes one more step, since its
  /// last step is always saved and evaluated. Around the spike it runs to the end, since steps may be repeated more
  /// than once.
  void expect_equal_after_resume_at_every_step(const Overrides& policies) const {
    const Result whole = run("whole", policies);
    ASSERT_EQ(whole.code, 0) << whole.out << whole.error;
    TE_EXPECT_CONTAINS(whole.out, "loss spike in step " + std::to_string(kSpike));
    TE_EXPECT_CONTAINS(whole.out, "stopped early after step " + std::to_string(kEnd));
    const std::vector<std::string> expected = steps("whole");
    ASSERT_EQ(expected.size(), static_cast<size_t>(kEnd));
    EXPECT_NE(progress("whole", kEnd).spikes.total, 0);
    for (int64_t step = 1; step < kEnd && !HasFailure(); ++step) {
      SCOPED_TRACE("resumed after step " + std::to_string(step));
      if (!saved("whole", step)) continue;  // skipped
      const int64_t next = step < kSpike - 4 ? step + 1 : kEnd;
      cut("whole", "cut", step);
      const Result result = run(
          "cut",
          policies + Overrides{"checkpoint.resume=auto", "training.train_steps=" + std::to_string(next + 1)});
      ASSERT_EQ(result.code, 0) << result.out << result.error;
      std::vector<std::string> taken = steps("cut");
      ASSERT_GE(taken.size(), static_cast<size_t>(next)) << result.out;
      taken.resize(static_cast<size_t>(next));
      EXPECT_EQ(taken, std::vector(expected.begin(), expected.begin() + next)) << result.out;
      EXPECT_TRUE(folder_.checkpoint_bytes("cut", next) == folder_.checkpoint_bytes("whole", next));
      EXPECT_EQ(progress("cut", next), progress("whole", next)) << result.out;
    }
  }
  TrainFolder folder_;
};

TEST_F(PolicyState, SkippedSpikesAndTheGuardAreResumedAfterEveryStep) {
  expect_equal_after_resume_at_every_step(kTinyFp8 + Overrides{"training.loss_spikes=skip", "guard.every=5",
                                                               "guard.compare_steps=2", "guard.action=bf16",
                                                               "guard.bf16_steps=3", "guard.tolerance=0"});
}

TEST_F(PolicyState, RollbacksAndTheLossScaleAreResumedAfterEveryStep) {
  expect_equal_after_resume_at_every_step(
      {"training.loss_spikes=rollback", "precision.dtype=fp16", "precision.initial_loss_scale=256"});
}

// A fixed loss scale at which no gradient is finite: no step updates anything.
TEST_F(PolicyState, CountOfNonFiniteStepsContinuesAfterAResume) {
  const Overrides never = {"precision.dtype=fp16", "precision.loss_scale=1e30", "checkpoint.save_every=0",
                           "training.max_nonfinite_steps=5"};
  ASSERT_EQ(run("a", never + Overrides{"training.train_steps=2"}).code, 0);
  const Result result = run("a", never + Overrides{"checkpoint.resume=auto"});
  EXPECT_EQ(result.code, 3) << result.out;
  TE_EXPECT_CONTAINS(result.out, "not finite in 5 consecutive steps");
  EXPECT_EQ(folder_.csv("a").size(), 5u);
  EXPECT_EQ(folder_.records("a").back().at("skipped_total"), 5);
}

// For checkpoints of versions that did not save the history.
TEST_F(PolicyState, MissingLossHistoryIsReported) {
  ASSERT_EQ(run("a", {"training.train_steps=20", "training.loss_spikes=off"}).code, 0);
  const std::string words = "the checkpoint has no loss history: for the next 16 steps";
  const Result result = run("a", {"training.train_steps=22", "checkpoint.resume=auto"});
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, words);
  const Result known = run("a", {"training.train_steps=24", "checkpoint.resume=auto"});
  EXPECT_EQ(known.out.find(words), std::string::npos) << known.out;
}

// The BF16 steps skip the spike's update like the run, so that later losses are comparable.
TEST_F(PolicyState, GuardComparesStepsThatSkipTheSameSpikes) {
  const Result result =
      run("a", kTinyFp8 + Overrides{"training.loss_spikes=skip", "guard.every=31", "guard.compare_steps=8",
                                    "guard.action=warn", "checkpoint.keep_best=0", "checkpoint.save_every=0",
                                    "training.early_stopping_patience=0"});
  ASSERT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "loss spike in step 32");
  int compared = 0;
  for (const nlohmann::json& record : folder_.records("a")) {
    if (!record.contains("guard")) continue;
    ++compared;
    EXPECT_LT(std::abs(record["guard"]["gap"].get<double>()), 0.01) << record;
  }
  EXPECT_EQ(compared, 1);
}

}  // namespace
}  // namespace te::testing
