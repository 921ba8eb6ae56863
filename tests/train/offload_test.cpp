// optimizer.offload in whole runs: bitwise equal to runs without, whatever else reads or writes the state; and the text
// of its plan.
#include <nlohmann/json.hpp>

#include "te_train_testing.h"
#include "train/memory_check.h"
#include "train/step_runner.h"
#include "train/summary.h"

namespace te::testing {
namespace {

const std::string kModes[] = {"moments", "state"};

/// Checks that runs with each mode have the losses, norms and checkpoints of the run without. Returns the number of
/// runs.
int expect_offloading_changes_nothing(const TrainFolder& folder, const std::string& name,
                                      const Overrides& overrides, int64_t steps = 6) {
  SCOPED_TRACE(name);
  const Result plain = folder.run(name, overrides);
  EXPECT_EQ(plain.code, 0) << plain.error;
  int runs = 0;
  for (const std::string& mode : kModes) {
    SCOPED_TRACE(mode);
    std::string run = name;
    run += "_" + mode;
    const Result result = folder.run(run, overrides + Overrides{"optimizer.offload=" + mode});
    EXPECT_EQ(result.code, 0) << result.error;
    if (result.code != 0 || plain.code != 0) continue;
    EXPECT_EQ(folder.column(run, "loss"), folder.column(name, "loss"));
    EXPECT_EQ(folder.column(run, "grad_norm"), folder.column(name, "grad_norm"));
    EXPECT_EQ(folder.column(run, "loss").size(), static_cast<size_t>(steps));
    EXPECT_EQ(folder.checkpoint_bytes(run, steps), folder.checkpoint_bytes(name, steps));
    ++runs;
  }
  return runs;
}

const Overrides kRemainders = {"optimizer.store_param_remainders=true"};
Overrides moments(const std::string& first, const std::string& second) {
  return {"optimizer.exp_avg_dtype=" + first, "optimizer.exp_avg_sq_dtype=" + second};
}

TEST(Offload, ChangesNoBitOfAnyOptimizerState) {
  const TrainFolder folder;
  int runs = 0;
  runs += expect_offloading_changes_nothing(folder, "fp32", {"precision.dtype=fp32"});
  runs += expect_offloading_changes_nothing(folder, "bf16", {"optimizer.clip_grad=0.1"});
  runs += expect_offloading_changes_nothing(folder, "fp8_weights_of_mains",
                                            kTinyFp8 + Overrides{"precision.fp8_keep_weights=both"});
  runs += expect_offloading_changes_nothing(folder, "remainders", kTinyFp8 + kRemainders);
  runs += expect_offloading_changes_nothing(folder, "moments_in_bf16", kTinyFp8 + moments("bf16", "bf16"));
  runs += expect_offloading_changes_nothing(folder, "moments_in_fp8", moments("fp8", "fp8"));
  runs += expect_offloading_changes_nothing(
      folder, "all_in_fewest_bits",
      kTinyFp8 + kRemainders + moments("fp8", "bf16") + Overrides{"optimizer.main_grad_dtype=bf16"});
  EXPECT_EQ(runs, 14);
}

// The state is copied and restored, and a checkpoint is written, while the last chunks may still be in transfer.
TEST(Offload, ChangesNoBitOfReadersOfTheState) {
  const TrainFolder folder;
  const Overrides saves = {"checkpoint.save_every=1", "training.eval_interval=2",
                           "training.eval_microbatches=1"};
  expect_offloading_changes_nothing(folder, "background", saves);
  expect_offloading_changes_nothing(folder, "foreground",
                                    saves + kRemainders + Overrides{"checkpoint.async=false"});
  for (const std::string& mode : kModes)
    EXPECT_EQ(folder.checkpoint_bytes("background_" + mode, 3), folder.checkpoint_bytes("background", 3));
  expect_offloading_changes_nothing(
      folder, "guard",
      kTinyFp8 + Overrides{"guard.every=2", "guard.compare_steps=1", "guard.action=rollback",
                           "guard.tolerance=0.0000001", "guard.bf16_steps=2"});
  TE_EXPECT_CONTAINS(read_file(folder / "stdout"), "; from there, 2 steps run in BF16");
}

TEST(Offload, RunMayResumeWithAnotherMode) {
  const TrainFolder folder;
  const Overrides form = kTinyFp8 + moments("bf16", "fp8");
  ASSERT_EQ(folder.run("whole", form).code, 0);
  for (const auto& [first, second] :
       {std::pair{"none", "state"}, {"state", "none"}, {"moments", "state"}, {"state", "state"}}) {
    SCOPED_TRACE(std::string(first) + " " + second);
    const std::string run = std::string(first) + "_" + second;
    const Overrides cut =
        form + Overrides{std::string("optimizer.offload=") + first, "training.train_steps=3"};
    ASSERT_EQ(folder.run(run, cut).code, 0);
    const Result result = folder.run(
        run, form + Overrides{std::string("optimizer.offload=") + second, "checkpoint.resume=auto"});
    ASSERT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.out.find("from the next step on"), std::string::npos) << result.out;
    EXPECT_EQ(folder.column(run, "loss"), folder.column("whole", "loss"));
    EXPECT_EQ(folder.checkpoint_bytes(run, 6), folder.checkpoint_bytes("whole", 6));
  }
}

TEST(Offload, ChangesNoBitOfALayout) {
  TrainFolder folder;
  folder.use_ranks(2);
  const Overrides small = kTinyFp8 + Overrides{"parallel.bucket_size=1000"};
  int runs = 0;
  for (const std::string shard : {"optimizer", "gradients", "parameters"})
    runs += expect_offloading_changes_nothing(folder, "shard_" + shard,
                                              small + Overrides{"parallel.shard=" + shard});
  runs += expect_offloading_changes_nothing(folder, "shared_mains", small + kRemainders);
  runs += expect_offloading_changes_nothing(folder, "shared_fp32",
                                            {"precision.dtype=fp32", "parallel.bucket_size=1000"});
  runs += expect_offloading_changes_nothing(
      folder, "tensor",
      small + moments("bf16", "bf16") + Overrides{"parallel.tensor=2", "parallel.sequence=true"});
  runs += expect_offloading_changes_nothing(folder, "pipeline", small + Overrides{"parallel.pipeline=2"});
  EXPECT_EQ(runs, 14);
}

TEST(Offload, IsRefusedWithMuon) {
  const TrainFolder folder;
  expect_refused(folder.run("muon", {"optimizer.name=muon", "optimizer.offload=moments"}),
                 "optimizer.offload moments is for optimizer.name adamw");
}

// --- plans -------------------------------------------------------------------------------------------------

constexpr int64_t kGiB = int64_t{1} << 30;

config::Config shipped(const std::string& name, Overrides overrides) {
  overrides.push_back("training.device=cpu");
  return config::load_config(std::string(TE_SOURCE_DIR) + "/configs/" + name + ".yaml", overrides);
}

// docs/how-to/save-memory.md states it. A GPU of 141 GB has 139 GiB; a host often has 128 GiB per GPU.
TEST(OffloadPlan, Of13BFitsOneGpu) {
  const Context context = Context::cpu();
  for (const std::string precision : {"bf16", "fp8"}) {
    const config::Config config = shipped("llama2_13b_" + precision, {"optimizer.offload=moments"});
    const train::StepRunner runner(config, context);
    EXPECT_LT(runner.plan().total_bytes(), 125 * kGiB) << precision;
    EXPECT_LT(runner.plan().total_host_bytes(), 110 * kGiB) << precision;
    // Two FP32 moments.
    EXPECT_NEAR(static_cast<double>(runner.plan().host_bytes(MemoryKind::optimizer)), 8 * 13015864320.0, 1e6);
    EXPECT_LE(runner.plan().bytes(MemoryKind::offload_slots), int64_t{512} << 20);
    EXPECT_GT(runner.plan().bytes(MemoryKind::offload_slots), int64_t{511} << 20);
    EXPECT_EQ(runner.plan().bytes(MemoryKind::main_params), 2 * int64_t{13015864320});
    // Control: without offload it does not fit.
    const train::StepRunner whole(shipped("llama2_13b_" + precision, {}), context);
    EXPECT_GT(whole.plan().total_bytes(), 139 * kGiB) << precision;
  }
}

TEST(OffloadPlan, MovesStateAndNothingElse) {
  const Context context = Context::cpu();
  const auto plan_of = [&](Overrides overrides) {
    return std::make_unique<train::StepRunner>(shipped("llama7b_fp8", std::move(overrides)), context);
  };
  const auto none = plan_of({}), moments = plan_of({"optimizer.offload=moments"}),
             state = plan_of({"optimizer.offload=state"});
  EXPECT_EQ(none->plan().total_host_bytes(), 0);
  for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::main_grads, MemoryKind::activations,
                                MemoryKind::scratch, MemoryKind::fp8_weights}) {
    EXPECT_EQ(moments->plan().bytes(kind), none->plan().bytes(kind)) << to_string(kind);
    EXPECT_EQ(state->plan().bytes(kind), none->plan().bytes(kind)) << to_string(kind);
  }
  EXPECT_EQ(moments->plan().bytes(MemoryKind::main_params), none->plan().bytes(MemoryKind::main_params));
  EXPECT_EQ(state->plan().bytes(MemoryKind::main_params), 0);
  EXPECT_EQ(state->plan().host_bytes(MemoryKind::main_params), none->plan().bytes(MemoryKind::main_params));
  EXPECT_LE(state->plan().bytes(MemoryKind::offload_slots), optim::kOffloadBufferBytes);
}

