// The complete model on a GPU: comparison with the CPU backend on the same weights and tokens, recomputation, and no
// device allocation within a step.
#include <algorithm>
#include <cmath>
#include <utility>

#include "model/fp8_gradients.h"
#include "model/tiny_model.h"
#include "testing/gpu_supports.h"
#include "testing/testing.h"

#ifdef TE_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace te {
namespace {

using config::Config;
using config::Family;
using config::Fp8Mode;
using config::Fp8Recipe;
using config::Recompute;
using testing::TinyModel;

Config gpu_config(Family family, Fp8Mode mode, Fp8Recipe recipe = Fp8Recipe::delayed) {
  Config config = testing::tiny_config(family);
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = mode;
  config.precision.fp8_recipe = recipe;
  config.precision.amax_history_len = 4;
  config.model.hidden_size = 128;
  config.model.ffn_hidden_size = 256;
  config.model.kv_channels = 32;
  config.model.seq_length = config.model.max_position_embeddings = 128;
  config.model.vocab_size = 301;
  config.model.init_method_std = 0.05;
  config.training.device = config::DeviceChoice::automatic;
  return config;
}

/// Sizes that the GEMMs of cuBLASLt accept in every precision.
void set_gpu_experts(config::ModelConfig& model) {
  testing::set_experts(model);
  model.moe_ffn_hidden_size = 128;
  model.moe_shared_expert_intermediate_size = 64;
}

std::vector<Config> all_configs() {
  std::vector<Config> configs;
  for (Family family : {Family::gpt, Family::llama}) {
    configs.push_back(gpu_config(family, Fp8Mode::off));
    configs.push_back(gpu_config(family, Fp8Mode::hybrid));
    configs.push_back(gpu_config(family, Fp8Mode::e4m3));
    configs.push_back(gpu_config(family, Fp8Mode::hybrid, Fp8Recipe::tensorwise));
    configs.push_back(gpu_config(family, Fp8Mode::hybrid, Fp8Recipe::rowwise));
    configs.push_back(gpu_config(family, Fp8Mode::e4m3, Fp8Recipe::blockwise));
    configs.push_back(gpu_config(family, Fp8Mode::e4m3, Fp8Recipe::mxfp8));
    configs.push_back(gpu_config(family, Fp8Mode::hybrid));
    configs.back().precision.fp8_output_layer = true;
    // Large enough for the kernels that fuse the MLP's GEMMs with its activation.
    configs.push_back(gpu_config(family, Fp8Mode::off));
    configs.back().model.ffn_hidden_size = 1632;
    configs.back().training.micro_batch_size = configs.back().training.global_batch_size = 16;
  }
  configs.push_back(gpu_config(Family::llama, Fp8Mode::hybrid));
  configs.back().precision.dtype = config::ComputeDType::fp32;
  for (Family family : {Family::gpt, Family::llama}) {
    configs.push_back(gpu_config(family, Fp8Mode::off));
    configs.back().precision.dtype = config::ComputeDType::fp16;
  }
  // Only in BF16: with FP8 the noise of this model is too large for a comparison.
  configs.push_back(gpu_config(Family::llama, Fp8Mode::off));
  testing::set_gemma3(configs.back().model);
  configs.back().model.sliding_window = 48;
  // The head_dim of Gemma's smaller models.
  configs.push_back(configs.back());
  configs.back().model.kv_channels = 256;
  configs.push_back(gpu_config(Family::llama, Fp8Mode::off));
  testing::set_nanochat(configs.back().model);
  // Each token uses all experts: the backends round differently, and with fewer some tokens would use others.
  for (const auto& [mode, recipe] : {std::pair{Fp8Mode::off, Fp8Recipe::delayed},
                                     {Fp8Mode::hybrid, Fp8Recipe::delayed},
                                     {Fp8Mode::hybrid, Fp8Recipe::tensorwise},
                                     {Fp8Mode::e4m3, Fp8Recipe::blockwise}}) {
    configs.push_back(gpu_config(Family::llama, mode, recipe));
    set_gpu_experts(configs.back().model);
    configs.back().model.moe_router_topk = configs.back().model.num_moe_experts;
  }
  std::erase_if(configs, [](const Config& config) { return !testing::gpu_supports(config); });
  return configs;
}

/// FP32 models with dropout, grouped queries, windows or wide heads; both backends draw the same random numbers.
std::vector<Config> fp32_configs() {
  std::vector<Config> configs;
  const auto add = [&](Family family) -> Config& {
    configs.push_back(gpu_config(family, Fp8Mode::off));
    configs.back().precision.dtype = config::ComputeDType::fp32;
    return configs.back();
  };
  add(Family::gpt);
  add(Family::llama);
  config::ModelConfig& dropout = add(Family::gpt).model;
  dropout.hidden_dropout = dropout.attention_dropout = 0.1;
  config::ModelConfig& gemma = add(Family::llama).model;
  testing::set_gemma3(gemma);
  gemma.sliding_window = 48;
  gemma.kv_channels = 256;
  set_gpu_experts(add(Family::llama).model);
  testing::set_nanochat(add(Family::llama).model);
  return configs;
}

std::string label(const Config& config) {
  return fmt::format(
      "{} {} {} heads of {} ffn {} {} {}{}, recompute {}", to_string(config.precision.dtype),
      to_string(config.model.family), to_string(config.model.activation), config.model.kv_channels,
      config.model.ffn_hidden_size, to_string(config.precision.fp8), to_string(config.precision.fp8_recipe),
      config.precision.fp8_output_layer ? ", output layer too" : "", to_string(config.training.recompute));
}

// Gradients after two steps with learning rate 0, so that delayed scaling has scales. (Adam's first updates are the
// signs of the gradients, so a different rounding near zero would give a different model.)
std::vector<std::vector<float>> gradients_with_scales(TinyModel& tiny, double* loss) {
  for (int step = 0; step < 2; ++step) tiny.train_step(0.0f);
  *loss = tiny.forward_backward();
  std::vector<std::vector<float>> gradients;
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    gradients.push_back(tiny.read(parameter.grad));
  }
  return gradients;
}

