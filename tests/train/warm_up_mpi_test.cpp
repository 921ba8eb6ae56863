// The warmup of a pipeline on GPUs changes neither gradients nor the FP8 state, with any schedule.
#include "layout_cases.h"
#include "parallel/groups.h"
#include "random_steps.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::ProcessGrid;

constexpr int kWarmSteps = 5;

std::vector<Case> warm_up_cases() {
  const auto gpt = Family::gpt, llama = Family::llama;
  using enum Precision;
  using enum PipelineSchedule;
  switch (world().size()) {
    case 1:
      return {{.name = "llama_delayed", .family = llama, .precision = delayed},
              {.name = "gpt_tensorwise_dropout", .family = gpt, .precision = tensorwise, .dropout = true}};
    case 2:
      return {
          {.name = "gpt_1f1b_full", .family = gpt, .pipeline = 2, .recompute = Recompute::full},
          {.name = "llama_delayed_zero_bubble",
           .family = llama,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble},
          {.name = "llama_delayed_zero_bubble_2",
           .family = llama,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .chunks = 2},
          {.name = "gpt_tensorwise_interleaved_dropout",
           .family = gpt,
           .precision = tensorwise,
           .pipeline = 2,
           .schedule = interleaved,
           .dropout = true},
      };
    case 4:
      return {
          {.name = "tp2_pp2_llama_delayed",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true},
          {.name = "pp2_dp2_llama_sharded_parameters",
           .family = llama,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .shard = config::Shard::parameters},
      };
    default:
      return {};
  }
}

class WarmUp : public ::testing::TestWithParam<Case> {};

TEST_P(WarmUp, ChangesNoBit) {
  const Case& c = GetParam();
  const config::Config config = make_config(c);
  const Groups groups = Groups::connect(world(), Context::cpu(),
                                        ProcessGrid::of(world().size(), c.tensor, c.context, c.pipeline));
  const auto run = [&](int warm_up) {
    return run_random_steps(Context::cpu(), config, groups, {.steps = kWarmSteps, .warm_up = warm_up});
  };
  // With other tokens than the step's, whose amaxes would show in the scales of the next step.
  EXPECT_EQ(run(3), run(0));
}

INSTANTIATE_TEST_SUITE_P(Cases, WarmUp, ::testing::ValuesIn(warm_up_cases()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WarmUp);

}  // namespace
}  // namespace te::testing
