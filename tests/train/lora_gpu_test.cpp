// LoRA steps on a GPU: the losses of the CPU backend, and a base that keeps its bits.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "fp8_base.h"
#include "model/tiny_model.h"
#include "testing/gpu_supports.h"
#include "testing/testing.h"
#include "training_run.h"

namespace te::testing {
namespace {

using config::ComputeDType;
using config::Family;
using config::Fp8Mode;
using config::Fp8Recipe;
using parameters::Parameter;

struct GpuForm {
  const char* name;
  Family family;
  ComputeDType dtype;
  bool fp8;
  Fp8Recipe recipe = Fp8Recipe::delayed;
  bool experts = false;
};
constexpr GpuForm kGpuForms[] = {
    {"llama_fp32", Family::llama, ComputeDType::fp32, false},
    {"gpt_bf16", Family::gpt, ComputeDType::bf16, false},
    {"llama_bf16", Family::llama, ComputeDType::bf16, false},
    {"llama_delayed", Family::llama, ComputeDType::bf16, true},
    {"llama_tensorwise", Family::llama, ComputeDType::bf16, true, Fp8Recipe::tensorwise},
    {"llama_rowwise", Family::llama, ComputeDType::bf16, true, Fp8Recipe::rowwise},
    {"llama_blockwise", Family::llama, ComputeDType::bf16, true, Fp8Recipe::blockwise},
    {"experts_fp32", Family::llama, ComputeDType::fp32, false, Fp8Recipe::delayed, true},
    {"experts_bf16", Family::llama, ComputeDType::bf16, false, Fp8Recipe::delayed, true},
    {"experts_tensorwise", Family::llama, ComputeDType::bf16, true, Fp8Recipe::tensorwise, true},
    {"experts_blockwise", Family::llama, ComputeDType::bf16, true, Fp8Recipe::blockwise, true},
};

config::Config gpu_adapter_config(const GpuForm& form) {
  config::Config config = adapter_config(form.family);
  config.model.hidden_size = 128;
  config.model.ffn_hidden_size = 256;
  config.model.kv_channels = 32;
  config.model.seq_length = config.model.max_position_embeddings = 128;
  config.model.init_method_std = 0.05;
  config.training.global_batch_size = 4;
  config.training.device = config::DeviceChoice::automatic;
  config.precision.dtype = form.dtype;
  if (form.fp8) config.precision.fp8 = Fp8Mode::hybrid;
  config.precision.fp8_recipe = form.recipe;
  if (form.experts) set_fp8_experts(config.model);
  config.adapter.dropout = 0.1;
  config.optimizer.lr = 1e-3;
  config::resolve_defaults(config);
  config::validate(config);
  return config;
}

constexpr int kLoraSteps = 6;

std::vector<double> losses_of(TrainingRun& run) {
  std::vector<double> losses;
  const auto tokens =
      static_cast<double>(run.config().training.global_batch_size * run.config().model.seq_length);
  for (int step = 1; step <= kLoraSteps; ++step) losses.push_back(run.step(step) / tokens);
  return losses;
}

/// Changes the adapter on the CPU by a random relative amount.
void perturb_adapter(TrainingRun& run, uint64_t seed, float relative) {
  for (const Parameter& parameter : run.parameters()) {
    if (!parameter.trainable) continue;
    const std::vector<float> noise = normal_values(parameter.shape.numel(), seed, relative);
    for (size_t i = 0; i < noise.size(); ++i) parameter.main.as<float>()[i] *= 1.0f + noise[i];
  }
  run.runner().publish_weights();
}

// As ModelGpu.AgreesWithTheCpuBackend: the bound is the effect of changes of less than a rounding error, measured on
// the CPU. The backends draw the same dropout masks.
TEST(LoraGpu, LossesEqualThoseOfTheCpu) {
  TE_REQUIRE_GPU();
  for (const GpuForm& form : kGpuForms) {
    const config::Config config = gpu_adapter_config(form);
    if (!gpu_supports(config)) continue;
    TrainingRun cpu(config), gpu(config, {}, Context::cuda(0));
    const std::vector<double> expected = losses_of(cpu), actual = losses_of(gpu);
    const bool fp32 = form.dtype == ComputeDType::fp32;
    std::vector<double> noise(kLoraSteps);
    for (const uint64_t seed : {77, 78, 79}) {
      TrainingRun perturbed(config);
      perturb_adapter(perturbed, seed, fp32 ? 1e-7f : 1e-3f);
      const std::vector<double> other = losses_of(perturbed);
      for (size_t i = 0; i < noise.size(); ++i)
        noise[i] = std::max(noise[i], std::abs(other[i] - expected[i]));
    }
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(actual[i], expected[i], (fp32 ? 1e-5 : 1e-3) * expected[i] + 2 * noise[i])
          << form.name << ", step " << i + 1 << ", noise " << noise[i];
    EXPECT_LT(actual.back(), actual.front() + 1.0) << form.name;
  }
}

TEST(LoraGpu, BaseKeepsItsBitsAndStepsRepeat) {
  TE_REQUIRE_GPU();
  for (const GpuForm& form : kGpuForms) {
    if (!gpu_supports(gpu_adapter_config(form))) continue;
    std::vector<double> first;
    for (const auto recompute :
         {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
      config::Config config = gpu_adapter_config(form);
      config.training.recompute = recompute;
      TrainingRun run(config, {}, Context::cuda(0));
      const auto values_of_base = [&] {
        std::map<std::string, std::vector<char>> values;
        for (const Parameter& parameter : run.parameters()) {
          if (parameter.trainable) continue;
          const Tensor held = parameter.dropped ? parameter.rowwise->values : parameter.value;
          std::vector<char>& bytes = values[parameter.name];
          bytes.resize(held.bytes());
          run.context().copy_to_host(bytes.data(), held);
        }
        run.context().synchronize();
        return values;
      };
      const auto before = values_of_base();
      const std::vector<double> losses = losses_of(run);
      EXPECT_EQ(values_of_base(), before) << form.name;
      if (first.empty()) first = losses;
      EXPECT_EQ(losses, first) << form.name;
    }
    if (!form.fp8) continue;
    // Passes transpose the codes, unless the columnwise layout is kept.
    config::Config config = gpu_adapter_config(form);
    config.precision.fp8_keep_weights = config::Fp8KeptWeights::both;
    TrainingRun kept(config, {}, Context::cuda(0));
    EXPECT_EQ(losses_of(kept), first) << form.name;
  }
}

/// The rowwise codes and scales of the dropped values, by name.
std::map<std::string, std::string> codes_of(TrainingRun& run) {
  std::map<std::string, std::string> codes;
  for (const Parameter& parameter : run.parameters()) {
    if (!parameter.dropped) continue;
    for (const Tensor& tensor : {parameter.rowwise->values, parameter.rowwise->scales}) {
      std::string bytes(tensor.bytes(), '\0');
      run.context().copy_to_host(bytes.data(), tensor);
      run.context().synchronize();
      codes[parameter.name] += bytes;
    }
  }
  return codes;
}

TEST(LoraGpu, HoldsTheCodesOfAFolder) {
  TE_REQUIRE_GPU();
  for (const fp8_base::StoredBase& form : fp8_base::kStoredBases) {
    const TemporaryFolder folder;
    fp8_base::write_model(folder.path(), fp8_base::fp8_llama(form.scales, form.equal_scales), form.scales);
    const convert::ForeignModel base = convert::open_hugging_face(folder.path());
    config::Config config = fp8_base::config_on(folder.path(), form.recipe);
    config.model.seq_length = 128;
    config.training.device = config::DeviceChoice::automatic;
    if (!gpu_supports(config)) continue;
    TrainingRun cpu(config), gpu(config, {}, Context::cuda(0));
    fp8_base::load(cpu, base);
    fp8_base::load(gpu, base);
    if (form.held == 4) {
      EXPECT_EQ(codes_of(gpu), codes_of(cpu)) << form.name;
    }
    const float expected = cpu.step(1);
    EXPECT_NEAR(gpu.step(1), expected, 1e-2 * expected) << form.name;
  }
}

}  // namespace
}  // namespace te::testing
