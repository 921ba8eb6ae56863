// Pipelines on GPUs, where messages really travel beside the passes: whether a receive waits for the passes before it
// or for its buffer alone (parallel.overlap_receive) changes no bit, and what arrives is what was sent.
#include <vector>

#include "core/random.h"
#include "layout_cases.h"
#include "parallel/launch.h"
#include "testing/mpi.h"
#include "train/execution.h"
#include "train/step_runner.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::ProcessGrid;

config::Config make_pipeline_config(PipelineSchedule schedule) {
  Case c{.family = Family::llama, .precision = Precision::delayed};
  c.pipeline = world().size();
  c.schedule = schedule;
  c.layers = 2 * c.pipeline;
  config::Config config = make_config(c);
  config.training.device = config::DeviceChoice::cuda;
  config.training.gemm_autotune = config::GemmAutotune::off;  // the same algorithms in every run
  return config;
}

/// Loss and gradient norm of every step, the same on all ranks.
std::vector<float> run_steps(const Context& context, const config::Config& config, const Groups& groups) {
  constexpr int kSteps = 6;
  train::StepRunner runner(config, context, groups);
  runner.allocate();
  runner.initialize();
  train::HostBatch batch = runner.make_host_batch();
  batch.counted = config.training.global_batch_size * config.model.seq_length;
  std::vector<float> trace;
  for (int step = 1; step <= kSteps; ++step) {
    for (int64_t i = 0; i < batch.counted; ++i) {
      const Philox4 random = philox(3, static_cast<uint64_t>(step), static_cast<uint64_t>(i));
      batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % config.model.vocab_size);
      batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % config.model.vocab_size);
    }
    runner.launch(batch, step, (step - 1) * config.training.global_batch_size, step == 2);
    context.synchronize();
    const optim::StepStatus status = runner.optimizer().status();
    trace.push_back(status.loss_sum);
    trace.push_back(status.grad_norm);
    runner.optimizer().finish_step(status.skipped != 0);
  }
  return trace;
}

TEST(ReceivesGpu, EarlyOnesChangeNoBit) {
  TE_REQUIRE_GPU();
  if (world().size() == 1) GTEST_SKIP() << "no pipeline";
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                          PipelineSchedule::interleaved, PipelineSchedule::zero_bubble}) {
    SCOPED_TRACE(to_string(schedule));
    config::Config config = make_pipeline_config(schedule);
    const Context context = parallel::open_cuda_device(world(), train::execution_options(config.training));
    const Groups groups =
        Groups::connect(world(), context, ProcessGrid::of(world().size(), 1, 1, world().size()));
    const std::vector<float> late = run_steps(context, config, groups);
    config.parallel.overlap_receive = true;
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(run_steps(context, config, groups), late);
  }
}

}  // namespace
}  // namespace te::testing
