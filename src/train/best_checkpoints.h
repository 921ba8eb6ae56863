// Tracks the best checkpoints by validation loss and decides on early stopping. Its state is part of the run's state
// (checkpoint::Validation), so a resumed run continues the count.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/config.h"
#include "parallel/world.h"
#include "train/metrics.h"

namespace te::train {

/// The loss of `set` (DataConfig::deciding_set()); empty if that set was not evaluated.
std::optional<double> deciding_loss(const std::string& set, const std::vector<SetLoss>& losses);

/// Says which samples of which data give the deciding loss; losses of other samples are not comparable. `samples`:
/// their number; `datasets`: of the run. Empty without validation.
std::string deciding_samples(const config::Config& config, int64_t samples,
                             const std::vector<checkpoint::Dataset>& datasets);

class BestCheckpoints {
 public:
  explicit BestCheckpoints(const config::Config& config);

  /// Call before the first step. Resets the loaded state if it belongs to other validation samples, and drops best
  /// checkpoints that no longer exist or exceed keep_best. `samples`: deciding_samples() on rank 0. Collective.
  void resume(checkpoint::Validation& state, const std::string& samples, parallel::World& world);
  /// Likewise after a return to an earlier state of this run.
  void restore(checkpoint::Validation& state, parallel::World& world) const;

  /// Records the loss of an evaluation. A loss that is not finite is not an improvement.
  void evaluated(checkpoint::Validation& state, double loss) const;
  /// Whether a checkpoint with this loss would be among the best.
  bool among_best(const checkpoint::Validation& state, double loss) const;
  /// Adds a checkpoint to the best ones. Returns the steps of those that drop out and were saved only for being among
  /// the best. `extra`: the same is true of this checkpoint.
  std::vector<int64_t> add(checkpoint::Validation& state, int64_t step, double loss, bool extra) const;

  /// Whether early stopping is due: no improvement for `patience` evaluations.
  bool exhausted(const checkpoint::Validation& state) const;
  /// Reason for early stopping, for the log.
  std::string describe(const checkpoint::Validation& state) const;

 private:
  std::string set_, samples_, directory_;
  int64_t keep_, patience_;
};

}  // namespace te::train
