// The first step of a run with delayed scaling, in a deep model, where wrong scales would show far from the loss:
// nothing saturates, and each layer's gradient is as close to the BF16 gradient as with current scaling.
#include <cmath>
#include <map>

#include "model/tiny_model.h"
#include "testing/testing.h"
#include "train/metrics.h"
#include "train/step_runner.h"

namespace te {
namespace {

constexpr int64_t kTokensOfAStep = 131072;

config::Config deep(config::Fp8Mode mode, config::Fp8Recipe recipe) {
  config::Config config = testing::tiny_config(config::Family::llama);
  config.model.num_layers = 36;
  config.model.hidden_size = 32;
  config.model.ffn_hidden_size = 64;
  config.model.num_attention_heads = config.model.num_query_groups = 2;
  config.model.kv_channels = 16;
  config.model.init_method_std = 0.16;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = mode;
  config.precision.fp8_recipe = recipe;
  config.precision.fp8_recast = false;  // otherwise no scale would be wrong
  config.training.global_batch_size = config.training.micro_batch_size;
  config::validate(config);
  return config;
}

struct FirstStep {
  std::map<std::string, std::vector<float>> gradients;  ///< by layer
  double saturated = 0;                                 ///< largest fraction of any operand
};

/// Runs one microbatch of a step with many, so that gradients are as small as with a large batch.
FirstStep first_step(const config::Config& config) {
  const Context context = Context::cpu();
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.initialize();
  train::HostBatch batch = runner.make_host_batch();
  batch.counted = kTokensOfAStep;
  for (int64_t i = 0; i < config.training.global_batch_size * config.model.seq_length; ++i) {
    const Philox4 random = philox(3, 4, static_cast<uint64_t>(i));
    batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % 61);
    batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % 61);
  }
  if (runner.model().recipe().needs_calibration()) {
    const train::HostMicrobatch first{batch.tokens.as<int32_t>(), batch.targets.as<int32_t>()};
    runner.calibrate({&first, 1}, kTokensOfAStep);
  }
  runner.launch(batch, 1, 0, true);
  FirstStep step;
  for (const train::Fp8Health& item : train::read_fp8_health(context, runner.model().recipe().table()))
    step.saturated = std::max(step.saturated, item.saturated);
  for (const parameters::Parameter& parameter : runner.model().parameters().parameters()) {
    const std::string& name = parameter.name;
    auto& layer = step.gradients[name.substr(0, name.find('.', name.find('.') + 1))];
    const auto* values = parameter.grad.as<float>();
    layer.insert(layer.end(), values, values + parameter.grad.numel());
  }
  return step;
}

/// |a - b| / |b|, for the gradients of one layer.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += std::pow(a[i] - b[i], 2), size += std::pow(b[i], 2);
  return std::sqrt(difference / size);
}

TEST(Calibration, FirstStepIsAccurateInDeepModels) {
  // FP32 scales, like those of delayed scaling.
  config::Config tensorwise = deep(config::Fp8Mode::hybrid, config::Fp8Recipe::tensorwise);
  tensorwise.precision.fp8_scale_format = config::Fp8ScaleFormat::fp32;
  const FirstStep exact = first_step(deep(config::Fp8Mode::off, config::Fp8Recipe::delayed)),
                  current = first_step(tensorwise),
                  delayed = first_step(deep(config::Fp8Mode::hybrid, config::Fp8Recipe::delayed));
  EXPECT_EQ(delayed.saturated, 0.0);
  for (const auto& [layer, gradient] : exact.gradients) {
    const double error = distance(delayed.gradients.at(layer), gradient),
                 current_error = distance(current.gradients.at(layer), gradient);
    EXPECT_LT(error, 1.25 * current_error + 1e-6) << layer;
  }
}

}  // namespace
}  // namespace te
