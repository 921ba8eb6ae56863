// fp8_param_gather on GPUs, where gathers and reductions overlap with the passes: weights that a pass reads,
// or a step quantizes, during their gather would change losses. Gradient communication is the same with and without it,
// so all runs of a recipe are bitwise equal.
#include <vector>

#include "layout_cases.h"
#include "parallel/launch.h"
#include "random_steps.h"
#include "testing/abilities.h"
#include "testing/mpi.h"
#include "train/execution.h"

namespace te::testing {
namespace {

using config::Shard;
using parallel::Groups;
using parallel::ProcessGrid;

/// Layers large enough for communication to overlap with passes.
config::Config make_gathered_config(Precision precision) {
  config::Config config = make_config({.family = Family::llama, .precision = precision, .layers = 6});
  config::ModelConfig& m = config.model;
  m.hidden_size = 1024, m.ffn_hidden_size = 2048, m.num_attention_heads = 8, m.num_query_groups = 8;
  m.kv_channels = 128;
  m.seq_length = m.max_position_embeddings = 256;
  m.init_method_std = 0.02;
  config.optimizer.lr = 2e-4, config.optimizer.min_lr = 0;
  config.training.device = config::DeviceChoice::cuda;
  config.training.gemm_autotune = config::GemmAutotune::off;  // the same algorithms in every run
  config.training.global_batch_size = 4 * config.training.micro_batch_size * world().size();
  return config;
}

constexpr RandomSteps kGatherSteps{.steps = 6, .skipped = 4};

/// Groups that connect NCCL take seconds, so the runs of a test share them.
struct Ranks {
  explicit Ranks(int tensor)
      : context(parallel::open_cuda_device(
            world(), train::execution_options(make_gathered_config(Precision::delayed)))),
        groups(Groups::connect(world(), context, ProcessGrid::of(world().size(), tensor, 1, 1))) {}

  Context context;
  Groups groups;
};

void expect_same_losses(const Ranks& ranks, const config::Config& config) {
  const auto& [context, groups] = ranks;
  const auto run = [&](const parameters::DataParallelOptions& options) {
    RandomSteps steps = kGatherSteps;
    steps.data_parallel = options;
    return run_random_steps(context, config, groups, steps);
  };
  const std::vector<float> without = run({.fp8_param_gather = false});
  for (const bool overlap : {false, true, true, true})
    EXPECT_EQ(run({.overlap_param_gather = overlap}), without);
}

TEST(Fp8GatherGpu, IsBitwiseEqualToARunWithout) {
  TE_REQUIRE_ABILITY(fp8);
  if (world().size() == 1) GTEST_SKIP() << "one data-parallel rank gathers nothing";
  const Ranks ranks(1);
  for (const Precision precision : {Precision::delayed, Precision::tensorwise}) {
    SCOPED_TRACE(static_cast<int>(precision));
    const config::Config config = make_gathered_config(precision);
    {
      SCOPED_TRACE("one layout kept");
      expect_same_losses(ranks, config);
    }
    {
      SCOPED_TRACE("both layouts kept, with remainders");
      config::Config both = config;
      both.optimizer.store_param_remainders = true;
      both.precision.fp8_keep_weights = config::Fp8KeptWeights::both;
      expect_same_losses(ranks, both);
    }
    SCOPED_TRACE("powers of two, sharded gradients, one bucket of all layers");
    config::Config sharded = config;
    sharded.precision.fp8_scale_format = config::Fp8ScaleFormat::power_of_two;
    sharded.parallel.shard = Shard::gradients;
    sharded.parallel.bucket_size = 1'000'000'000;
    expect_same_losses(ranks, sharded);
  }
}

// With slots of bytes that the layers of a pass reuse.
TEST(Fp8GatherGpu, OfShardedParametersIsBitwiseEqualToARunWithout) {
  TE_REQUIRE_ABILITY(fp8);
  if (world().size() == 1) GTEST_SKIP() << "one data-parallel rank gathers nothing";
  const Ranks ranks(1);
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    SCOPED_TRACE(to_string(recompute));
    config::Config config = make_gathered_config(Precision::delayed);
    config.training.recompute = recompute;
    config.parallel.shard = Shard::parameters;
    expect_same_losses(ranks, config);
  }
}

// Tensor-parallel ranks divide every weight, and have one scale for it.
TEST(Fp8GatherGpu, WithTensorParallelismIsBitwiseEqualToARunWithout) {
  TE_REQUIRE_ABILITY(fp8);
  if (world().size() < 4) GTEST_SKIP() << "needs TP2 x DP2";
  const Ranks ranks(2);
  for (const Precision precision : {Precision::delayed, Precision::tensorwise}) {
    SCOPED_TRACE(static_cast<int>(precision));
    config::Config config = make_gathered_config(precision);
    config.parallel.tensor = 2;
    config.parallel.sequence = true;
    expect_same_losses(ranks, config);
  }
}

}  // namespace
}  // namespace te::testing
