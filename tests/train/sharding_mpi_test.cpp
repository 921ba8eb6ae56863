// parallel.shard changes where gradients and values are, and nothing else: runs of the three settings on the same ranks
// are compared with each other, bit for bit where the order of sums is the same.
//
// One microbatch a step: all three add the data ranks' gradients in rank order. The same bits.
// Several: `gradients` and `parameters` add the ranks first and the microbatches then, `optimizer` the other way round.
//   These two have the same bits; against `optimizer` the FP32 bounds of layout_mpi_test.cpp hold.
#include <cmath>

#include "layout_cases.h"
#include "layout_run.h"
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
  Trace run(Shard shard, int microbatches) { return run(shard, microbatches, groups_); }
  Trace run(Shard shard, int microbatches, const Groups& groups) const {
    config::Config config = make_config(GetParam());
    config.parallel.shard = shard;
    if (groups.data_copies() != nullptr) config.parallel.data_transport = config::Transport::copy;
    config.training.global_batch_size = config.training.micro_batch_size * microbatches * grid_.data;
    config::validate(config);
    return train_small(config, groups, {.steps = 4, .grads_at = {1, 3}, .valid_microbatches = 4});
  }

  ProcessGrid grid_;
  Groups groups_;
};

TEST_P(Sharding, OfOneMicrobatchHasTheSameBits) {
  if (GetParam().pipeline > 1) GTEST_SKIP() << "schedules have more microbatches";
  const Trace optimizer = run(Shard::optimizer, 1);
  {
    SCOPED_TRACE("gradients");
    expect_same_bits(run(Shard::gradients, 1), optimizer);
  }
  SCOPED_TRACE("parameters");
  expect_same_bits(run(Shard::parameters, 1), optimizer);
}

TEST_P(Sharding, OfSeveralMicrobatchesAddsUpInAFixedOrder) {
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
  std::printf("MEASURED %s: gradients of step 1 differ by %.1e, main parameters of step 4 by %.1e\n",
              c.name.c_str(), first, mains);
}

// parallel.data_transport copy: the same sums, in other memory.
TEST_P(Sharding, ByCopiesHasTheSameBits) {
  if (GetParam().muon) GTEST_SKIP() << "its updates travel otherwise";
  const Groups copying = Groups::connect(world(), Context::cpu(), grid_, {.data_copies = true});
  EXPECT_EQ(copying.data_copies() != nullptr, copying.data().size() > 1);
  for (const Shard shard : {Shard::optimizer, Shard::gradients, Shard::parameters}) {
    SCOPED_TRACE(to_string(shard));
    expect_same_bits(run(shard, 4, copying), run(shard, 4));
  }
}

/// Every recipe and way to recompute, every other axis and schedule, models whose layers share buckets.
std::vector<Case> sharded_cases() {
  const auto gpt = Family::gpt, llama = Family::llama;
  using enum Precision;
  using enum PipelineSchedule;
  switch (world().size()) {
    case 2:
      return {
          {.name = "gpt_tied_dropout", .family = gpt, .dropout = true},
          {.name = "llama_full", .family = llama, .recompute = Recompute::full, .variant = true},
          {.name = "llama_selective_no_overlap",
           .family = llama,
           .recompute = Recompute::selective,
           .data_overlap = false},
          {.name = "llama_late_reduce", .family = llama, .late_reduce = true},
          {.name = "gpt_layers_share_buckets", .family = gpt, .layers = 5, .bucket_size = 15'000},
          {.name = "gpt_bf16_grads", .family = gpt, .precision = bf16, .bf16_grads = true},
          {.name = "llama_bf16", .family = llama, .precision = bf16},
          {.name = "gpt_delayed", .family = gpt, .precision = delayed, .recompute = Recompute::full},
          {.name = "llama_delayed_fp32", .family = llama, .precision = delayed_fp32, .fp8_head = true},
          {.name = "llama_tensorwise", .family = llama, .precision = tensorwise},
          {.name = "llama_rowwise", .family = llama, .precision = rowwise, .recompute = Recompute::selective},
          {.name = "gpt_blockwise", .family = gpt, .precision = blockwise},
          {.name = "llama_overrides",
           .family = llama,
           .precision = delayed,
           .overrides = "linear_fc2 input: bf16; linear_qkv wgrad: bf16; layers 0 linear_proj: tensorwise"},
          {.name = "qwen3", .family = llama, .form = Form::qwen3},
          {.name = "olmo2", .family = llama, .form = Form::olmo2},
          {.name = "gpt_neox_delayed", .family = gpt, .precision = delayed, .form = Form::gpt_neox},
          {.name = "cp2_llama", .family = llama, .context = 2},
      };
    case 4:
      return {
          {.name = "dp4_llama", .family = llama},
          {.name = "dp4_llama_delayed", .family = llama, .precision = delayed},
          {.name = "tp2_sp_gpt_delayed",
           .family = gpt,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = Recompute::selective},
          {.name = "tp2_sp_llama", .family = llama, .tensor = 2, .sequence = true},
          {.name = "pp2_gpt_1f1b_dropout", .family = gpt, .pipeline = 2, .dropout = true},
          {.name = "pp2_gpt_gpipe_tied", .family = gpt, .pipeline = 2, .schedule = gpipe},
          {.name = "pp2_llama_interleaved_full",
           .family = llama,
           .pipeline = 2,
           .schedule = interleaved,
           .recompute = Recompute::full},
          {.name = "pp2_llama_interleaved_shared_buckets",
           .family = llama,
           .pipeline = 2,
           .schedule = interleaved,
           .layers = 8,
           .bucket_size = 15'000},
          {.name = "pp2_gpt_zero_bubble_delayed",
           .family = gpt,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .layers = 6},
          {.name = "cp2_tp2_llama_tensorwise",
           .family = llama,
           .precision = tensorwise,
           .tensor = 2,
           .context = 2},
      };
    case 8:
      return {{.name = "tp2_pp2_sp_llama_delayed",
               .family = llama,
               .precision = delayed,
               .tensor = 2,
               .pipeline = 2,
               .sequence = true}};
    default:
      return {};
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Sharding, ::testing::ValuesIn(sharded_cases()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Sharding);

}  // namespace
}  // namespace te::testing
