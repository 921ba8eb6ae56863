// FP8 in some steps of a run: outside of them the run is bitwise equal to a BF16 run, the first FP8 step has suitable
// scales, and the run may be interrupted anywhere.
#include "train/step_precision.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "te_train_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;
/// Sizes that two tensor-parallel ranks can divide in FP8.
const Overrides kBf16 = {"model.ffn_hidden_size=64", "checkpoint.save_every=1", "logging.fp8_stats_every=1"};
const Overrides kAlwaysFp8 = kBf16 + Overrides{"precision.fp8=hybrid"};

/// Steps [first, last] of one column.
std::vector<double> part(const TrainFolder& folder, const std::string& name, const char* column,
                         int64_t first, int64_t last) {
  const std::vector<double> all = folder.column(name, column);
  EXPECT_GE(static_cast<int64_t>(all.size()), last) << name;
  return {all.begin() + (first - 1), all.begin() + std::min<int64_t>(last, std::ssize(all))};
}

void expect_equal_steps(const TrainFolder& folder, const std::string& a, const std::string& b, int64_t first,
                        int64_t last) {
  for (const char* column : {"loss", "grad_norm"})
    EXPECT_EQ(part(folder, a, column, first, last), part(folder, b, column, first, last)) << column;
}

TEST(StepPrecision, DependsOnScheduleAndGuard) {
  config::PrecisionConfig precision;
  precision.fp8_from_step = 3;
  precision.fp8_until_step = 5;
  EXPECT_FALSE(train::step_in_bf16(precision, 0, 1));  // FP8 is off
  precision.fp8 = config::Fp8Mode::hybrid;
  for (const int64_t step : {1, 2, 3, 4, 6}) EXPECT_TRUE(train::step_in_bf16(precision, 4, step)) << step;
  EXPECT_FALSE(train::step_in_bf16(precision, 4, 5));
  EXPECT_FALSE(train::step_in_bf16(precision, 0, 3));
}

// A fraction of no values must not be 0, which would look like a perfect quantization.
TEST(StepPrecision, Bf16StepHasNoSaturatedOrUnderflowFractions) {
  const TrainFolder folder;
  run(folder, "a", kAlwaysFp8 + Overrides{"precision.fp8_from_step=3", "training.train_steps=4"});
  int of_bf16 = 0, of_fp8 = 0;
  for (const json& record : folder.records("a")) {
    if (!record.contains("fp8")) continue;
    const bool bf16 = record["step"] < 3;
    for (const json& operand : record["fp8"]) {
      ++(bf16 ? of_bf16 : of_fp8);
      for (const char* share : {"saturated", "flushed"}) {
        EXPECT_EQ(operand[share].is_null(), bf16) << record["step"] << operand;
      }
    }
  }
  EXPECT_GT(of_bf16, 0);
  EXPECT_GT(of_fp8, 0);
}

