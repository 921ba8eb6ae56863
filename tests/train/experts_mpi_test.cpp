// Expert parallelism: the dispatch of tokens, and its rounds in a training step. layout_mpi_test.cpp compares losses,
// gradients and weights with one rank.
#include <cmath>

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

// Copies of a rank's own rows stand for the rows of others, whose numbers and slots differ.
TEST(ExpertParallel, StepsWithoutCommunicationAreFinite) {
  if (world().size() > 1) GTEST_SKIP() << "one rank computes alone";
  for (const int64_t topk : {2, 4})
    for (const Precision precision : {Precision::bf16, Precision::delayed}) {
      config::Config config = make_config({.family = Family::llama,
                                           .precision = precision,
                                           .model_variant = ModelVariant::experts,
                                           .expert = 2});
      config.model.moe_router_topk = topk;
      const Groups groups = Groups::no_communication(ProcessGrid::of(2, 1, 1, 1, 2), 0);
      for (const float value : run_random_steps(Context::cpu(), config, groups, 2))
        EXPECT_TRUE(std::isfinite(value));
    }
}

/// The routing of the second step if all tokens are equal.
std::vector<train::LayerRouting> routing_of_equal_tokens(const config::Config& config, const Groups& groups) {
  config::validate(config);
  const Context cpu = Context::cpu();
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
  return reader.read(world());
}

TEST(ExpertParallel, CountsTheRoundsOfAStep) {
  const int size = world().size();
  if (size == 1 || size > 4) GTEST_SKIP() << "two or four ranks divide eight experts";
  const Groups groups = Groups::connect(world(), Context::cpu(), ProcessGrid::of(size, 1, 1, 1, size));
  for (const double factor : {2.0 * size, 0.25}) {
    const config::Config config = make_config({.family = Family::llama,
                                               .model_variant = ModelVariant::experts,
                                               .expert = size,
                                               .dispatch_factor = factor});
    const std::vector<train::LayerRouting> layers = routing_of_equal_tokens(config, groups);
    ASSERT_EQ(layers.size(), 3u);
    for (const train::LayerRouting& layer : layers) {
      // All tokens are equal: with a small factor, one or two ranks get all selections.
      EXPECT_GE(layer.dispatch_rounds, factor > 1 ? 1.0 : 2.0 * size);
      EXPECT_LE(layer.dispatch_rounds, factor > 1 ? 1.0 : 4.0 * size);
      ASSERT_TRUE(layer.bias_range.has_value());  // of parts of the bias on the ranks
      // The first change of the bias may change the selection of the second step.
      EXPECT_GE(*layer.bias_range, 2 * config.model.moe_router_bias_update_rate - 1e-6);
      EXPECT_LE(*layer.bias_range, 4 * config.model.moe_router_bias_update_rate + 1e-6);
    }
  }
}

// The selected experts get all tokens, and keep their share of a balanced load.
TEST(ExpertParallel, CountsTheDroppedShareOfAStep) {
  const int size = world().size();
  if (size > 4) GTEST_SKIP() << "four ranks divide eight experts";
  const Groups groups = Groups::connect(world(), Context::cpu(), ProcessGrid::of(size, 1, 1, 1, size));
  for (const auto type : {config::BalanceScope::microbatch, config::BalanceScope::global})
    for (const bool bias : {false, true}) {
      config::Config config =
          make_config({.family = Family::llama, .model_variant = ModelVariant::experts, .expert = size});
      config::ModelConfig& m = config.model;
      m.num_moe_experts = 8, m.moe_expert_capacity_factor = 1.0;
      m.moe_router_load_balancing_type = type, m.moe_router_enable_expert_bias = bias;
      const double kept = static_cast<double>(m.moe_router_topk) / static_cast<double>(m.num_moe_experts);
      for (const train::LayerRouting& layer : routing_of_equal_tokens(config, groups)) {
        EXPECT_NEAR(layer.dropped.value(), 1.0 - kept, 1e-5);
        EXPECT_EQ(layer.bias_range.has_value(), bias);
      }
    }
}

