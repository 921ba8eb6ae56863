// Steps of FP16 and FP32 models with a loss scale on a GPU, compared with those on the CPU.
#include <cmath>
#include <limits>

#include "model/tiny_model.h"
#include "testing/testing.h"
#include "train/execution.h"
#include "train/step_runner.h"

namespace te {
namespace {

config::Config small_config(config::ComputeDType dtype) {
  config::Config config = testing::tiny_config(config::Family::llama);
  config.precision.dtype = dtype;
  config.model.hidden_size = 128;
  config.model.ffn_hidden_size = 256;
  config.model.kv_channels = 32;
  config.model.seq_length = config.model.max_position_embeddings = 64;
  config.model.init_method_std = 0.05;
  config.training.global_batch_size = 6;
  config.training.device = config::DeviceChoice::automatic;
  config::validate(config);
  return config;
}

struct Outcome {
  std::vector<optim::StepStatus> steps;
  std::vector<float> weights;
};

Outcome take_steps(const Context& context, const config::Config& config, double loss_scale, int steps) {
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.initialize();
  train::HostBatch batch = runner.make_host_batch();
  batch.counted = config.training.global_batch_size * config.model.seq_length;
  Outcome outcome;
  for (int step = 1; step <= steps; ++step) {
    for (int64_t i = 0; i < batch.counted; ++i) {
      const Philox4 random = philox(3, static_cast<uint64_t>(step), static_cast<uint64_t>(i));
      batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % 61);
      batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % 61);
    }
    runner.launch(batch, step, 6 * (step - 1), false, std::numeric_limits<double>::infinity(), loss_scale);
    context.synchronize();
    outcome.steps.push_back(runner.optimizer().status());
    runner.optimizer().finish_step(outcome.steps.back().skipped != 0);
  }
  const Tensor& mains = runner.model().parameters().mains;
  outcome.weights.resize(static_cast<size_t>(mains.numel()));
  context.copy_to_host(outcome.weights.data(), mains);
  context.synchronize();
  return outcome;
}

Context gpu_for(const config::Config& config) {
  return Context::cuda(0, train::execution_options(config));
}

// Dividing by a power of two is exact, on a GPU, too.
TEST(LossScaleGpu, ChangesNoBitOfAnFp32Run) {
  TE_REQUIRE_GPU();
  config::Config config = small_config(config::ComputeDType::fp32);
  config.training.gemm_autotune = config::GemmAutotune::off;
  const Context gpu = gpu_for(config);
  const Outcome plain = take_steps(gpu, config, 1.0, 3), scaled = take_steps(gpu, config, 4096.0, 3);
  for (size_t i = 0; i < plain.steps.size(); ++i) {
    EXPECT_EQ(scaled.steps[i].grad_norm, plain.steps[i].grad_norm);
    EXPECT_EQ(scaled.steps[i].loss_sum, plain.steps[i].loss_sum);
  }
  EXPECT_EQ(scaled.weights, plain.weights);
}

// Both backends round to FP16 at the same places, 2^-11 relative; the loss of the whole batch differs far less.
TEST(Fp16Gpu, StepsMatchTheCpu) {
  TE_REQUIRE_GPU();
  const config::Config config = small_config(config::ComputeDType::fp16);
  const Context gpu = gpu_for(config);
  const Outcome actual = take_steps(gpu, config, 65536.0, 5),
                expected = take_steps(Context::cpu(), config, 65536.0, 5);
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(actual.steps[i].skipped, 0);
    EXPECT_NEAR(actual.steps[i].loss_sum, expected.steps[i].loss_sum, 5e-4 * expected.steps[i].loss_sum) << i;
    EXPECT_NEAR(actual.steps[i].grad_norm, expected.steps[i].grad_norm, 5e-3 * expected.steps[i].grad_norm)
        << i;
  }
}

TEST(Fp16Gpu, OverflowingGradientsSkipTheUpdate) {
  TE_REQUIRE_GPU();
  const config::Config config = small_config(config::ComputeDType::fp16);
  const Context gpu = gpu_for(config);
  const Outcome none = take_steps(gpu, config, 1.0, 0), overflow = take_steps(gpu, config, 0x1p40, 1);
  EXPECT_EQ(overflow.steps[0].skipped, 1);
  EXPECT_FALSE(std::isfinite(overflow.steps[0].grad_norm));
  EXPECT_TRUE(std::isfinite(overflow.steps[0].loss_sum));
  EXPECT_EQ(overflow.weights, none.weights);
}

}  // namespace
}  // namespace te
