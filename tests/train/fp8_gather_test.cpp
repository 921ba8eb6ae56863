// Gathers of FP8 weights in whole runs with two data-parallel ranks: all output is bitwise equal to that of a run that
// gathers BF16 values, whatever else reads or changes the weights.
#include <nlohmann/json.hpp>

#include "core/memory_plan.h"
#include "te_train_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;

const Overrides kGatherFp8 = {"precision.fp8=hybrid",      "model.ffn_hidden_size=64",
                              "parallel.bucket_size=1000", "logging.fp8_stats_every=2",
                              "training.eval_interval=2",  "training.eval_microbatches=2"};
/// Statistics read values before quantization, so a run that may record some gathers BF16 values. It never does here.
const std::string kReadsValues = "logging.fp8_statistics_every=1000";
const Overrides kWithout = {kReadsValues};
const Overrides kFp32Scales = {"precision.fp8_recipe=tensorwise", "precision.fp8_scale_format=fp32"};

/// Losses, gradient norms and FP8 records of metrics.jsonl.
json kept_records(const TrainFolder& folder, const std::string& run) {
  json result = json::array();
  for (const json& record : folder.records(run)) {
    json& kept = result.emplace_back();
    for (const char* key : {"step", "loss", "grad_norm", "valid_loss", "fp8"})
      if (record.contains(key)) kept[key] = record.at(key);
  }
  return result;
}

void expect_same_run(const TrainFolder& folder, const std::string& run, const std::string& other) {
  SCOPED_TRACE(run);
  const json own = kept_records(folder, run), others = kept_records(folder, other);
  EXPECT_EQ(own.size(), 6u);
  for (size_t i = 0; i < std::min(own.size(), others.size()); ++i) EXPECT_EQ(own[i], others[i]);
  EXPECT_TRUE(own.at(1).contains("fp8"));
  EXPECT_EQ(folder.checkpoint_bytes(run, 6), folder.checkpoint_bytes(other, 6));
}

TEST(Fp8GatherOfARun, ChangesNothingThatItWrites) {
  TrainFolder folder;
  folder.use_ranks(2);
  const std::vector<std::pair<std::string, Overrides>> forms = {
      {"delayed", {}},
      {"tensorwise", kFp32Scales},
      {"margin", kFp32Scales + Overrides{"precision.margin=1"}},
      {"remainders", {"optimizer.store_param_remainders=true"}},
      {"both_forms", {"precision.fp8_keep_weights=both"}},
      {"offloaded", {"optimizer.offload=state"}},
      {"offloaded_remainders", {"optimizer.offload=state", "optimizer.store_param_remainders=true"}},
      {"muon", {"optimizer.name=muon"}},
      {"muon_remainders",
       {"optimizer.name=muon", "optimizer.store_param_remainders=true", "parallel.shard=gradients"}},
      {"sharded_parameters", {"parallel.shard=parameters"}},
      {"sharded_parameters_remainders",
       kFp32Scales + Overrides{"optimizer.store_param_remainders=true", "parallel.shard=parameters"}},
      {"fp8_moments", {"optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=fp8"}}};
  for (const auto& [name, form] : forms) {
    run(folder, name, kGatherFp8 + form);
    run(folder, name + "_bf16", kGatherFp8 + form + kWithout);
    expect_same_run(folder, name, name + "_bf16");
  }
}

// In dry runs: half the bytes for the weights of layers.
TEST(Fp8GatherOfARun, ReportsWhatIsGathered) {
  TrainFolder folder;
  const std::string plan = "--config " + (folder / "base.yaml") +
                           " --ranks 2 --dry-run --set precision.fp8=hybrid --set model.ffn_hidden_size=64";
  // Two layers of 32 x (32 + 2 * 16 + 32 + 3 * 64) weights and two norm weights, each in full granules of 128;
  // embedding, final norm and output layer with 384 rows.
  const int64_t layers = 2 * (32 * (32 + 2 * 16 + 32 + 3 * 64) + 2 * 128), ends = 2 * 384 * 32 + 128;
  const int64_t padded_ends = ends + 128;  // two equal segments of full granules
  TE_EXPECT_CONTAINS(
      folder.run_raw(plan).out,
      fmt::format("gather: {} of FP8 weights and {} of other parameters once per step over 2 ranks\n",
                  human_bytes(layers), human_bytes(2 * padded_ends)));
  TE_EXPECT_CONTAINS(folder.run_raw(plan + " --set " + kReadsValues).out,
                     fmt::format("gather: {} of parameters once per step over 2 ranks\n",
                                 human_bytes(2 * (layers + padded_ends))));
  const std::string sharded = plan + " --set parallel.shard=parameters";
  TE_EXPECT_CONTAINS(folder.run_raw(sharded).out,
                     fmt::format("gather: {} of parameters once per step, {} of FP8 weights twice per "
                                 "microbatch over 2 ranks\n",
                                 human_bytes(2 * padded_ends), human_bytes(layers)));
  TE_EXPECT_CONTAINS(folder.run_raw(sharded + " --set " + kReadsValues).out,
                     fmt::format("gather: {} of parameters once per step, {} of parameters twice per "
                                 "microbatch over 2 ranks\n",
                                 human_bytes(2 * padded_ends), human_bytes(2 * layers)));
}