// Changes every weight by a random relative amount with standard deviation `relative`; the default is less than half
// the distance of two BF16 numbers.
void perturb_weights(TinyModel& tiny, uint64_t seed, float relative = 1e-3f) {
  parameters::ParameterStore& store = tiny.model().parameters();
  std::vector<float> weights = tiny.read(store.mains);
  const std::vector<float> noise =
      testing::normal_values(static_cast<int64_t>(weights.size()), seed, relative);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] *= 1.0f + noise[i];
  tiny.write(store.mains, weights);
  store.cast_values(tiny.context());
  tiny.model().quantize_weights(tiny.context());
}

// Both backends round the same intermediate results but sum in a different order, so some values are rounded
// differently. Such a difference is 2^-2 to 2^-4 of an FP8 value and propagates through the layers. Its effect on the
// gradients depends on the model, so the test measures it: it perturbs the weights of the CPU model by less than a BF16
// rounding error. The gradients of the GPU may differ from those of the CPU by twice the effect of one perturbation.
// The loss is a single number that may not change by chance, so it may differ by twice the maximum effect of three
// perturbations. A wrong scale, a missing term or a transposed operand has a much larger effect.
TEST(ModelGpu, AgreesWithTheCpuBackend) {
  TE_REQUIRE_GPU();
  for (const Config& config : all_configs()) {
    TinyModel cpu(config), gpu(config, Context::cuda(0));
    ASSERT_EQ(cpu.read(cpu.model().parameters().mains), gpu.read(gpu.model().parameters().mains))
        << label(config);
    double cpu_loss = 0, gpu_loss = 0, loss_noise = 0;
    const auto expected = gradients_with_scales(cpu, &cpu_loss);
    const auto actual = gradients_with_scales(gpu, &gpu_loss);
    std::vector<std::vector<float>> perturbed_gradients;
    for (const uint64_t seed : {77, 78, 79}) {
      TinyModel perturbed(config);
      perturb_weights(perturbed, seed);
      double loss = 0;
      auto gradients = gradients_with_scales(perturbed, &loss);
      loss_noise = std::max(loss_noise, std::abs(loss - cpu_loss));
      if (perturbed_gradients.empty()) perturbed_gradients = std::move(gradients);
    }
    EXPECT_NEAR(cpu_loss, gpu_loss, 2 * loss_noise + 2e-3) << label(config);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double noise = testing::relative_error(perturbed_gradients[i], expected[i]);
      EXPECT_LT(noise, 0.25) << "the noise of this model is too large for a comparison";
      EXPECT_LT(testing::relative_error(actual[i], expected[i]), 2 * noise + 0.005)
          << label(config) << " " << cpu.model().parameters().parameters()[i].name;
    }
  }
}

