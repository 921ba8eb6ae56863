#include "train/loss_scaler.h"

#include <algorithm>

namespace te::train {

namespace {

constexpr double kGrowth = 2.0, kBackoff = 0.5, kMinScale = 1.0;
constexpr int64_t kGrowthInterval = 2000;
/// Keeps a scaled loss far below the largest FP32 number. FP16 gradients overflow long before.
constexpr double kMaxScale = 0x1p64;

}  // namespace

LossScaler::LossScaler(const config::PrecisionConfig& precision)
    : active_(precision.dtype == config::ComputeDType::fp16),
      fixed_(precision.loss_scale != 0.0),
      initial_(fixed_ ? precision.loss_scale : precision.initial_loss_scale) {}

checkpoint::LossScale LossScaler::start(const checkpoint::LossScale& found) const {
  if (!active_) return {};
  if (fixed_) return {.scale = initial_};
  return found.scale == 0.0 ? checkpoint::LossScale{.scale = initial_} : found;
}

bool LossScaler::update(checkpoint::LossScale& state, bool finite) const {
  if (!active_ || fixed_) return false;
  if (finite) {
    state.good_steps += 1;
    if (state.good_steps < kGrowthInterval) return false;
    state.good_steps = 0;
    state.scale = std::min(state.scale * kGrowth, kMaxScale);
    return false;
  }
  state.good_steps = 0;
  const double before = state.scale;
  state.scale = std::max(state.scale * kBackoff, kMinScale);
  return state.scale < before;
}

}  // namespace te::train
