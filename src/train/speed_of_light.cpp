#include "train/speed_of_light.h"

#include "model/model_stage.h"
#include "optim/muon.h"
#include "train/flops.h"

namespace te::train {
namespace {

double update_bytes(config::Config config) {
  config.parallel = {};
  const config::OptimizerConfig& optimizer = config.optimizer;
  const double gradient = optimizer.main_grad_dtype == config::GradDType::fp32 ? 4.0 : 2.0;
  model::ModelStage model(config);  // only describes its parameters
  double bytes = 0;
  for (const parameters::Parameter& parameter : model.parameters().parameters()) {
    if (!parameter.trainable) continue;
    const double state =
        4.0 + bytes_of(optimizer.exp_avg_dtype) +
        (optim::has_one_moment(optimizer.name, parameter) ? 0.0 : bytes_of(optimizer.exp_avg_sq_dtype));
    bytes += static_cast<double>(parameter.shape.numel()) * (gradient + 2.0 * state);
  }
  return bytes;
}

}  // namespace

std::optional<SpeedOfLight> speed_of_light(const config::Config& config, const GpuModel* gpu, int ranks) {
  if (gpu == nullptr || config.precision.dtype == config::ComputeDType::fp32) return {};
  const auto tokens = static_cast<double>(config.training.global_batch_size * config.model.seq_length);
  const TokenFlops flops = token_flops(config);
  const double update = update_bytes(config) / gpu->memory;
  const auto step = [&](double fp8, double high_precision) {
    const double fp8_seconds = fp8 > 0 ? fp8 / gpu->fp8 : 0.0;
    return ((fp8_seconds + high_precision / gpu->bf16) * tokens + update) / ranks;
  };
  return SpeedOfLight{.fp8_step = step(flops.fp8, flops.high_precision),
                      .high_precision_step = step(0, flops.total())};
}

}  // namespace te::train
