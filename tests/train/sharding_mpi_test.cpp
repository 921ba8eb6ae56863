// parallel.shard only changes where gradients and weights are stored: runs with the three settings on the same ranks
// are compared, bitwise where the summation order is the same.
//
// One microbatch per step: all three sum the data-parallel ranks' gradients in rank order. Bitwise equal.
// Several: `gradients` and `parameters` sum over ranks first and then over microbatches, `optimizer` the other way
//   around. The first two are bitwise equal; versus `optimizer` the FP32 bounds of layout_mpi_test.cpp hold.
#include <cmath>

#include "layout_run.h"
#include "layout_table.h"
#include "parallel/groups.h"
#include "same_bits.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using config::Shard;
using parallel::Groups;
using parallel::ProcessGrid;

constexpr double kLossBound = 2e-6, kStateBound = 5e-5;

/// The largest relative difference of a rank's part of a parameter, in the Euclidean norm.
double largest_difference(const Parts& actual, const Parts& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (size_t p = 0; p < std::min(actual.size(), expected.size()); ++p) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected[p].value.size(); ++i) {
      difference += std::pow(double{actual[p].value[i]} - expected[p].value[i], 2);
      norm += std::pow(double{expected[p].value[i]}, 2);
    }
    if (norm > 0) largest = std::max(largest, std::sqrt(difference / norm));
  }
  return largest;
}

class Sharding : public ::testing::TestWithParam<Case> {
 protected:
  Sharding()
      : grid_(ProcessGrid::of(world().size(), GetParam().tensor, GetParam().context, GetParam().pipeline)),
        groups_(Groups::connect(world(), Context::cpu(), grid_)) {}
  Trace run(Shard shard, int microbatches) const {
    config::Config config = make_config(GetParam());
    config.parallel.shard = shard;
    config.training.global_batch_size =
        config.training.micro_batch_size * microbatches * grid_[parallel::Axis::data];
    config::validate(config);
    return train_small(config, groups_,
                       {.steps = 4, .grads_at = {1, 3}, .data_parallel = data_parallel_of(GetParam())});
  }

  ProcessGrid grid_;
  Groups groups_;
};

TEST_P(Sharding, WithOneMicrobatchIsBitwiseEqual) {
  if (GetParam().pipeline > 1) GTEST_SKIP() << "schedules have more microbatches";
  const Trace optimizer = run(Shard::optimizer, 1);
  {
    SCOPED_TRACE("gradients");
    expect_same_bits(run(Shard::gradients, 1), optimizer);
  }
  SCOPED_TRACE("parameters");
  expect_same_bits(run(Shard::parameters, 1), optimizer);
}

TEST_P(Sharding, WithSeveralMicrobatchesSumsInAFixedOrder) {
  const Case& c = GetParam();
  const Trace gradients = run(Shard::gradients, 4);
  expect_same_bits(run(Shard::gradients, 4), gradients);
  expect_same_bits(run(Shard::parameters, 4), gradients);
  if (c.precision != Precision::fp32 || c.bf16_grads) return;
  const Trace optimizer = run(Shard::optimizer, 4);
  for (size_t i = 0; i < optimizer.loss.size(); ++i)
    EXPECT_NEAR(gradients.loss[i], optimizer.loss[i], kLossBound * optimizer.loss[i]);
  const double first = largest_difference(gradients.grads.at(1), optimizer.grads.at(1)),
               mains = largest_difference(gradients.mains, optimizer.mains);
  EXPECT_LT(first, kStateBound);
  EXPECT_LT(mains, kStateBound);
  std::printf("MEASURED %s: gradients of step 1 differ by %.1e, FP32 master weights of step 4 by %.1e\n",
              c.name.c_str(), first, mains);
}

/// Every recipe and recompute setting, every other parallel dimension and schedule, and models whose layers share
/// buckets.
std::vector<Case> sharded_cases() {
  switch (world().size()) {
    case 2:
      return {
          named("gpt_tied_dropout"),
          named("llama_full", {.variant = true}),
          named("llama_selective_blocking"),
          named("llama_late_reduce", {.late_reduce = true}),
          named("gpt_layers_share_buckets", {.layers = 5, .bucket_size = 15'000}),
          named("gpt_bf16_grads", {.bf16_grads = true}),
          named("llama_bf16"),
          named("gpt_delayed", {.recompute = Recompute::full}),
          named("llama_delayed_fp32", {.fp8_head = true}),
          named("llama_tensorwise"),
          named("llama_rowwise", {.recompute = Recompute::selective}),
          named("gpt_blockwise"),
          named("llama_overrides",
                {.precision = Precision::delayed,
                 .overrides =
                     "linear_fc2 input: bf16; linear_qkv wgrad: bf16; layers 0 linear_proj: tensorwise"}),
          named("qwen3"),
          named("olmo2"),
          named("gpt_neox_delayed"),
          named("cp2_llama"),
      };
    case 4:
      return {
          named("dp4_llama"),
          named("dp4_llama_delayed"),
          named("tp2_sp_gpt_delayed", {.overlap = 2, .recompute = Recompute::selective}),
          named("tp2_sp_llama"),
          named("pp2_gpt_1f1b_dropout"),
          named("pp2_gpt_gpipe_tied"),
          named("pp2_llama_interleaved_full"),
          named("pp2_llama_interleaved_shared_buckets", {.layers = 8, .bucket_size = 15'000}),
          named("pp2_gpt_zero_bubble_delayed", {.layers = 6}),
          named("cp2_tp2_llama_tensorwise"),
      };
    case 8:
      return {named("tp2_pp2_sp_llama_delayed")};
    default:
      return {};
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Sharding, ::testing::ValuesIn(sharded_cases()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Sharding);

}  // namespace
}  // namespace te::testing
