// The guard of an FP8 run: every guard.every steps it runs guard.compare_steps steps in BF16, restores the state, and
// compares the losses with those of the same steps in FP8, which the run takes anyway (after the training of
// Yi-Lightning, 01.AI, arXiv 2412.01253). A gap beyond the spread of earlier gaps triggers guard.action.
// docs/how-to/debug-fp8.md describes it.
//
// Its state is part of the run's progress (checkpoint::Guard), so a resumed run continues with it. The copy of the
// training state is not saved: after a resume within a comparison, `rollback` acts like `bf16`.
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

/// The largest gap (as a fraction of the BF16 loss) that is accepted, given the `gaps` of earlier comparisons.
double guard_limit(const config::GuardConfig& config, const std::vector<double>& gaps);

/// Mean FP8 loss minus mean BF16 loss, as a fraction of the BF16 loss. Infinite if only FP8 is not finite; empty if
/// BF16 is not finite.
std::optional<double> guard_gap(const std::vector<double>& fp8, const std::vector<double>& bf16);

class Guard {
 public:
  /// Functions of the trainer that the guard calls.
  struct Services {
    /// Reads the samples of a step; collective.
    std::function<void(int64_t first_sample, HostBatch& batch)> read;
    std::function<void(int64_t step)> wait;  ///< waits for the device
  };
  enum class Verdict : uint8_t {
    none,  ///< nothing was compared
    fine,
    warn,
    bf16,       ///< the next steps run in BF16
    roll_back,  ///< like bf16, and the state is restored to the start of the comparison; see start()
  };

  /// After the runner's allocation.
  Guard(const config::Config& config, const Context& context, StepRunner& runner, StepPrecision& precision,
        Services services);

  /// Call before a step and before its calibration, so that a run resumed here calibrates like an uninterrupted one:
  /// applies TE_TEST_OUTLIER=STEP:LOG2, with which tests make an FP8 run fail. From that step, inputs of linear_fc2 are
  /// quantized as if they had an outlier of 2^LOG2 times their maximum.
  void inject_outlier(int64_t step);

  /// Call before a step, after its precision is set: starts a comparison if one is due.
  void before_step(checkpoint::Progress& progress);
  /// Call after the step, with its `loss`.
  Verdict after_step(checkpoint::Progress& progress, double loss);
  /// After `roll_back`: the progress to which the run returns.
  const checkpoint::Progress& start() const { return start_; }
  /// Discards the comparison after the run has returned to a checkpoint.
  void discard(checkpoint::Progress& progress);

  /// Values for the step's record; may be empty.
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
  int64_t outlier_step_ = 0;
  int outlier_log2_ = 0;
  bool keep_record_ = false;  ///< its step is repeated: write it with the next step
  double seconds_ = 0;        ///< time of the last comparison's BF16 steps and copies
};

}  // namespace te::train