// FP8 weights cannot be quantized from FP32 master weights in host memory.
TEST(OffloadPlan, KeepsBf16WeightsIfMasterWeightsAreOffloaded) {
  const Context context = Context::cpu();
  const train::StepRunner moments(shipped("llama_1b_fp8", {"optimizer.offload=moments"}), context),
      state(shipped("llama_1b_fp8", {"optimizer.offload=state"}), context);
  EXPECT_GT(state.plan().bytes(MemoryKind::parameters), moments.plan().bytes(MemoryKind::parameters));
}

TEST(OffloadPlan, ReportsItsCost) {
  const Context context = Context::cpu();
  const config::Config config = shipped("llama2_13b_fp8", {"optimizer.offload=moments"});
  const train::StepRunner runner(config, context);
  // 104.1e9 bytes minus 0.5e9 in the slots, at 45e9 bytes/s.
  EXPECT_EQ(
      train::offload_summary(runner.plan(), config),
      "offload: Adam moments in host memory, 96.98 GiB per rank; on a GPU about 2.3 s per step, at 45 GB/s "
      "in each direction (PCIe 5.0 x16, as on an H200)\n");
  const config::Config without = shipped("llama7b_fp8", {});
  EXPECT_EQ(train::offload_summary(train::StepRunner(without, context).plan(), without), "");
}

