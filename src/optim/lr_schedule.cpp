// See lr_schedule.h for the formulas.
#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace te::optim {

float LrSchedule::at(int64_t step) const {
  TE_CHECK(step >= 1, "LrSchedule: step {} must be at least 1", step);
  if (step <= warmup_steps)
    return static_cast<float>(lr * static_cast<double>(step) / static_cast<double>(warmup_steps));
  if (decay == LrDecay::constant) return static_cast<float>(lr);
  if (step >= decay_steps) return static_cast<float>(min_lr);

  const int64_t warm = std::max<int64_t>(warmup_steps, 0);
  const int64_t begin = decay == LrDecay::wsd ? std::max(warm, decay_steps - wsd_decay_steps) : warm;
  if (step <= begin) return static_cast<float>(lr);
  const double progress = static_cast<double>(step - begin) / static_cast<double>(decay_steps - begin);
  if (decay == LrDecay::cosine)
    return static_cast<float>(min_lr + (lr - min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  return static_cast<float>(lr + (min_lr - lr) * progress);
}

LrSchedule schedule_of(const config::OptimizerConfig& config) {
  return {.lr = config.lr,
          .min_lr = config.min_lr,
          .warmup_steps = config.warmup_steps,
          .decay_steps = config.decay_steps,
          .decay = config.decay,
          .wsd_decay_steps = config.wsd_decay_steps};
}

}  // namespace te::optim
