// The precision of each step of an FP8 run: FP8 inside of the schedule (precision.fp8_from_step, fp8_until_step), BF16
// outside of it and where the guard has asked for it. A step in BF16 runs through the model as a BF16 run's does
// (fp8::Recipe::set_high_precision); recipes with a history record its amaxes all the same.
//
// Which precision a step has depends on its number, the config and the run's progress alone, so a resumed run takes it
// as one that was not interrupted does, and so do all ranks.
#pragma once

#include <cstdint>

#include "checkpoint/manifest.h"
#include "config/config.h"
#include "parallel/world.h"
#include "train/step_runner.h"

namespace te::train {

/// Step `step` of an FP8 run is taken in BF16; in a run without FP8 no step is said to be. `asked`: up to this step the
/// guard wants it so; 0 where there is none.
bool step_in_bf16(const config::PrecisionConfig& precision, int64_t asked, int64_t step);

class StepPrecision {
 public:
  /// On all ranks at once. All but the world must outlive it. `guarded`: what a guard has asked for counts.
  StepPrecision(const config::PrecisionConfig& precision, bool guarded, const Context& context,
                StepRunner& runner, parallel::World& world);

  /// All of these steps are in FP8.
  bool all_fp8(const checkpoint::Progress& progress, int64_t first, int64_t count) const;

  /// Before a step: passes run in its precision from here on.
  void enter(const checkpoint::Progress& progress);
  /// The same in a precision of the caller's choice. Weights are cast when they are used next.
  void set(bool bf16);

  /// The next step is in FP8, its scales come from a history, and they are to be found by calibration: because the step
  /// before was in BF16, or because there is no history (`scales` false: neither a checkpoint nor a step has made one).
  bool calibrates(const checkpoint::Progress& progress, bool scales) const;

 private:
  bool bf16(const checkpoint::Progress& progress, int64_t step) const;

  const config::PrecisionConfig& config_;
  const bool guarded_;
  const Context& context_;
  StepRunner& runner_;
  const bool history_;  ///< scales of some rank's operands come from one; all take part in finding them
};

}  // namespace te::train
