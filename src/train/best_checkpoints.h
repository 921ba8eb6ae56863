// What an evaluation means for the run: is this one of its best checkpoints, and has it stopped to get better? What is
// remembered for it is part of the run's state (checkpoint::Validation), so that a resumed run goes on counting.
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

/// The loss of the set (training.best_valid_set); empty when it was not evaluated.
std::optional<double> deciding_loss(const std::string& set, const std::vector<SetLoss>& losses);

class BestCheckpoints {
 public:
  BestCheckpoints(const config::TrainingConfig& training, const config::CheckpointConfig& checkpoint);

  /// Before the first step: the state that a checkpoint had is for another set, or the best checkpoints of it are no
  /// longer there, or more than keep_best: then it is forgotten. Collective.
  void resume(checkpoint::Validation& state, parallel::World& world) const;

  /// Takes the loss of an evaluation after `step`. A loss that is not finite is no gain.
  void evaluated(checkpoint::Validation& state, double loss) const;
  /// Whether a checkpoint of this loss would be among the best.
  bool among_best(const checkpoint::Validation& state, double loss) const;
  /// Puts it there; returns the steps of those that are no longer among them and were saved for nothing else. `extra`:
  /// so is this one.
  std::vector<int64_t> add(checkpoint::Validation& state, int64_t step, double loss, bool extra) const;

  /// The run has waited long enough for a gain.
  bool exhausted(const checkpoint::Validation& state) const;
  /// Why it ends, for the log.
  std::string describe(const checkpoint::Validation& state) const;

 private:
  std::string set_, directory_;
  int64_t keep_, patience_;
  double min_delta_;
};

}  // namespace te::train
