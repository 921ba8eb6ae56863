// The guard: its rule; that observing keeps a run bitwise equal with every recipe and layout and across a resume; and a
// run that is made to fail, detected and recovered.
#include "train/guard.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "te_train_testing.h"
#include "testing/testing.h"

namespace te::testing {
namespace {

using nlohmann::json;
constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();

TEST(GuardRule, GapAndLimit) {
  EXPECT_DOUBLE_EQ(train::guard_gap({3.0, 5.0}, {2.0, 3.0}).value(), 0.6);
  EXPECT_EQ(train::guard_gap({3.0, kNan}, {2.0, 3.0}).value(), kInf);
  EXPECT_FALSE(train::guard_gap({3.0, 3.0}, {2.0, kNan}));
  config::GuardConfig guard;
  guard.tolerance = 0.001;
  EXPECT_EQ(train::guard_limit(guard, {0.5, 0.6, 0.7}), 0.001);
  // Median 0.025, deviations 0.015, 0.005, 0.005, 0.015: their median is 0.01.
  EXPECT_DOUBLE_EQ(train::guard_limit(guard, {0.01, 0.02, 0.03, 0.04}), 0.025 + 6 * 1.4826 * 0.01);
  EXPECT_EQ(train::guard_limit(guard, {-0.01, -0.01, -0.01, -0.01}), 0.001);
}

std::vector<json> guard_records(const TrainFolder& folder, const std::string& run) {
  std::vector<json> result;
  for (const json& record : folder.records(run))
    if (record.contains("guard")) result.push_back(record);
  return result;
}

const Overrides kObserves = {"guard.every=2", "guard.compare_steps=1", "guard.action=warn"};

void expect_unchanged(const TrainFolder& folder, const std::string& name, const Overrides& overrides) {
  SCOPED_TRACE(name);
  const Result plain = folder.run(name, overrides),
               guarded = folder.run(name + "_guarded", overrides + kObserves);
  ASSERT_EQ(plain.code, 0) << plain.error;
  ASSERT_EQ(guarded.code, 0) << guarded.error;
  EXPECT_EQ(folder.column(name, "loss"), folder.column(name + "_guarded", "loss"));
  EXPECT_EQ(folder.column(name, "grad_norm"), folder.column(name + "_guarded", "grad_norm"));
  EXPECT_EQ(folder.checkpoint_bytes(name, 6), folder.checkpoint_bytes(name + "_guarded", 6));
  const std::vector<json> records = guard_records(folder, name + "_guarded");
  ASSERT_EQ(records.size(), 2u);  // of steps 3 and 5
  for (const json& record : records) {
    const double gap = record["guard"]["gap"].get<double>();
    EXPECT_NE(gap, 0.0);  // the other precision was used
    EXPECT_LT(std::abs(gap), 0.1);
  }
}

TEST(Guard, ObservingChangesNoBitOfAnyRecipe) {
  const TrainFolder folder;
  for (const char* recipe : {"delayed", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4"})
    expect_unchanged(folder, recipe, kTinyFp8 + Overrides{std::string("precision.fp8_recipe=") + recipe});
  expect_unchanged(
      folder, "mixed",
      kTinyFp8 + Overrides{"precision.fp8_output_layer=true", "training.recompute=selective",
                           "precision.overrides=linear_fc2 input: bf16; layers 0 linear_qkv: blockwise"});
  expect_unchanged(folder, "full",
                   kTinyFp8 + Overrides{"training.recompute=full", "logging.fp8_stats_every=1",
                                        "optimizer.store_param_remainders=true",
                                        "optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=fp8"});
  expect_unchanged(folder, "muon",
                   kTinyFp8 + Overrides{"optimizer.name=muon", "training.z_loss_coefficient=1e-3"});
}

TEST(Guard, ObservingChangesNoBitOfAnyLayout) {
  TrainFolder folder;
  folder.use_ranks(2);
  expect_unchanged(folder, "tp", kTinyFp8 + Overrides{"parallel.tensor=2"});
  expect_unchanged(folder, "tp_sp", kTinyFp8 + Overrides{"parallel.tensor=2", "parallel.sequence=true"});
  expect_unchanged(folder, "pp",
                   kTinyFp8 + Overrides{"parallel.pipeline=2", "parallel.schedule=zero_bubble"});
  expect_unchanged(folder, "pp_chunks",
                   kTinyFp8 + Overrides{"parallel.pipeline=2", "parallel.schedule=zero_bubble",
                                        "parallel.virtual_stages=2", "model.num_layers=4"});
  expect_unchanged(folder, "dp", kTinyFp8 + Overrides{"parallel.bucket_size=1000"});
  expect_unchanged(folder, "dp_muon",
                   kTinyFp8 + Overrides{"parallel.bucket_size=1000", "optimizer.name=muon"});
}

TEST(Guard, IsResumedWithinAComparison) {
  const TrainFolder folder;
  const Overrides longer =
      kTinyFp8 + Overrides{"guard.every=3", "guard.compare_steps=2", "checkpoint.save_every=1"};
  ASSERT_EQ(folder.run("whole", longer).code, 0);
  // Step 4 is the first of the two: the comparison is completed after the resume.
  ASSERT_EQ(folder.run("cut", longer + Overrides{"checkpoint.resume=" + folder.checkpoint("whole", 4)}).code,
            0);
  const std::vector<json> whole = guard_records(folder, "whole"), cut = guard_records(folder, "cut");
  ASSERT_EQ(whole.size(), 1u);
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_EQ(cut[0]["step"], 5);
  EXPECT_EQ(cut[0]["guard"]["gap"], whole[0]["guard"]["gap"]);
  EXPECT_EQ(folder.checkpoint_bytes("cut", 6), folder.checkpoint_bytes("whole", 6));
}

/// Makes FP8 runs fail, while it exists.
struct Outlier {
  explicit Outlier(const char* step_and_log2) { ::setenv(kName, step_and_log2, 1); }
  ~Outlier() { ::unsetenv(kName); }
  Outlier(const Outlier&) = delete;
  Outlier& operator=(const Outlier&) = delete;
  static constexpr const char* kName = "TE_TEST_OUTLIER";
};

// Step 6 is the first FP8 step after two in BF16, and is calibrated, with the run's outlier.
TEST(Guard, IsResumedAfterBf16Steps) {
  const TrainFolder folder;
  const Overrides failing =
      kTinyFp8 + Overrides{"guard.every=2",      "guard.compare_steps=1", "guard.action=bf16",
                           "guard.bf16_steps=2", "guard.tolerance=0",     "checkpoint.save_every=1"};
  const Outlier outlier("3:30");
  ASSERT_EQ(folder.run("whole", failing).code, 0);
  const std::vector<json> records = guard_records(folder, "whole");
  ASSERT_EQ(records.size(), 1u);
  ASSERT_EQ(records[0]["guard"]["excess"], 1.0);
  ASSERT_EQ(folder.run("cut", failing + Overrides{"checkpoint.resume=" + folder.checkpoint("whole", 5)}).code,
            0);
  EXPECT_EQ(folder.column("cut", "loss").at(0), folder.column("whole", "loss").at(5));
  EXPECT_TRUE(folder.checkpoint_bytes("cut", 6) == folder.checkpoint_bytes("whole", 6));
}

double last_loss(const TrainFolder& folder, const std::string& run) {
  const std::vector<double> losses = folder.column(run, "loss");
  double sum = 0;
  for (size_t i = losses.size() - 4; i < losses.size(); ++i) sum += losses[i] / 4;
  return sum;
}

TEST(Guard, RecoversAFailingRun) {
  for (const char* recipe : {"delayed", "tensorwise", "blockwise"}) {
    SCOPED_TRACE(recipe);
    if (testing::kSanitized && recipe != std::string("delayed")) continue;  // the guard's code is the same
    const TrainFolder folder;
    const Overrides run = kTinyFp8 + Overrides{"training.train_steps=100",
                                               "optimizer.decay_steps=200",
                                               std::string("precision.fp8_recipe=") + recipe,
                                               "guard.every=20",
                                               "guard.tolerance=0.002",
                                               "guard.compare_steps=3",
                                               "guard.bf16_steps=100"};
    ASSERT_EQ(folder.run("good", run).code, 0);
    const Outlier outlier("35:30");
    ASSERT_EQ(folder.run("warned", run).code, 0);
    ASSERT_EQ(folder.run("bf16", run + Overrides{"guard.action=bf16"}).code, 0);
    const Result back = folder.run("back", run + Overrides{"guard.action=rollback"});
    ASSERT_EQ(back.code, 0) << back.error;
    const double good = last_loss(folder, "good"), warned = last_loss(folder, "warned");
    EXPECT_GT(warned, 1.01 * good);
    // Without rollback it continues from weights that the failure has changed.
    EXPECT_LT(last_loss(folder, "bf16") - good, 0.9 * (warned - good));
    EXPECT_LT(last_loss(folder, "back") - good, 0.6 * (warned - good));
    // An excess is found, and is recorded in the step that is repeated in BF16.
    int64_t caught = 0;
    for (const json& record : guard_records(folder, "back"))
      if (caught == 0 && record["guard"].value("excess", 0.0) == 1.0) caught = record["step"].get<int64_t>();
    EXPECT_EQ(caught % 20, 1) << caught;
    EXPECT_GT(caught, 20);
    EXPECT_EQ(folder.csv("back").size(), 100u);  // each step once
  }
}

// The first part of a comparison is in the checkpoint; the run that resumes does not continue it.
TEST(Guard, AnOpenComparisonIsDroppedByAnotherConfig) {
  const TrainFolder folder;
  const Overrides fp8 = {"precision.fp8=hybrid"}, guard = {"guard.every=3", "guard.compare_steps=2"};
  const Result first =
      folder.run("a", fp8 + guard + Overrides{"training.train_steps=6", "checkpoint.save_every=1"});
  ASSERT_EQ(first.code, 0) << first.error;
  const Overrides inside = {"checkpoint.resume=" + folder.checkpoint("a", 4)};
  for (const auto& [run, overrides] : std::vector<std::pair<std::string, Overrides>>{
           {"without", fp8},
           {"bf16", guard + fp8 + Overrides{"precision.fp8_until_step=4"}},
           {"rate", guard + fp8 + Overrides{"optimizer.lr=0.002"}}}) {
    const Result result = folder.run(run, inside + overrides);
    EXPECT_EQ(result.code, 0) << result.error;
    TE_EXPECT_CONTAINS(result.out, "guard: the comparison that began after step 3 is dropped: ");
    EXPECT_TRUE(guard_records(folder, run).empty());
  }
}

TEST(Guard, InvalidKeysAreRefused) {
  const TrainFolder folder;
  expect_refused(folder.run("off", {"guard.every=2"}), "precision.fp8 is off");
  expect_refused(folder.run("long", kTinyFp8 + Overrides{"guard.every=2", "guard.compare_steps=2"}),
                 "guard.compare_steps (2)");
}

}  // namespace
}  // namespace te::testing
