// Memory plans of the shipped configs: FP8 never needs more memory than BF16.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "train/execution.h"
#include "train/step_runner.h"

namespace te {
namespace {

struct Planned {
  int64_t total, fp8_weights;
};

Planned planned(const std::string& name) {
  const config::Config config =
      config::load_config(std::string(TE_SOURCE_DIR) + "/configs/" + name + ".yaml", {"training.device=cpu"});
  const Context context = Context::cpu();
  const train::StepRunner runner(config, context);  // plans; nothing is allocated
  return {runner.plan().total_bytes(), runner.plan().bytes(MemoryKind::fp8_weights)};
}

TEST(Plan, OfEveryShippedFp8ConfigIsSmallerThanInBf16) {
  for (const std::string name : {"quickstart", "gpt2_124m", "llama_1b", "llama7b"})
    EXPECT_LT(planned(name + "_fp8").total, planned(name + "_bf16").total) << name;
}

// With remainders, only BF16 weights and remainders of a weight are kept.
TEST(Plan, KeepsNoFp8WeightsWithRemainders) {
  EXPECT_EQ(planned("llama7b_fp8").fp8_weights, 0);
  EXPECT_GT(planned("llama_1b_fp8").fp8_weights, 0);
}

TEST(Plan, NormsWithoutGainsHaveNoParameters) {
  const auto plan_of = [](bool gain) {
    const config::Config config =
        config::load_config(std::string(TE_SOURCE_DIR) + "/configs/llama_1b_bf16.yaml",
                            {"training.device=cpu", fmt::format("model.norm_gain={}", gain)});
    const train::StepRunner runner(config, Context::cpu());
    std::map<MemoryKind, int64_t> bytes;
    for (const MemoryKind kind :
         {MemoryKind::parameters, MemoryKind::main_params, MemoryKind::main_grads, MemoryKind::optimizer})
      bytes[kind] = runner.plan().bytes(kind);
    return bytes;
  };
  const auto with = plan_of(true), without = plan_of(false);
  for (const auto& [kind, bytes] : with) EXPECT_LT(without.at(kind), bytes) << to_string(kind);
}

/// The largest plan of a job's ranks.
int64_t largest_plan(const std::string& name, int ranks) {
  const config::Config config =
      config::load_config(std::string(TE_SOURCE_DIR) + "/configs/" + name + ".yaml", {"training.device=cpu"});
  const parallel::ProcessGrid grid = parallel::ProcessGrid::of(
      ranks, static_cast<int>(config.parallel.tensor), 1, static_cast<int>(config.parallel.pipeline));
  int64_t largest = 0;
  for (int stage = 0; stage < grid[parallel::Axis::pipeline]; ++stage) {
    const parallel::Groups groups =
        parallel::Groups::dry_run(grid, grid.rank({{parallel::Axis::pipeline, stage}}));
    largest = std::max(largest, train::StepRunner(config, Context::cpu(), groups).plan().total_bytes());
  }
  return largest;
}

// A GPU of 141 GB has 139 GiB, some of it for CUDA and NCCL.
TEST(Plan, OfLargeConfigsFitsTheirGpus) {
  constexpr int64_t kGiB = int64_t{1} << 30, kFits = 130 * kGiB;
  for (const std::string precision : {"_bf16", "_fp8"}) {
    EXPECT_LT(largest_plan("llama3.1_8b" + precision, 4), kFits) << precision;
    EXPECT_LT(largest_plan("llama2_13b" + precision, 4), kFits) << precision;
    EXPECT_LT(largest_plan("llama3.1_70b" + precision, 32), kFits) << precision;
    // Control: it does not fit on fewer ranks.
    EXPECT_GT(largest_plan("llama2_13b" + precision, 1), kFits) << precision;
  }
}

// fc1's output of a rank has 1.9e9 and 3.8e9 elements; the second number exceeds 32 bits.
TEST(Plan, OfLongSequencesOnFourContextParallelRanks) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  for (const int64_t seq : {262144, 524288}) {
    const config::Config config = config::load_config(
        std::string(TE_SOURCE_DIR) + "/configs/llama3.1_8b_fp8.yaml",
        {"training.device=cpu", fmt::format("model.seq_length={}", seq), "training.recompute=full",
         "training.micro_batch_size=1", "training.global_batch_size=4", "parallel.tensor=1",
         "parallel.pipeline=1", "parallel.context=4", "parallel.shard=parameters"});
    const parallel::Groups groups = parallel::Groups::dry_run(parallel::ProcessGrid::of(4, 1, 4, 1), 0);
    const train::StepRunner runner(config, Context::cpu(), groups);
    // The residual stream before each of 32 layers, and two more tensors of its size; fc1's output and its gradient's
    // two FP8 layouts.
    const int64_t stream = seq / 4 * 4096 * 2, fc1_output = seq / 4 * 28672 * 2;
    EXPECT_NEAR(static_cast<double>(runner.plan().bytes(MemoryKind::activations)),
                static_cast<double>(34 * stream), 0.01 * static_cast<double>(34 * stream));
    EXPECT_GT(runner.plan().bytes(MemoryKind::scratch), 2 * fc1_output);
    // On GPUs of 80 GB the first one fits; the second one needs smaller optimizer state or offloading.
    EXPECT_EQ(runner.plan().total_bytes() < 76 * kGiB, seq == 262144);
  }
}

/// The plan of each of `ranks` data-parallel ranks.
int64_t planned_of(int ranks, const std::string& shard, MemoryKind kind) {
  const config::Config config =
      config::load_config(std::string(TE_SOURCE_DIR) + "/configs/llama7b_bf16.yaml",
                          {"training.device=cpu", "parallel.shard=" + shard,
                           "training.global_batch_size=" + std::to_string(16 * ranks)});
  const parallel::Groups groups = parallel::Groups::dry_run(parallel::ProcessGrid::of(ranks, 1, 1, 1), 0);
  return train::StepRunner(config, Context::cpu(), groups).plan().bytes(kind);
}

// A quarter of the 32 layers' 6.48e9 parameters, and slots for two layers. Embedding and output layer stay full.
TEST(Plan, ShardsLayersOverDataParallelRanks) {
  constexpr int64_t kLayer = 202'383'360, kLayers = 32 * kLayer, kEnds = 2 * int64_t{32000} * 4096;
  const auto near = [](int64_t actual, int64_t expected) {
    EXPECT_NEAR(static_cast<double>(actual), static_cast<double>(expected),
                2e-3 * static_cast<double>(expected));
  };
  near(planned_of(4, "optimizer", MemoryKind::parameters), 2 * (kLayers + kEnds));
  near(planned_of(4, "optimizer", MemoryKind::main_grads), 4 * (kLayers + kEnds));
  near(planned_of(4, "gradients", MemoryKind::parameters), 2 * (kLayers + kEnds));
  near(planned_of(4, "gradients", MemoryKind::main_grads), 4 * (kLayers / 4 + 2 * kLayer + kEnds));
  near(planned_of(4, "parameters", MemoryKind::parameters), 2 * (kLayers / 4 + 2 * kLayer + kEnds));
  near(planned_of(4, "parameters", MemoryKind::main_grads), 4 * (kLayers / 4 + 2 * kLayer + kEnds));
  // One data-parallel rank does not shard.
  near(planned_of(1, "parameters", MemoryKind::main_grads), 4 * (kLayers + kEnds));
}

/// Every buffer of each tensor-parallel rank.
std::vector<std::string> tensor_plans(const std::string& name, int tensor,
                                      const std::vector<std::string>& more) {
  std::vector<std::string> overrides{"training.device=cpu", "parallel.tensor=" + std::to_string(tensor),
                                     "parallel.sequence=true"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const config::Config config =
      config::load_config(std::string(TE_SOURCE_DIR) + "/configs/" + name + ".yaml", overrides);
  std::vector<std::string> plans;
  for (int rank = 0; rank < tensor; ++rank) {
    const parallel::Groups groups = parallel::Groups::dry_run(
        parallel::ProcessGrid::of(2 * tensor, tensor, 1, 1), rank, train::connect_options(config));
    plans.push_back(train::StepRunner(config, Context::cpu(), groups).plan().buffers());
  }
  return plans;
}

// Ranks that write to each other's memory assume the same offsets as in their own.
TEST(Plan, OfTensorParallelRanksIsEqualWithCopyEngines) {
  for (const std::string name : {"gpt2_124m_bf16", "llama7b_fp8"}) {
    for (const int tensor : {2, 4}) {
      for (const std::string extra :
           {"optimizer.name=adamw", "optimizer.name=muon", "training.recompute=full"}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << tensor << " tensor-parallel ranks, " << extra);
        const std::vector<std::string> plans = tensor_plans(name, tensor, {"parallel.transport=copy", extra});
        for (const std::string& plan : plans) EXPECT_EQ(plan, plans[0]);
        EXPECT_NE(plans[0].find("tensor_transport.slots"), std::string::npos);
      }
      EXPECT_EQ(tensor_plans(name, tensor, {})[0].find("tensor_transport"), std::string::npos);
    }
  }
}

/// The lines of a buffer in each stage's table.
std::vector<std::string> lines_of_stages(const std::string& buffer, int stages,
                                         std::vector<std::string> overrides) {
  overrides.insert(overrides.end(), {"training.device=cpu", "training.recompute=none",
                                     fmt::format("parallel.pipeline={}", stages)});
  const config::Config config =
      config::load_config(std::string(TE_SOURCE_DIR) + "/configs/llama7b_fp8.yaml", overrides);
  std::vector<std::string> found;
  for (int rank = 0; rank < stages; ++rank) {
    const parallel::Groups groups = parallel::Groups::dry_run(parallel::ProcessGrid::of(stages, 1, 1, stages),
                                                              rank, train::connect_options(config));
    std::istringstream lines(train::StepRunner(config, Context::cpu(), groups).plan().buffers());
    std::string own;
    for (std::string line; std::getline(lines, line);)
      if (line.find(buffer) != std::string::npos) own += line + "\n";
    found.push_back(own);
  }
  return found;
}

// Where the cycle of chunks closes, sends are in flight in addition to the one being produced.
TEST(Plan, OfStagesHasSendBuffers) {
  std::vector<std::ptrdiff_t> counts;
  for (const std::string& stage :
       lines_of_stages("pipeline.message", 4, {"parallel.schedule=zero_bubble", "parallel.virtual_stages=2"}))
    counts.push_back(std::ranges::count(stage, '\n'));
  EXPECT_EQ(counts, (std::vector<std::ptrdiff_t>{6, 4, 4, 6}));
}

}  // namespace
}  // namespace te
