// Expert parallelism: the dispatch of tokens, and its rounds in a training step. layout_mpi_test.cpp compares losses,
// gradients and weights with one rank.
#include "expert_dispatch_checks.h"
#include "layout_cases.h"
#include "random_steps.h"
#include "train/routing.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::ProcessGrid;

TEST(ExpertParallel, DispatchReachesTheExpertsAndReturns) {
  const int size = world().size();
  if (size == 1) GTEST_SKIP() << "one rank has all experts";
  const Context cpu = Context::cpu();
  const Groups groups = Groups::connect(world(), cpu, ProcessGrid::of(size, 1, 1, 1, size));
  check_dispatches(cpu, groups.expert());
}

TEST(ExpertParallel, CountsTheRoundsOfAStep) {
  const int size = world().size();
  if (size == 1 || size > 4) GTEST_SKIP() << "two or four ranks divide eight experts";
  const Context cpu = Context::cpu();
  for (const double factor : {2.0 * size, 0.25}) {
    const config::Config config = make_config({.family = Family::llama,
                                               .model_variant = ModelVariant::experts,
                                               .expert = size,
                                               .dispatch_factor = factor});
    config::validate(config);
    const Groups groups = Groups::connect(world(), cpu, ProcessGrid::of(size, 1, 1, 1, size));
    train::StepRunner runner(config, cpu, groups);
    runner.allocate();
    runner.initialize();
    train::HostBatch batch = runner.make_host_batch();
    std::fill_n(batch.tokens.as<int32_t>(), batch.tokens.bytes() / sizeof(int32_t), 5);
    std::fill_n(batch.targets.as<int32_t>(), batch.targets.bytes() / sizeof(int32_t), 7);
    batch.counted = config.training.global_batch_size * config.model.seq_length;
    train::RoutingReader reader(cpu, runner.model().routing(), runner.model().parameters());
    for (int step = 1; step <= 2; ++step) {
      runner.launch(batch, step, 0, false);
      runner.optimizer().finish_step(false);
    }
    reader.fetch();
    const std::vector<train::LayerRouting> layers = reader.read(world());
    ASSERT_EQ(layers.size(), 3u);
    for (const train::LayerRouting& layer : layers) {
      // All tokens are equal: with a small factor, one or two ranks get all selections.
      EXPECT_GE(layer.dispatch_rounds, factor > 1 ? 1.0 : 2.0 * size);
      EXPECT_LE(layer.dispatch_rounds, factor > 1 ? 1.0 : 4.0 * size);
    }
  }
}

// Inputs of GEMMs are scaled per row and 128 columns, so the first loss is that of all experts on every rank.
TEST(ExpertParallel, BlockwiseScalesOfRowsDoNotDependOnTheRanks) {
  const int size = world().size();
  if (size == 1 || size > 4) GTEST_SKIP() << "two or four ranks divide eight experts";
  const Context cpu = Context::cpu();
  config::Config config = make_config({.family = Family::llama,
                                       .precision = Precision::blockwise,
                                       .model_variant = ModelVariant::experts,
                                       .expert = size});
  config.model.hidden_size = 128, config.model.kv_channels = 32, config.model.moe_ffn_hidden_size = 64;
  const auto run = [&](int expert, double factor) {
    config.parallel.expert = expert;
    config.parallel.moe_dispatch_factor = factor;
    const Groups groups = Groups::connect(world(), cpu, ProcessGrid::of(size, 1, 1, 1, expert));
    return run_random_steps(cpu, config, groups, 3);
  };
  const std::vector<float> one = run(1, 2.0);
  for (const double factor : {2.0, 0.4}) {
    const std::vector<float> divided = run(size, factor);
    EXPECT_EQ(run(size, factor), divided);
    EXPECT_NEAR(divided[0], one[0], 1e-6f * one[0]);
    for (size_t i = 2; i < one.size(); i += 2) EXPECT_NEAR(divided[i], one[i], 2e-3f * one[i]);
  }
}

}  // namespace
}  // namespace te::testing
