// Parameters that are not trained, on several ranks: the layout of gradients and values does not change results, and
// values that are not sharded are gathered once, not in every step.
#include "model/tiny_model.h"
#include "random_steps.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using config::Shard;
using parallel::Groups;
using parallel::ProcessGrid;

bool trains_norms_and_mlps(const ParameterId& id) {
  return is_norm(id.role) || id.role == ParameterRole::linear_fc1 || id.part == ParameterPart::bias;
}

config::Config config_of(config::Fp8Mode fp8, Shard shard) {
  config::Config config = tiny_config(config::Family::llama);
  config.model.num_layers = 4;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = fp8;
  config.parallel.shard = shard;
  config.parallel.bucket_size = 1000;
  config.training.global_batch_size = config.training.micro_batch_size * world().size();
  config.trains = trains_norms_and_mlps;
  config::validate(config);
  return config;
}

RandomSteps steps_of(bool overlap) {
  return {.steps = 3, .data_parallel = {.overlap_grad_reduce = overlap, .overlap_param_gather = overlap}};
}

TEST(Untrained, AreShardedWithTheSameBits) {
  const Context context = Context::cpu();
  const Groups groups = Groups::connect(world(), context, ProcessGrid::of(world().size(), 1, 1, 1));
  for (const config::Fp8Mode fp8 : {config::Fp8Mode::off, config::Fp8Mode::hybrid}) {
    const std::vector<float> expected =
        run_random_steps(context, config_of(fp8, Shard::optimizer), groups, steps_of(false));
    for (const Shard shard : {Shard::optimizer, Shard::gradients, Shard::parameters})
      for (const bool overlap : {false, true})
        EXPECT_EQ(run_random_steps(context, config_of(fp8, shard), groups, steps_of(overlap)), expected)
            << config::to_string(shard) << " overlap " << overlap;
  }
}

TEST(Untrained, AreGatheredOnce) {
  if (world().size() == 1) GTEST_SKIP() << "nothing is gathered";
  const Context context = Context::cpu();
  const Groups groups = Groups::connect(world(), context, ProcessGrid::of(world().size(), 1, 1, 1));
  const auto gathered_in = [&](const config::Config& config, int steps) {
    const Gathered gathered;
    run_random_steps(context, config, groups, steps);
    return gathered.bytes;
  };
  config::Config some = config_of(config::Fp8Mode::off, Shard::optimizer), all = some;
  all.trains = {};
  // Buckets of parameters that are not trained are apart and padded on their own, so there is more padding with more
  // ranks: 11% with eight.
  EXPECT_GE(gathered_in(some, 0), gathered_in(all, 0));
  EXPECT_LT(gathered_in(some, 0), gathered_in(all, 0) * 5 / 4);
  EXPECT_LT(gathered_in(some, 2) - gathered_in(some, 1), (gathered_in(all, 2) - gathered_in(all, 1)) / 2);
}

}  // namespace
}  // namespace te::testing