TEST(OffloadPlan, IsRefusedWithoutEnoughHostMemory) {
  const Context context = Context::cpu();
  const config::Config config = shipped("llama7b_fp8", {"optimizer.offload=state"});
  const train::StepRunner runner(config, context);
  const int64_t device = runner.plan().total_bytes(), host = runner.plan().total_host_bytes();
  // On the CPU both are in the same memory.
  EXPECT_EQ(train::memory_shortage(runner.plan(), config, context, 1, {device + host, device + host}), "");
  TE_EXPECT_CONTAINS(train::memory_shortage(runner.plan(), config, context, 1, {device + host - 1, 1 << 30}),
                     "the memory plan needs " + human_bytes(device + host) + ", but this host has ");
  const std::string line =
      train::memory_shortage(runner.plan(), config, context, 1, {device + host, host - 1}, 0);
  TE_EXPECT_CONTAINS(line, "the memory plan needs " + human_bytes(host) + " of page-locked host memory");
  TE_EXPECT_CONTAINS(
      line, "optimizer.offload: moments; optimizer.exp_avg_dtype and exp_avg_sq_dtype: bf16 or fp8; ");
  EXPECT_EQ(line.find("guard"), std::string::npos) << line;
  // The guard's copy is added to it.
  TE_EXPECT_CONTAINS(
      train::memory_shortage(runner.plan(), config, context, 1, {device + 2 * host, host + 9}, 10),
      "options: guard.every: 0; ");
}

TEST(OffloadPlan, DryRunShowsBothMemories) {
  const TrainFolder folder;
  const Result result =
      folder.run_raw("--dry-run --config " TE_SOURCE_DIR
                     "/configs/llama2_13b_fp8.yaml --ranks 1 --set optimizer.offload=moments");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out,
                     "host memory (page-locked with a GPU):\n  optimizer moments            96.98 GiB\n");
  TE_EXPECT_CONTAINS(result.out, "offload: Adam moments in host memory");
}

}  // namespace
}  // namespace te::testing
