// Runs whose values overflow the scales of earlier steps (precision.fp8_recast): nothing saturates in any layout, and
// recomputation, resuming and statistics see the same quantization.
#include <nlohmann/json.hpp>

#include "te_train_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;
/// A learning rate at which values grow from step to step, and a record of every step.
const Overrides kGrowing = {"precision.fp8=hybrid",  "model.num_layers=8",        "model.ffn_hidden_size=64",
                            "optimizer.lr=0.03",     "optimizer.warmup_steps=0",  "training.train_steps=8",
                            "optimizer.min_lr=0.03", "logging.fp8_stats_every=1", "optimizer.decay_steps=8"};

/// The largest fractions of saturated values and of requantizations, over all operands and steps.
struct Most {
  double saturated = 0, requantize = 0;
  size_t operands = 0;
};
Most most(const TrainFolder& folder, const std::string& run) {
  Most result;
  for (const json& record : folder.records(run)) {
    for (const json& operand : record.at("fp8")) {
      ++result.operands;
      result.saturated = std::max(result.saturated, operand.at("saturated").get<double>());
      EXPECT_EQ(operand.contains("recast"), operand.at("role") != "weight") << operand;
      if (!operand.contains("recast")) continue;
      result.requantize = std::max(result.requantize, operand.at("recast").get<double>());
    }
  }
  return result;
}

void expect_no_saturation(const TrainFolder& folder, const std::string& name) {
  const Most found = most(folder, name);
  EXPECT_EQ(found.operands, 8u * 8 * 12) << name;
  EXPECT_EQ(found.saturated, 0.0) << name;
  EXPECT_GT(found.requantize, 0.0) << name;
}

TEST(Requantize, NothingSaturatesInADeepModelWhoseValuesGrow) {
  const TrainFolder folder;
  for (const Overrides& family : {Overrides{}, Overrides{"model.family=gpt", "model.num_query_groups=4"}}) {
    const std::string name = family.empty() ? "llama" : "gpt";
    run(folder, name, kGrowing + family);
    expect_no_saturation(folder, name);
    run(folder, name + "_off", kGrowing + family + Overrides{"precision.fp8_recast=false"});
    double saturated = 0;
    for (const json& record : folder.records(name + "_off")) {
      for (const json& operand : record.at("fp8")) {
        saturated = std::max(saturated, operand.at("saturated").get<double>());
        EXPECT_FALSE(operand.contains("recast"));
      }
    }
    EXPECT_GT(saturated, 1e-4) << name;
  }
}

TEST(Requantize, RecomputationAndResumingChangeNoBit) {
  const TrainFolder folder;
  const Overrides all = kGrowing + Overrides{"checkpoint.save_every=4"};
  run(folder, "none", all);
  for (const char* recompute : {"selective", "full"}) {
    run(folder, recompute, all + Overrides{std::string("training.recompute=") + recompute});
    EXPECT_EQ(folder.column(recompute, "grad_norm"), folder.column("none", "grad_norm")) << recompute;
    EXPECT_TRUE(folder.checkpoint_bytes(recompute, 8) == folder.checkpoint_bytes("none", 8)) << recompute;
    expect_no_saturation(folder, recompute);
  }
  run(folder, "resumed", all + Overrides{"checkpoint.resume=" + folder.checkpoint("none", 4)});
  EXPECT_TRUE(folder.checkpoint_bytes("resumed", 8) == folder.checkpoint_bytes("none", 8));
}

