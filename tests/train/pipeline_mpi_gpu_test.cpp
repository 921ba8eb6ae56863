// Pipelines on GPUs, where communication overlaps with passes: data that is read too early, or overwritten before it
// has been sent, changes losses.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "layout_cases.h"
#include "parallel/launch.h"
#include "parallel/watchdog.h"
#include "random_steps.h"
#include "testing/abilities.h"
#include "testing/mpi.h"
#include "train/execution.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::ProcessGrid;
using parallel::Watchdog;

config::Config make_pipeline_config(PipelineSchedule schedule, int chunks) {
  Case c{.family = Family::llama, .precision = Precision::delayed};
  c.pipeline = world().size();
  c.schedule = schedule;
  c.chunks = chunks;
  c.layers = std::max(2, chunks) * c.pipeline;
  config::Config config = make_config(c);
  // With several chunks, sends are in flight where the cycle of stages closes: with enough microbatches and too few
  // buffers the stages would deadlock.
  if (chunks > 2) config.training.global_batch_size *= 4;
  config.training.device = config::DeviceChoice::cuda;
  config.training.gemm_autotune = config::GemmAutotune::off;  // the same algorithms in every run
  return config;
}

constexpr int kSteps = 6;

struct Order {
  PipelineSchedule schedule;
  int chunks = 1;
};

const std::vector<Order> kOrders{{PipelineSchedule::gpipe},          {PipelineSchedule::one_f_one_b},
                                 {PipelineSchedule::interleaved, 2}, {PipelineSchedule::zero_bubble, 1},
                                 {PipelineSchedule::zero_bubble, 2}, {PipelineSchedule::zero_bubble, 3}};

TEST(PipelineGpu, RunsRepeatBitForBit) {
  TE_REQUIRE_ABILITY(fp8);
  if (world().size() == 1) GTEST_SKIP() << "no pipeline";
  const int stages = world().size();
  const Context context = parallel::open_cuda_device(
      world(), train::execution_options(make_pipeline_config(PipelineSchedule::gpipe, 1)));
  const Groups groups = Groups::connect(world(), context, ProcessGrid::of(stages, 1, 1, stages));
  for (const auto& [schedule, chunks] : kOrders) {
    SCOPED_TRACE(fmt::format("{} {}", to_string(schedule), chunks));
    const config::Config config = make_pipeline_config(schedule, chunks);
    const auto run = [&] {
      const Watchdog::Guard guard(context, "steps of a pipeline");
      return run_random_steps(context, config, groups, kSteps);
    };
    const std::vector<float> first = run();
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(run(), first);
  }
}

}  // namespace
}  // namespace te::testing