TEST(StepPrecision, OutsideOfTheScheduleEqualsABf16Run) {
  const TrainFolder folder;
  const std::vector<std::pair<std::string, Overrides>> models = {
      {"llama", {"model.add_mlp_bias=true", "model.swiglu_clamp=0.5"}},
      {"gpt", {"model.family=gpt", "model.num_query_groups=4", "model.hidden_dropout=0.1"}}};
  const std::vector<std::pair<std::string, Overrides>> recipes = {
      {"delayed", {"precision.fp8_keep_weights=none"}},
      {"blockwise", {"precision.fp8_recipe=blockwise", "training.recompute=full"}},
      {"mxfp8", {"precision.fp8_recipe=mxfp8"}},
      {"nvfp4", {"precision.fp8_recipe=nvfp4"}},
      {"mixed",
       {"precision.fp8_output_layer=true", "training.recompute=selective",
        "precision.overrides=linear_fc2 input: bf16; layers 0 linear_qkv: tensorwise"}}};
  for (const auto& [family, keys] : models) {
    run(folder, family, kBf16 + keys);
    for (const auto& [recipe, more] : recipes) {
      const std::string name = family + "_" + recipe;
      SCOPED_TRACE(name);
      const Overrides all = kAlwaysFp8 + keys + more;
      run(folder, name, all + Overrides{"precision.fp8_from_step=3", "precision.fp8_until_step=4"});
      expect_equal_steps(folder, name, family, 1, 2);
      EXPECT_NE(part(folder, name, "loss", 3, 3), part(folder, family, "loss", 3, 3));
      // Steps after the last FP8 step equal those of a BF16 run from its checkpoint.
      run(folder, name + "_on", kBf16 + keys + Overrides{"checkpoint.resume=" + folder.checkpoint(name, 4)});
      EXPECT_EQ(part(folder, name, "loss", 5, 6), folder.column(name + "_on", "loss"));
      EXPECT_EQ(part(folder, name, "grad_norm", 5, 6), folder.column(name + "_on", "grad_norm"));
      std::vector<bool> in_fp8;
      for (const json& record : folder.records(name)) in_fp8.push_back(record["in_fp8"].get<bool>());
      EXPECT_EQ(in_fp8, (std::vector<bool>{false, false, true, true, false, false}));
    }
    EXPECT_FALSE(folder.records(family).at(0).contains("in_fp8"));
  }
  TE_EXPECT_CONTAINS(read_file(folder.run_folder("llama_delayed") + "/start.txt"),
                     "FP8 in steps 3 to 4, all other steps in bf16");
}

/// The operands in the FP8 health of a step, as "LINEAR ROLE".
std::vector<std::string> operands_of(const json& record) {
  std::vector<std::string> names;
  for (const json& operand : record.value("fp8", json::array()))
    names.push_back(operand["linear"].get<std::string>() + " " + operand["role"].get<std::string>());
  return names;
}

TEST(StepPrecision, Bf16StepsRecordOperandsWithHistory) {
  const TrainFolder folder;
  const Overrides scheduled =
      kAlwaysFp8 + Overrides{"precision.fp8_from_step=3", "precision.fp8_until_step=4"};
  run(folder, "tensorwise", scheduled + Overrides{"precision.fp8_recipe=tensorwise"});
  run(folder, "mixed", scheduled + Overrides{"precision.overrides=linear_fc2: tensorwise"});
  const std::vector<json> tensorwise = folder.records("tensorwise"), mixed = folder.records("mixed");
  for (size_t i = 0; i < 6; ++i) {
    SCOPED_TRACE(i + 1);
    const bool in_fp8 = i == 2 || i == 3;
    const size_t all = 2 * 4 * 3;  // layers, linears, roles
    EXPECT_EQ(operands_of(tensorwise.at(i)).size(), in_fp8 ? all : 0);
    EXPECT_EQ(operands_of(mixed.at(i)).size(), in_fp8 ? all : all - 2 * 3);
    for (const std::string& name : operands_of(mixed.at(i)))
      EXPECT_TRUE(in_fp8 || name.find("linear_fc2") == std::string::npos) << name;
  }
}

/// Checks that a run interrupted after any step and resumed ends bitwise equal.
void expect_resumed_alike(const TrainFolder& folder, const std::string& name, const Overrides& overrides) {
  SCOPED_TRACE(name);
  const Overrides all =
      kAlwaysFp8 + overrides + Overrides{"precision.fp8_from_step=3", "precision.fp8_until_step=4"};
  run(folder, name, all);
  for (int64_t step = 1; step <= 5; ++step) {
    const std::string cut = name + "_" + std::to_string(step);
    SCOPED_TRACE(cut);
    run(folder, cut, all + Overrides{"checkpoint.resume=" + folder.checkpoint(name, step)});
    EXPECT_EQ(folder.column(cut, "loss"), part(folder, name, "loss", step + 1, 6));
    EXPECT_TRUE(folder.checkpoint_bytes(cut, 6) == folder.checkpoint_bytes(name, 6));
  }
}

TEST(StepPrecision, MayBeInterruptedAroundASwitch) {
  const TrainFolder folder;
  expect_resumed_alike(folder, "delayed", {"training.eval_interval=1"});
  expect_resumed_alike(folder, "recomputed",
                       {"training.recompute=selective", "optimizer.store_param_remainders=true"});
  expect_resumed_alike(folder, "mixed",
                       {"training.recompute=full", "precision.fp8_output_layer=true",
                        "precision.overrides=linear_fc2 wgrad: bf16; layers 0 linear_qkv: blockwise"});
}