TEST(ModelGpu, GradientsOfExpertsInFp8AreNearBf16) {
  TE_REQUIRE_GPU();
  Config config = gpu_config(Family::llama, Fp8Mode::off);
  set_gpu_experts(config.model);
  testing::check_fp8_gradients_of_experts(config, [] { return Context::cuda(0); });
}

// Everything is computed in FP32, so the backends differ only in their summation order: about 1e-6 of a gradient and
// less of the mean loss. TF32 or a BF16 intermediate tensor would differ by 1e-3. With a small epsilon, AdamW's first
// updates have the same size for all elements, however small the gradient, and amplify this noise, up to 1e-3 of the
// loss with heads of 256. The test trains with an epsilon at which they do not: CPU models whose weights are perturbed
// by 1e-7 show it. It allows 1e-5 plus twice the maximum effect of three perturbations.
TEST(ModelGpu, Fp32LossesEqualThoseOfTheCpu) {
  TE_REQUIRE_GPU();
  constexpr int kSteps = 8;
  const auto losses = [](TinyModel& tiny) {
    std::vector<double> all;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      tiny.set_batch(step);
      all.push_back(tiny.train_step(1e-3f));
    }
    return all;
  };
  for (Config config : fp32_configs()) {
    config.optimizer.eps = 1e-3;
    TinyModel cpu(config), gpu(config, Context::cuda(0));
    cpu.forward_backward(), gpu.forward_backward();
    for (const parameters::Parameter& parameter : cpu.model().parameters().parameters()) {
      EXPECT_LT(
          testing::relative_error(gpu.read(gpu.parameter(parameter.name).grad), cpu.read(parameter.grad)),
          1e-4)
          << label(config) << " " << parameter.name;
    }
    const std::vector<double> expected = losses(cpu), actual = losses(gpu);
    std::vector<double> noise(kSteps);
    for (const uint64_t seed : {77, 78, 79}) {
      TinyModel perturbed(config);
      perturb_weights(perturbed, seed, 1e-7f);
      perturbed.forward_backward();
      const std::vector<double> other = losses(perturbed);
      for (size_t i = 0; i < kSteps; ++i) noise[i] = std::max(noise[i], std::abs(other[i] - expected[i]));
    }
    for (size_t i = 0; i < kSteps; ++i) {
      EXPECT_LT(noise[i], 2e-6 * expected[i]) << label(config) << ", step " << i + 1 << ": amplified";
      EXPECT_NEAR(actual[i], expected[i], 1e-5 * expected[i] + 2 * noise[i])
          << label(config) << ", step " << i + 1 << ", noise " << noise[i];
    }
  }
}

// TF32 has 10 mantissa bits, so its error is between those of FP32 and BF16.
TEST(ModelGpu, Tf32ErrorIsBetweenFp32AndBf16) {
  TE_REQUIRE_GPU();
  const Config config = fp32_configs().front();
  TinyModel fp32(config, Context::cuda(0)), tf32(config, Context::cuda(0, {.tf32 = true}));
  fp32.forward_backward(), tf32.forward_backward();
  const double error = testing::relative_error(tf32.read(tf32.model().parameters().grads),
                                               fp32.read(fp32.model().parameters().grads));
  EXPECT_GT(error, 1e-5);
  EXPECT_LT(error, 1e-2);
}

