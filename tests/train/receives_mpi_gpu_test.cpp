// Pipelines on GPUs, where messages really travel beside the passes: whether a receive waits for the passes before it
// or for its buffer alone (parallel.overlap_receive) changes no bit, and what arrives is what was sent.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "layout_cases.h"
#include "parallel/launch.h"
#include "random_steps.h"
#include "testing/mpi.h"
#include "train/execution.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::ProcessGrid;

config::Config make_pipeline_config(PipelineSchedule schedule, int chunks) {
  Case c{.family = Family::llama, .precision = Precision::delayed};
  c.pipeline = world().size();
  c.schedule = schedule;
  c.chunks = chunks;
  c.layers = std::max(2, chunks) * c.pipeline;
  config::Config config = make_config(c);
  // Messages of several chunks wait where the ring closes: with microbatches enough, and room for too few of them, the
  // stages would wait for each other.
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

TEST(ReceivesGpu, EarlyOnesChangeNoBit) {
  TE_REQUIRE_GPU();
  if (world().size() == 1) GTEST_SKIP() << "no pipeline";
  for (const auto& [schedule, chunks] :
       {Order{PipelineSchedule::gpipe}, Order{PipelineSchedule::one_f_one_b},
        Order{PipelineSchedule::interleaved, 2}, Order{PipelineSchedule::zero_bubble},
        Order{PipelineSchedule::zero_bubble, 2}, Order{PipelineSchedule::zero_bubble, 3}}) {
    SCOPED_TRACE(fmt::format("{} {}", to_string(schedule), chunks));
    config::Config config = make_pipeline_config(schedule, chunks);
    const Context context = parallel::open_cuda_device(world(), train::execution_options(config));
    const Groups groups =
        Groups::connect(world(), context, ProcessGrid::of(world().size(), 1, 1, world().size()));
    const std::vector<float> late = run_random_steps(context, config, groups, kSteps);
    config.parallel.overlap_receive = true;
    for (int repeat = 0; repeat < 3; ++repeat)
      EXPECT_EQ(run_random_steps(context, config, groups, kSteps), late);
  }
}

}  // namespace
}  // namespace te::testing
