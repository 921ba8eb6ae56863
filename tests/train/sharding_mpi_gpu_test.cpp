// parallel.shard on GPUs, where gathers and reductions overlap with passes: a slot that is read before it has been
// filled, or refilled while in use, changes losses. NCCL's summation order depends only on the sizes, so runs with the
// same buckets are bitwise equal, with overlap and without.
#include <vector>

#include "layout_cases.h"
#include "parallel/launch.h"
#include "random_steps.h"
#include "testing/gpu_supports.h"
#include "testing/mpi.h"
#include "train/execution.h"

namespace te::testing {
namespace {

using config::Shard;
using parallel::Groups;
using parallel::ProcessGrid;

/// Relative change of a loss due to BF16 alone: half a unit in the last place, as in layout_mpi_test.cpp.
constexpr double kBf16Loss = 0x1p-9;

config::Config make_sharded_config(Precision precision, bool lora = false) {
  config::Config config =
      make_config({.family = Family::llama, .precision = precision, .layers = 6, .lora = lora});
  enlarge(config);
  config.training.global_batch_size = 4 * config.training.micro_batch_size * world().size();
  return config;
}

constexpr int kShardingSteps = 5;

TEST(ShardingGpu, OverlapChangesNoBit) {
  TE_REQUIRE_GPU();
  if (world().size() == 1) GTEST_SKIP() << "one data-parallel rank shards nothing";
  const Context context = parallel::open_cuda_device(
      world(), train::execution_options(make_sharded_config(Precision::bf16_wide)));
  const Groups groups = Groups::connect(world(), context, ProcessGrid::of(world().size(), 1, 1, 1));
  for (const Precision precision : {Precision::bf16_wide, Precision::delayed, Precision::tensorwise}) {
    SCOPED_TRACE(static_cast<int>(precision));
    config::Config config = make_sharded_config(precision);
    if (!gpu_supports(config)) continue;
    const std::vector<float> whole = run_random_steps(context, config, groups, kShardingSteps);
    config.parallel.shard = Shard::gradients;
    const std::vector<float> in_order = run_random_steps(
        context, config, groups,
        RandomSteps{.steps = kShardingSteps,
                    .data_parallel = {.overlap_grad_reduce = false, .overlap_param_gather = false}});
    for (int repeat = 0; repeat < 3; ++repeat)
      EXPECT_EQ(run_random_steps(context, config, groups, kShardingSteps), in_order);
    config.parallel.shard = Shard::parameters;
    for (int repeat = 0; repeat < 3; ++repeat)
      EXPECT_EQ(run_random_steps(context, config, groups, kShardingSteps), in_order);
    // The first step's loss is computed with the same weights.
    EXPECT_NEAR(in_order[0], whole[0], 1e-6 * whole[0]);
    if (precision != Precision::bf16_wide) continue;
    for (size_t i = 2; i < whole.size(); i += 2) EXPECT_NEAR(in_order[i], whole[i], kBf16Loss * whole[i]);
  }
}

// Ranks that shard the FP8 codes of an adapter's base gather those that every rank of the other runs holds.
TEST(ShardingGpu, Fp8BaseGivesTheBitsOfAnUnshardedBase) {
  TE_REQUIRE_GPU();
  if (world().size() == 1) GTEST_SKIP() << "one data-parallel rank shards nothing";
  const Context context = parallel::open_cuda_device(
      world(), train::execution_options(make_sharded_config(Precision::delayed, true)));
  const Groups groups = Groups::connect(world(), context, ProcessGrid::of(world().size(), 1, 1, 1));
  for (const Precision precision :
       {Precision::delayed, Precision::tensorwise, Precision::rowwise, Precision::blockwise}) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      SCOPED_TRACE(fmt::format("{} {}", static_cast<int>(precision), to_string(recompute)));
      config::Config config = make_sharded_config(precision, true);
      if (!gpu_supports(config)) continue;
      config.training.recompute = recompute;
      config.parallel.shard = Shard::gradients;
      const std::vector<float> whole = run_random_steps(context, config, groups, kShardingSteps);
      config.parallel.shard = Shard::parameters;
      for (const bool overlap : {false, true, true})
        EXPECT_EQ(run_random_steps(context, config, groups,
                                   RandomSteps{.steps = kShardingSteps,
                                               .data_parallel = {.overlap_param_gather = overlap}}),
                  whole)
            << "overlap " << overlap;
    }
  }
}

}  // namespace
}  // namespace te::testing