// Gradients that are zero in calibration and in the first step, because weights start as zeros, are quantized as with
// current scales when they appear. Checkpoints keep that their scales are not known.
TEST(Requantize, GradientsThatAppearLaterDoNotUnderflow) {
  const TrainFolder folder;
  const Overrides all = {
      "precision.fp8=hybrid",      "model.zero_init=[linear_proj, linear_fc2, output_layer]",
      "model.ffn_hidden_size=64",  "training.train_steps=4",
      "logging.fp8_stats_every=1", "checkpoint.save_every=1"};
  run(folder, "delayed", all);
  run(folder, "current",
      all + Overrides{"precision.fp8_recipe=tensorwise", "precision.fp8_scale_format=fp32"});
  const std::vector<json> delayed = folder.records("delayed"), current = folder.records("current");
  int unknown = 0;
  for (size_t step = 0; step < delayed.size(); ++step) {
    for (size_t i = 0; i < delayed[step].at("fp8").size(); ++i) {
      const json &one = delayed[step]["fp8"][i], &other = current[step]["fp8"][i];
      unknown += one.at("scale").is_null() ? 1 : 0;
      EXPECT_FALSE(other.at("scale").is_null()) << other;
      if (one.at("amax").get<double>() == 0) continue;
      EXPECT_LT(one.at("flushed").get<double>(), other.at("flushed").get<double>() + 0.05)
          << step + 1 << one << other;
    }
  }
  EXPECT_GT(unknown, 0);
  run(folder, "resumed", all + Overrides{"checkpoint.resume=" + folder.checkpoint("delayed", 1)});
  EXPECT_TRUE(folder.checkpoint_bytes("resumed", 4) == folder.checkpoint_bytes("delayed", 4));
}

// Statistics and validation read the same scales, and do not change them.
TEST(Requantize, StatisticsAndValidationChangeNoBit) {
  const TrainFolder folder;
  run(folder, "plain", kGrowing + Overrides{"training.eval_interval=0"});
  run(folder, "watched", kGrowing + Overrides{"training.eval_interval=1", "logging.fp8_statistics_every=1"});
  EXPECT_TRUE(folder.checkpoint_bytes("watched", 8) == folder.checkpoint_bytes("plain", 8));
  for (const json& record : folder.records("watched", "fp8_statistics.jsonl")) {
    EXPECT_FALSE(record.at("operands").empty());
    for (const json& operand : record.at("operands")) {
      if (operand.at("recipe") == "none") continue;  // not quantized
      EXPECT_EQ(operand.at("saturated").get<double>(), 0.0) << operand;
    }
  }
}

// Tensor-parallel ranks with rows of one tensor share its scale; those with columns have separate scales, as
// data-parallel ranks do for their microbatches. Recomputed passes exchange amaxes in the same order.
TEST(Requantize, NothingSaturatesInAnyLayout) {
  TrainFolder folder;
  run(folder, "one", kGrowing);
  const std::vector<double> expected = folder.column("one", "loss");
  folder.use_ranks(2);
  const std::vector<std::pair<std::string, Overrides>> layouts = {
      {"tp", {"parallel.tensor=2"}},
      {"tp_sp", {"parallel.tensor=2", "parallel.sequence=true"}},
      {"tp_sp_overlap",
       {"parallel.tensor=2", "parallel.sequence=true", "parallel.tensor_overlap=2",
        "training.micro_batch_size=4", "training.recompute=selective"}},
      {"tp_sp_full", {"parallel.tensor=2", "parallel.sequence=true", "training.recompute=full"}},
      {"pp", {"parallel.pipeline=2", "parallel.schedule=zero_bubble"}},
      {"cp", {"parallel.context=2"}},
      {"dp", {}}};
  for (const auto& [name, layout] : layouts) {
    run(folder, name, kGrowing + layout);
    expect_no_saturation(folder, name);
    const std::vector<double> losses = folder.column(name, "loss");
    ASSERT_EQ(losses.size(), expected.size());
    EXPECT_NEAR(losses[0], expected[0], 2e-3 * expected[0]) << name;
  }
  // With sequence parallelism shards have one scale, that of the full tensor without it: in FP32 the two runs differ
  // only in summation order. A shard with another scale would be off by a factor.
  for (const char* name : {"tp", "tp_sp"}) {
    const Overrides layout = {"parallel.tensor=2",
                              std::string("parallel.sequence=") + (name[2] != 0 ? "true" : "false")};
    run(folder, name + std::string("_fp32"), kGrowing + layout + Overrides{"precision.dtype=fp32"});
  }
  const std::vector<double> whole = folder.column("tp_fp32", "loss"),
                            shards = folder.column("tp_sp_fp32", "loss");
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(shards[i], whole[i], 1e-3 * whole[i]) << i;
  // Recomputed shards have the same scales.
  EXPECT_EQ(folder.column("tp_sp_full", "grad_norm"), folder.column("tp_sp", "grad_norm"));
}

}  // namespace
}  // namespace te::testing