// One microbatch per rank: all ranks together balance what one rank does with all sequences in a microbatch.
TEST(ExpertParallel, TheGlobalBalanceLossCountsTheSelectionsOfAllRanks) {
  const int size = world().size();
  if (size == 1 || size > 4) GTEST_SKIP() << "two or four ranks divide eight experts";
  const Context cpu = Context::cpu();
  config::Config config =
      make_config({.family = Family::llama, .model_variant = ModelVariant::experts, .expert = size});
  config.model.moe_aux_loss_coeff = 2.0;
  config.training.global_batch_size = size;
  const auto run = [&](config::BalanceScope type, int64_t microbatch, int expert, const Groups& groups) {
    config.model.moe_router_load_balancing_type = type;
    config.training.micro_batch_size = microbatch;
    config.parallel.expert = expert;
    return run_random_steps(cpu, config, groups, 3);
  };
  const std::vector<float> one = run(config::BalanceScope::microbatch, size, 1, Groups::single());
  for (const int expert : {1, size}) {
    const Groups groups = Groups::connect(world(), cpu, ProcessGrid::of(size, 1, 1, 1, expert));
    const std::vector<float> all = run(config::BalanceScope::global, 1, expert, groups);
    const std::vector<float> own = run(config::BalanceScope::microbatch, 1, expert, groups);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(all[i], one[i], 2e-5f * one[i]) << i;
    EXPECT_GT(std::abs(own[1] - one[1]), 1e-3f * one[1]);  // the gradient's norm
  }
}

// Inputs of GEMMs are scaled per row and 128 columns, so the first loss is that of all experts on every rank. FP32, as
// the ranks' sums of a token's results are rounded. Operands of wgrad are scaled per 128 rows, which depend on the
// tokens that an expert gets in a round; after that a router may select other experts.
TEST(ExpertParallel, BlockwiseScalesOfRowsDoNotDependOnTheRanks) {
  const int size = world().size();
  if (size == 1 || size > 4) GTEST_SKIP() << "two or four ranks divide eight experts";
  const Context cpu = Context::cpu();
  config::Config config = make_config({.family = Family::llama,
                                       .precision = Precision::blockwise,
                                       .model_variant = ModelVariant::experts,
                                       .expert = size});
  config.model.hidden_size = 128, config.model.kv_channels = 32, config.model.moe_ffn_hidden_size = 64;
  config.precision.dtype = config::ComputeDType::fp32;
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
    EXPECT_NEAR(divided[1], one[1], 1e-3f * one[1]);  // the gradient's norm
    for (size_t i = 2; i < one.size(); i += 2) EXPECT_NEAR(divided[i], one[i], 2e-2f * one[i]);
  }
}

// With memory for both precisions all rows are sent in BF16. Calibration, evaluation and ranks that divide the tokens.
TEST(ExpertParallel, SendingFp8ChangesNoBit) {
  const int size = world().size();
  if (size != 2 && size != 4) GTEST_SKIP() << "two or four ranks divide eight experts";
  for (const Precision precision : {Precision::delayed, Precision::tensorwise})
    for (const int tensor : {1, 2})
      for (const double factor : {2.0, 0.3}) {
        SCOPED_TRACE(fmt::format("{}, tensor {}, factor {}", static_cast<int>(precision), tensor, factor));
        config::Config config = make_config({.family = Family::llama,
                                             .precision = precision,
                                             .tensor = tensor,
                                             .sequence = tensor > 1,
                                             .model_variant = ModelVariant::experts,
                                             .expert = size,
                                             .dispatch_factor = factor});
        const Groups groups =
            Groups::connect(world(), Context::cpu(), ProcessGrid::of(size, tensor, 1, 1, size));
        const std::vector<float> fp8 = run_random_steps(Context::cpu(), config, groups, 4);
        config.precision.fp8_until_step = 1000;
        EXPECT_EQ(run_random_steps(Context::cpu(), config, groups, 4), fp8);
      }
}

}  // namespace
}  // namespace te::testing