TEST(ModelGpu, Fp32StepsRepeat) {
  TE_REQUIRE_GPU();
  for (const Config& config : fp32_configs()) {
    std::vector<float> first;
    for (int run = 0; run < 2; ++run) {
      TinyModel gpu(config, Context::cuda(0));
      for (int step = 0; step < 3; ++step) gpu.train_step(1e-3f);
      const std::vector<float> weights = gpu.read(gpu.model().parameters().mains);
      if (run == 0) first = weights;
      EXPECT_EQ(weights, first) << label(config);
    }
  }
}

// Four bits amplify roundings too much for a comparison of gradients; the loss of a forward pass is compared, and the
// bits of recomputed passes.
TEST(ModelGpu, Nvfp4AgreesWithTheCpuBackend) {
  TE_REQUIRE_GPU();
  for (const Family family : {Family::gpt, Family::llama}) {
    Config config = gpu_config(family, Fp8Mode::hybrid, Fp8Recipe::nvfp4);
    TinyModel cpu(config), gpu(config, Context::cuda(0));
    const double expected = cpu.forward_backward();
    EXPECT_NEAR(gpu.forward_backward(), expected, 0.02 * expected);
    const std::vector<float> gradients = gpu.read(gpu.model().parameters().grads);
    config.training.recompute = Recompute::full;
    TinyModel recomputed(config, Context::cuda(0));
    recomputed.forward_backward();
    EXPECT_EQ(recomputed.read(recomputed.model().parameters().grads), gradients);
  }
}

TEST(ModelGpu, RecomputationGivesTheSameBits) {
  TE_REQUIRE_GPU();
  for (Config config : all_configs()) {
    if (config.model.family == Family::gpt)
      config.model.hidden_dropout = config.model.attention_dropout = 0.1;
    std::vector<float> reference;
    for (Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      config.training.recompute = recompute;
      TinyModel gpu(config, Context::cuda(0));
      for (int step = 0; step < 2; ++step) gpu.train_step(1e-3f);
      gpu.forward_backward();
      const std::vector<float> gradients = gpu.read(gpu.model().parameters().grads);
      if (recompute == Recompute::none) reference = gradients;
      EXPECT_EQ(gradients, reference) << label(config);
    }
  }
}

// FP8 weights that are quantized or transposed again before each GEMM equal those that are kept.
TEST(ModelGpu, RecomputedFp8WeightsGiveTheSameBits) {
  TE_REQUIRE_GPU();
  using config::Fp8KeptWeights;
  for (Config config : all_configs()) {
    if (config.precision.fp8 == Fp8Mode::off) continue;
    std::vector<float> reference;
    for (const Fp8KeptWeights kept : {Fp8KeptWeights::both, Fp8KeptWeights::rowwise, Fp8KeptWeights::none}) {
      config.precision.fp8_keep_weights = kept;
      TinyModel gpu(config, Context::cuda(0));
      for (int step = 0; step < 2; ++step) gpu.train_step(1e-3f);
      gpu.forward_backward();
      const std::vector<float> gradients = gpu.read(gpu.model().parameters().grads);
      if (kept == Fp8KeptWeights::both) reference = gradients;
      EXPECT_EQ(gradients, reference) << label(config) << ", kept " << to_string(kept);
    }
  }
}

// cudaMemGetInfo() reports the free memory of the GPU, which other processes may also use. ctest runs no other test at
// the same time. A step that allocates does so every time, so one unchanged attempt proves that steps do not allocate.
TEST(ModelGpu, StepsAllocateNoDeviceMemory) {
  TE_REQUIRE_GPU();
#ifdef TE_WITH_CUDA
  for (const Config& config : all_configs()) {
    TinyModel gpu(config, Context::cuda(0));
    // GEMM plans are created at their first use.
    for (int step = 0; step < 2; ++step) gpu.train_step(1e-3f);
    bool unchanged = false;
    for (int attempt = 0; attempt < 20 && !unchanged; ++attempt) {
      size_t before = 0, after = 0, total = 0;
      ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
      for (int step = 0; step < 5; ++step) gpu.train_step(1e-3f);
      ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
      unchanged = before == after;
    }
    EXPECT_TRUE(unchanged) << label(config);
  }
#endif
}

}  // namespace
}  // namespace te
