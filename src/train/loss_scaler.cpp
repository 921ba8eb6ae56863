#include "train/loss_scaler.h"

#include <algorithm>

namespace te::train {

namespace {

constexpr double kGrowth = 2.0, kBackoff = 0.5;
/// Keeps a scaled loss far below the largest FP32 number. FP16 gradients overflow long before.
constexpr double kMaxScale = 0x1p64;

}  // namespace

LossScaler::LossScaler(const config::PrecisionConfig& precision)
    : active_(precision.dtype == config::ComputeDType::fp16),
      fixed_(precision.loss_scale != 0.0),
      initial_(fixed_ ? precision.loss_scale : precision.initial_loss_scale),
      least_(precision.min_loss_scale),
      window_(precision.loss_scale_window),
      hysteresis_(precision.hysteresis) {}

checkpoint::LossScale LossScaler::start(const checkpoint::LossScale& found) const {
  if (!active_) return {};
  if (fixed_) return {.scale = initial_};
  if (found.scale == 0.0) return {.scale = initial_, .hysteresis = hysteresis_};
  checkpoint::LossScale state = found;
  state.scale = std::max(state.scale, least_);
  return state;
}

bool LossScaler::update(checkpoint::LossScale& state, bool finite) const {
  if (!active_ || fixed_) return false;
  if (finite) {
    state.good_steps += 1;
    if (state.good_steps < window_) return false;
    state.good_steps = 0;
    state.hysteresis = hysteresis_;
    state.scale = std::min(state.scale * kGrowth, kMaxScale);
    return false;
  }
  state.good_steps = 0;
  if (state.hysteresis > 0) state.hysteresis -= 1;
  if (state.hysteresis > 0) return true;
  const double before = state.scale;
  state.scale = std::max(state.scale * kBackoff, least_);
  return state.scale < before;
}

}  // namespace te::train
