// Expert parallelism on GPUs, where the exchange of rows overlaps with the shared expert: data that is read too early,
// or overwritten before it has been sent, changes losses.
#include <vector>

#include "expert_dispatch_checks.h"
#include "layout_cases.h"
#include "parallel/launch.h"
#include "parallel/watchdog.h"
#include "random_steps.h"
#include "train/execution.h"

namespace te::testing {
namespace {

using config::Shard;
using parallel::Groups;
using parallel::ProcessGrid;

/// Relative change of a loss due to BF16 alone: half a unit in the last place, as in layout_mpi_test.cpp.
constexpr double kExpertLoss = 0x1p-9;
constexpr int kExpertSteps = 4;

/// `expert`: 1 for all experts on every rank.
config::Config experts_config(Precision precision, int expert, double factor = 2.0, int pipeline = 1) {
  config::Config config = make_config({.family = Family::llama,
                                       .precision = precision,
                                       .pipeline = pipeline,
                                       .model_variant = ModelVariant::experts,
                                       .expert = 4,
                                       .dispatch_factor = factor});
  enlarge(config);
  config.model.moe_ffn_hidden_size = 256, config.model.moe_shared_expert_intermediate_size = 512;
  config.parallel.expert = expert;
  config.training.global_batch_size = 2 * config.training.micro_batch_size * world().size();
  return config;
}

class ExpertParallelGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    TE_REQUIRE_GPU();
    if (world().size() == 1) GTEST_SKIP() << "one rank has all experts";
    context_.emplace(parallel::open_cuda_device(
        world(), train::execution_options(experts_config(Precision::bf16_wide, 1))));
  }
  std::vector<float> run(const config::Config& config) {
    const Groups groups =
        Groups::connect(world(), *context_,
                        ProcessGrid::of(world().size(), static_cast<int>(config.parallel.tensor), 1,
                                        static_cast<int>(config.parallel.pipeline),
                                        static_cast<int>(config.parallel.expert)));
    const parallel::Watchdog::Guard guard(*context_, "steps of experts");
    return run_random_steps(*context_, config, groups, kExpertSteps);
  }
  std::optional<Context> context_;
};

TEST_F(ExpertParallelGpu, DispatchReachesTheExpertsAndReturns) {
  const int size = world().size();
  const Groups groups = Groups::connect(world(), *context_, ProcessGrid::of(size, 1, 1, 1, size));
  check_dispatches(*context_, groups.expert());
}

TEST_F(ExpertParallelGpu, EqualsAllExpertsOnEveryRankAndRepeatsBitForBit) {
  const int size = world().size();
  for (const Precision precision :
       {Precision::bf16_wide, Precision::delayed, Precision::tensorwise, Precision::blockwise}) {
    SCOPED_TRACE(static_cast<int>(precision));
    const std::vector<float> one = run(experts_config(precision, 1));
    for (const double factor : {2.0, 0.3}) {
      SCOPED_TRACE(factor);
      const config::Config config = experts_config(precision, size, factor);
      const std::vector<float> first = run(config);
      for (int repeat = 0; repeat < 2; ++repeat) EXPECT_EQ(run(config), first);
      if (precision != Precision::bf16_wide) continue;
      // The first step's loss is computed with the same weights, but in a single round ranks round their sums.
      EXPECT_NEAR(first[0], one[0], (factor < 1 ? 1e-6 : kExpertLoss) * one[0]);
      for (size_t i = 2; i < one.size(); i += 2) EXPECT_NEAR(first[i], one[i], kExpertLoss * one[i]);
    }
  }
}

TEST_F(ExpertParallelGpu, ShardingAndRecomputationChangeNoBit) {
  config::Config config = experts_config(Precision::bf16_wide, world().size());
  const std::vector<float> whole = run(config);
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    config.training.recompute = recompute;
    EXPECT_EQ(run(config), whole) << to_string(recompute);
  }
  config.training.recompute = Recompute::none;
  for (const Shard shard : {Shard::gradients, Shard::parameters}) {
    config.parallel.shard = shard;
    const std::vector<float> sharded = run(config);
    EXPECT_NEAR(sharded[0], whole[0], 1e-6 * whole[0]);
    for (size_t i = 2; i < whole.size(); i += 2) EXPECT_NEAR(sharded[i], whole[i], kExpertLoss * whole[i]);
  }
}

// With memory for both precisions all rows are sent in BF16. Tokens with two experts per rank are, too, in the memory
// of FP8 rows.
TEST_F(ExpertParallelGpu, SendingFp8ChangesNoBit) {
  for (const Precision precision : {Precision::delayed, Precision::tensorwise})
    for (const double factor : {2.0, 0.3})
      for (const int64_t topk : {2, 2 * world().size()}) {
        SCOPED_TRACE(fmt::format("{}, factor {}, top-k {}", static_cast<int>(precision), factor, topk));
        config::Config config = experts_config(precision, world().size(), factor);
        config.model.moe_router_topk = topk;
        const std::vector<float> fp8 = run(config);
        config.precision.fp8_until_step = 1000;
        EXPECT_EQ(run(config), fp8);
      }
}

// Tensor-parallel ranks divide attention and the tokens of the experts.
TEST_F(ExpertParallelGpu, TensorParallelRanksRepeatBitForBit) {
  for (const Precision precision : {Precision::bf16_wide, Precision::delayed, Precision::blockwise}) {
    SCOPED_TRACE(static_cast<int>(precision));
    const std::vector<float> one = run(experts_config(precision, 1));
    for (const int expert : {1, 2}) {
      config::Config config = experts_config(precision, expert);
      config.parallel.tensor = 2;
      config.parallel.sequence = true;
      const std::vector<float> first = run(config);
      EXPECT_EQ(run(config), first) << expert;
      if (precision != Precision::bf16_wide) continue;
      EXPECT_NEAR(first[0], one[0], kExpertLoss * one[0]);
    }
  }
}

TEST_F(ExpertParallelGpu, StagesRepeatBitForBit) {
  if (world().size() != 4) GTEST_SKIP() << "two stages of two ranks";
  for (const PipelineSchedule schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved}) {
    config::Config config = experts_config(Precision::bf16_wide, 2, 0.5, 2);
    config.parallel.schedule = schedule;
    config.parallel.virtual_stages = schedule == PipelineSchedule::interleaved ? 2 : 1;
    const std::vector<float> first = run(config);
    for (int repeat = 0; repeat < 2; ++repeat) EXPECT_EQ(run(config), first) << to_string(schedule);
  }
}

}  // namespace
}  // namespace te::testing
