// A device that stalls while a step is launched: after about 1,000 waiting kernels the host blocks in a launch, where
// the watchdog must end the job, too.
#ifdef TE_WITH_CUDA
#include <cuda_runtime.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "model/tiny_model.h"
#include "parallel/watchdog.h"
#include "testing/testing.h"
#include "train/execution.h"
#include "train/step_runner.h"

namespace te {
namespace {

/// Two steps of 64 microbatches, more than 2,000 kernels; the device stalls before the second one. Exits with code 7 if
/// the launches return.
void stall() {
  config::Config config = testing::tiny_config(config::Family::llama);
  config.precision.dtype = config::ComputeDType::bf16;
  config.training.global_batch_size = 64 * config.training.micro_batch_size;
  config.training.gemm_autotune = config::GemmAutotune::off;
  const Context context = Context::cuda(0, train::execution_options(config));
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.initialize();
  train::HostBatch batch = runner.make_host_batch();
  batch.counted = config.training.global_batch_size * config.model.seq_length;
  for (int64_t i = 0; i < batch.counted; ++i)
    batch.tokens.as<int32_t>()[i] = batch.targets.as<int32_t>()[i] = static_cast<int32_t>(i % 7);
  runner.launch(batch, 1, 0, false);
  context.synchronize();
  parallel::Watchdog::set_timeout(2.0);
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::minutes(1)); };
  ASSERT_EQ(cudaLaunchHostFunc(static_cast<cudaStream_t>(context.stream()), sleep, nullptr), cudaSuccess);
  runner.launch(batch, 2, 0, false);
  std::_Exit(7);
}

TEST(StalledDeviceGpuDeathTest, EndsTheJobWhileAStepIsLaunched) {
  TE_REQUIRE_GPU();
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(stall(), ::testing::ExitedWithCode(1),
              "watchdog: rank 0: has waited .* s for the device in .* of microbatch [0-9]+, chunk 0");
}

}  // namespace
}  // namespace te
#endif
