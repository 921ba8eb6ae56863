#include "train/step_precision.h"

namespace te::train {

bool step_in_bf16(const config::PrecisionConfig& precision, int64_t asked, int64_t step) {
  return precision.fp8 != config::Fp8Mode::off && (step <= asked || !precision.fp8_in_step(step));
}

void set_step_precision(const Context& context, StepRunner& runner, bool bf16) {
  fp8::Recipe& recipe = runner.model().recipe();
  if (recipe.high_precision() == bf16) return;
  runner.optimizer().gatherer().wait_all(context);
  recipe.set_high_precision(bf16);
  // Between steps the table only has amaxes of weights. They are computed again by the recipes that need them in this
  // precision.
  if (recipe.table().size() > 0) context.zero(recipe.table().amax);
  runner.model().weights_changed(false);
}

StepPrecision::StepPrecision(const config::PrecisionConfig& precision, bool guarded, const Context& context,
                             StepRunner& runner, parallel::World& world)
    : config_(precision),
      guarded_(guarded),
      context_(context),
      runner_(runner),
      history_(world.max_i64(runner.model().recipe().needs_calibration() ? 1 : 0) != 0) {}

// BF16 steps that the guard of an earlier start asked for count only if this run has a guard.
bool StepPrecision::bf16(const checkpoint::Progress& progress, int64_t step) const {
  return step_in_bf16(config_, guarded_ ? progress.guard.bf16_until : 0, step);
}

bool StepPrecision::all_fp8(const checkpoint::Progress& progress, int64_t first, int64_t count) const {
  return !bf16(progress, first) && !bf16(progress, first + count - 1);
}

void StepPrecision::enter(const checkpoint::Progress& progress) {
  set(bf16(progress, progress.step + 1));
}

bool StepPrecision::calibrates(const checkpoint::Progress& progress, bool scales) const {
  const int64_t step = progress.step + 1;
  if (!history_ || bf16(progress, step)) return false;
  return !scales || (step > 1 && bf16(progress, step - 1));
}

}  // namespace te::train