TEST(StepPrecision, MayBeInterruptedAroundASwitchInAnyLayout) {
  TrainFolder folder;
  folder.use_ranks(2);
  expect_resumed_alike(folder, "tp_sp", {"parallel.tensor=2", "parallel.sequence=true"});
  // One stage has nothing in FP8, but takes part in the calibration.
  expect_resumed_alike(
      folder, "pp",
      {"parallel.pipeline=2", "parallel.schedule=zero_bubble", "precision.first_layers_bf16=1"});
  // One stage has no history.
  expect_resumed_alike(folder, "pp_mixed",
                       {"parallel.pipeline=2", "precision.overrides=layers 0: blockwise"});
  expect_resumed_alike(folder, "dp", {"parallel.bucket_size=1000"});
}

// With only the most recent amax, earlier records do not matter: a run without records and one that followed the
// schedule take the same steps.
TEST(StepPrecision, Bf16RunResumedInFp8FollowsTheSchedule) {
  const TrainFolder folder;
  const Overrides recent = {"precision.amax_compute_algo=most_recent"};
  run(folder, "scheduled", kAlwaysFp8 + recent + Overrides{"precision.fp8_from_step=4"});
  run(folder, "bf16", kBf16);
  const Overrides on = recent + Overrides{"checkpoint.resume=" + folder.checkpoint("bf16", 3)};
  run(folder, "on", kAlwaysFp8 + on);
  EXPECT_EQ(folder.column("on", "loss"), part(folder, "scheduled", "loss", 4, 6));
  EXPECT_EQ(folder.column("on", "grad_norm"), part(folder, "scheduled", "grad_norm", 4, 6));
}

// Calibration finds suitable scales at any depth. Scales from several microbatches round values differently, so that a
// few may exceed an amax by a rounding error.
TEST(StepPrecision, FirstStepOfADeepModelHasSuitableScales) {
  const TrainFolder folder;
  const Overrides deep = {"model.num_layers=36", "model.init_method_std=0.16", "training.train_steps=3",
                          "precision.fp8_recast=false"};
  const Overrides fp8 = kAlwaysFp8 + deep;
  run(folder, "bf16", kBf16 + deep);
  run(folder, "scheduled", fp8 + Overrides{"precision.fp8_from_step=3"});
  run(folder, "on", fp8 + Overrides{"checkpoint.resume=" + folder.checkpoint("bf16", 2)});
  const json bf16 = folder.records("bf16").back();
  for (const char* which : {"scheduled", "on"}) {
    const json record = folder.records(which).back();
    ASSERT_EQ(record["step"], 3);
    ASSERT_EQ(record["fp8"].size(), 36u * 12);
    for (const json& operand : record["fp8"])
      EXPECT_LE(operand["saturated"].get<double>(), 0.01) << which << operand;
    // The gradient norm of such a deep model is unreliable: another BLAS kernel changes it from 21 to 35 in BF16 alone.
    const double expected = bf16["loss"].get<double>();
    EXPECT_NEAR(record["loss"].get<double>(), expected, 0.05 * expected);
  }
}

TEST(StepPrecision, GuardComparesOnlyFp8Steps) {
  const TrainFolder folder;
  const Overrides scheduled =
      kAlwaysFp8 + Overrides{"precision.fp8_from_step=4", "precision.fp8_until_step=5"};
  run(folder, "plain", scheduled);
  run(folder, "guarded", scheduled + Overrides{"guard.every=2", "guard.compare_steps=1"});
  EXPECT_TRUE(folder.checkpoint_bytes("guarded", 6) == folder.checkpoint_bytes("plain", 6));
  std::vector<int64_t> compared;
  for (const json& record : folder.records("guarded"))
    if (record.contains("guard")) compared.push_back(record["step"].get<int64_t>());
  EXPECT_EQ(compared, std::vector<int64_t>{5});
}

}  // namespace
}  // namespace te::testing
