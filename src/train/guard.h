// The guard of an FP8 run: every guard.every steps it takes guard.compare_steps steps in BF16, puts the state back, and
// compares their losses with those of the same steps in FP8, which the run takes anyway (after Yi-Lightning's training,
// 01.AI, arXiv 2412.01253). A gap beyond the spread of earlier ones is an excess, on which guard.action acts.
// docs/how-to/debug-fp8.md describes it.
//
// What it knows is part of the run's progress (checkpoint::Guard), so that a resumed run goes on with it; the copy of
// the state is not, so after a resume inside of a comparison `rollback` acts as `bf16` does.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/config.h"
#include "train/state_copy.h"
#include "train/step_precision.h"

namespace te::train {

/// The largest gap (share of the BF16 loss) that is none; `gaps`: of earlier comparisons.
double guard_limit(const config::GuardConfig& config, const std::vector<double>& gaps);

/// How much higher the mean of the FP8 losses is, as a share of that of the BF16 ones. Infinite where only FP8 is not
/// finite, none where BF16 is not either.
std::optional<double> guard_gap(const std::vector<double>& fp8, const std::vector<double>& bf16);

class Guard {
 public:
  /// How the trainer serves it.
  struct Services {
    /// Reads the samples of a step, on all ranks.
    std::function<void(int64_t first_sample, HostBatch& batch)> read;
    std::function<void(int64_t step)> wait;           ///< for the device
    std::function<std::optional<double>()> validate;  ///< the deciding loss; none where data cannot be read
  };
  enum class Verdict : uint8_t {
    none,  ///< nothing was compared
    fine,
    warn,
    bf16,       ///< the next steps are taken in BF16
    roll_back,  ///< the same, and the state is that of the comparison's beginning: start() has the progress
  };

  /// After the runner's allocation.
  Guard(const config::Config& config, const Context& context, StepRunner& runner, StepPrecision& precision,
        Services services);

  /// Before a step and the calibration that it may begin with: guard.test_outlier_step. So a run that is resumed here
  /// calibrates as one that was not interrupted.
  void inject_outlier(int64_t step);

  /// Before a step, in its precision: begins a comparison where one is due.
  void before_step(checkpoint::Progress& progress);
  /// After it: `loss` of the step.
  Verdict after_step(checkpoint::Progress& progress, double loss);
  /// The progress at the beginning of the last comparison.
  const checkpoint::Progress& start() const { return start_; }
  /// The run has gone back to a checkpoint: what was compared is void.
  void discard(checkpoint::Progress& progress);

  /// For the step's record; empty where there is nothing to say.
  std::vector<std::pair<std::string, double>> record() const { return record_; }

 private:
  void compare(checkpoint::Progress& progress);
  Verdict decide(checkpoint::Progress& progress);

  const config::Config& config_;
  const Context& context_;
  StepRunner& runner_;
  StepPrecision& precision_;
  Services services_;
  StateCopy copy_;
  HostBatch batch_;
  checkpoint::Progress start_;
  std::vector<std::pair<std::string, double>> record_;
  bool keep_record_ = false;  ///< the step that has it is taken again: the next one says it
  double seconds_ = 0;        ///< of the last comparison's BF16 steps and copies
};

}  // namespace te::train
