// The precision of each step of an FP8 run: FP8 within the schedule (precision.fp8_from_step, fp8_until_step), BF16
// outside of it and where the guard asks for it. A BF16 step runs like a step of a BF16 run
// (fp8::Recipe::set_high_precision), but recipes with a history still record the amaxes.
//
// The precision of a step depends only on its number, the config and the run's progress, so resumed runs and all ranks
// make the same decision.
#pragma once

#include <cstdint>

#include "checkpoint/manifest.h"
#include "config/config.h"
#include "parallel/world.h"
#include "train/step_runner.h"

namespace te::train {

/// Whether step `step` of an FP8 run is taken in BF16; false in runs without FP8. `asked`: the guard asks for BF16 up
/// to this step; 0: no.
bool step_in_bf16(const config::PrecisionConfig& precision, int64_t asked, int64_t step);

/// Sets the precision of all following passes. Weights are quantized at their next use.
void set_step_precision(const Context& context, StepRunner& runner, bool bf16);

class StepPrecision {
 public:
  /// Collective. All arguments but the world must outlive it. `guarded`: the guard's requests count.
  StepPrecision(const config::PrecisionConfig& precision, bool guarded, const Context& context,
                StepRunner& runner, parallel::World& world);

  /// Whether all of these steps are in FP8.
  bool all_fp8(const checkpoint::Progress& progress, int64_t first, int64_t count) const;

  /// Call before a step: sets its precision for all following passes.
  void enter(const checkpoint::Progress& progress);
  /// Sets a precision of the caller's choice.
  void set(bool bf16) { set_step_precision(context_, runner_, bf16); }

  /// Whether the next step needs calibration: it is in FP8, its scales come from a history, and either the previous
  /// step was in BF16 or there is no history yet (`scales` false: no checkpoint or step has made one).
  bool calibrates(const checkpoint::Progress& progress, bool scales) const;

 private:
  bool bf16(const checkpoint::Progress& progress, int64_t step) const;

  const config::PrecisionConfig& config_;
  const bool guarded_;
  const Context& context_;
  StepRunner& runner_;
  const bool history_;  ///< some rank has scales with a history; all ranks calibrate
};

}  // namespace te::train