// In dry runs of experts: each gradient group gathers its own weights, and one without copies gathers nothing.
TEST(Fp8GatherOfARun, ReportsTheWeightsOfEachGroup) {
  TrainFolder folder;
  const auto gathered = [&](const Overrides& layout) {
    std::string arguments = "--config " + (folder / "base.yaml") + " --ranks 4 --dry-run";
    for (const std::string& item :
         Overrides{"precision.dtype=fp32", "model.ffn_hidden_size=64", "model.num_moe_experts=4",
                   "model.moe_ffn_hidden_size=32", "parallel.bucket_size=1", "training.global_batch_size=8"} +
             layout)
      arguments += " --set " + item;
    const std::string out = folder.run_raw(arguments).out;
    const size_t at = out.find("gather: ");
    return at == std::string::npos ? out : out.substr(at, out.find('\n', at) - at);
  };
  // Two layers: attention and norms; four routers; four experts of 3 x 32 x 32. Ends: embedding, norm, output layer.
  const auto full = [](int64_t count, int64_t ranks) {
    return (count + 128 * ranks - 1) / (128 * ranks) * 128 * ranks;
  };
  const int64_t attention = 32 * (32 + 2 * 16 + 32) + 2 * 128, router = 128, expert = 3 * 32 * 32;
  const int64_t ends = full(384 * 32, 4) + full(384 * 32 + 128, 4);
  const auto parameters = [](int64_t count) {
    return human_bytes(4 * count) + " of parameters once per step over ";
  };
  const int64_t dense = 2 * full(attention + router, 4) + ends;
  EXPECT_EQ(gathered({"parallel.expert=4"}), "gather: " + parameters(dense) + "4 ranks");
  EXPECT_EQ(gathered({"parallel.expert=2"}),
            "gather: " + parameters(dense) + "4 ranks; " + parameters(2 * full(2 * expert, 2)) + "2 ranks");
  EXPECT_EQ(gathered({}),
            "gather: " + parameters(2 * full(attention + router + 4 * expert, 4) + ends) + "4 ranks");
}

// A base is not gathered after the start; 128 rows of each adapter are full granules.
TEST(Fp8GatherOfARun, ReportsTheAdapterAlone) {
  TrainFolder folder;
  const std::string out =
      folder
          .run_raw("--config " + (folder / "base.yaml") +
                   " --ranks 2 --dry-run --set precision.fp8=hybrid --set model.ffn_hidden_size=64 --set "
                   "adapter.type=lora --set adapter.rank=8 --set adapter.target=down --set "
                   "checkpoint.init_from=base")
          .out;
  // Two layers, A [8, 64] and B [32, 8].
  TE_EXPECT_CONTAINS(out, fmt::format("gather: {} of parameters once per step over 2 ranks\n",
                                      human_bytes(2 * 2 * (8 * 64 + 32 * 8))));
  TE_EXPECT_CONTAINS(out,
                     fmt::format("base: {} in FP8, ", human_bytes(2 * 32 * (32 + 2 * 16 + 32 + 3 * 64))));
}

// A rank that quantizes full weights predicts such scales, and its records count the requantizations. Sharded weights
// need no prediction.
TEST(Fp8GatherOfARun, NeedsNoPredictionOfPowerOfTwoScales) {
  TrainFolder folder;
  folder.use_ranks(2);
  const Overrides powers =
      kGatherFp8 + Overrides{"precision.fp8_recipe=tensorwise", "precision.fp8_scale_format=power_of_two"};
  run(folder, "fp8", powers);
  run(folder, "bf16", powers + kWithout);
  EXPECT_EQ(folder.column("fp8", "loss"), folder.column("bf16", "loss"));
  EXPECT_EQ(folder.column("fp8", "grad_norm"), folder.column("bf16", "grad_norm"));
  EXPECT_EQ(folder.checkpoint_bytes("fp8", 6), folder.checkpoint_bytes("bf16", 6));
}

// What is gathered may change at a resume: checkpoints have FP32 master weights and no FP8 weights.
TEST(Fp8GatherOfARun, ResumesBitwiseEqual) {
  TrainFolder folder;
  folder.use_ranks(2);
  run(folder, "whole", kGatherFp8);
  for (const Overrides& before : {Overrides{}, kWithout}) {
    for (const Overrides& after : {Overrides{}, kWithout}) {
      const std::string name =
          std::string("resumed") + (before.empty() ? "_fp8" : "_bf16") + (after.empty() ? "_fp8" : "_bf16");
      run(folder, name, kGatherFp8 + before + Overrides{"training.train_steps=3", "optimizer.decay_steps=6"});
      run(folder, name, kGatherFp8 + after + Overrides{"checkpoint.resume=auto"});
      SCOPED_TRACE(name);
      EXPECT_EQ(folder.column(name, "loss"), folder.column("whole", "loss"));
      EXPECT_EQ(folder.checkpoint_bytes(name, 6), folder.checkpoint_bytes("whole", 6));
    }
  }
}

// A BF16 checkpoint resumes in FP8: scales are calibrated, and those passes record the weights' amaxes.
TEST(Fp8GatherOfARun, CalibratesLikeARunWithout) {
  TrainFolder folder;
  folder.use_ranks(2);
  for (const std::string name : {"a", "b"}) {
    Overrides bf16 = kGatherFp8 + Overrides{"training.train_steps=3", "optimizer.decay_steps=6"};
    bf16.front() = "precision.fp8=off";
    run(folder, name, bf16);
    run(folder, name,
        kGatherFp8 + Overrides{"checkpoint.resume=auto"} + (name == "a" ? Overrides{} : kWithout));
  }
  EXPECT_EQ(kept_records(folder, "a"), kept_records(folder, "b"));
  EXPECT_EQ(folder.checkpoint_bytes("a", 6), folder.checkpoint_bytes("b", 6));
}

}  // namespace
}  // namespace te::testing
