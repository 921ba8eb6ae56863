// Pipelines on GPUs, where communication overlaps with passes. Copy engines instead of NCCL (parallel.transport) change
// no bit, and data arrives as it was sent.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "layout_cases.h"
#include "parallel/launch.h"
#include "parallel/watchdog.h"
#include "random_steps.h"
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

constexpr int kReceiveSteps = 6;

struct Order {
  PipelineSchedule schedule;
  int chunks = 1;
};

const std::vector<Order> kOrders{{PipelineSchedule::gpipe},          {PipelineSchedule::one_f_one_b},
                                 {PipelineSchedule::interleaved, 2}, {PipelineSchedule::zero_bubble, 1},
                                 {PipelineSchedule::zero_bubble, 2}, {PipelineSchedule::zero_bubble, 3}};

Groups connect_stages(const Context& context) {
  const int stages = world().size();
  return Groups::connect(world(), context, ProcessGrid::of(stages, 1, 1, stages),
                         {.use_pipeline_copy_engines = true});
}

TEST(ReceivesGpu, CopyEnginesChangeNoBit) {
  TE_REQUIRE_GPU();
  if (world().size() == 1) GTEST_SKIP() << "no pipeline";
  for (const auto& [schedule, chunks] : kOrders) {
    SCOPED_TRACE(fmt::format("{} {}", to_string(schedule), chunks));
    config::Config config = make_pipeline_config(schedule, chunks);
    const Context context = parallel::open_cuda_device(world(), train::execution_options(config));
    const Groups groups = connect_stages(context);
    ASSERT_NE(groups.pipeline_peer_links(), nullptr);
    const auto run = [&](const char* what) {
      const Watchdog::Guard guard(context, what);
      return run_random_steps(context, config, groups, kReceiveSteps);
    };
    const std::vector<float> nccl = run("NCCL");
    config.parallel.transport = config::Transport::copy;
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(run("copies"), nccl);
  }
}

// Sends of 32 MiB with several chunks, for which NCCL's sends and receives on both neighbors' links have deadlocked.
// The losses are those of stages with one chunk.
TEST(ReceivesGpu, CopyEnginesSendLargeBuffersOfSeveralChunks) {
  TE_REQUIRE_GPU();
  if (world().size() == 1) GTEST_SKIP() << "no pipeline";
  const auto run = [](PipelineSchedule schedule, int chunks) {
    SCOPED_TRACE(fmt::format("{} {}", to_string(schedule), chunks));
    config::Config config = make_pipeline_config(schedule, chunks);
    config.model.num_layers = 2 * world().size();
    enlarge(config);
    config.model.seq_length = config.model.max_position_embeddings = 2048;
    config.training.micro_batch_size = 8;
    config.training.global_batch_size = 8 * 4 * world().size();
    config.parallel.transport = config::Transport::copy;
    const Context context = parallel::open_cuda_device(world(), train::execution_options(config));
    const Groups groups = connect_stages(context);
    const Watchdog::Guard guard(context, "large messages");
    const std::vector<float> trace = run_random_steps(context, config, groups, 3);
    std::vector<float> losses;
    for (size_t i = 0; i < trace.size(); i += 2) losses.push_back(trace[i]);
    return losses;
  };
  const std::vector<float> losses = run(PipelineSchedule::one_f_one_b, 1);
  EXPECT_NE(losses.front(), losses.back());
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(run(PipelineSchedule::zero_bubble, 2), losses);
    EXPECT_EQ(run(PipelineSchedule::interleaved, 2), losses);
  }
}

}  // namespace
}  // namespace te::testing
