// Loss spikes: detects divergence with finite losses. Large runs may see it after thousands of good steps, and a
// learning rate that is far too high causes it at once.
//
// The limit is robust: median and median absolute deviation of the last accepted losses, which a few spikes do not
// change. PaLM (Chowdhery et al., arXiv 2204.02311, section 5.1) restarted from a checkpoint some hundred steps earlier
// and skipped the data; Megatron-LM skips the updates of such steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "checkpoint/progress.h"
#include "config/config.h"

namespace te::train {

class LossSpikes {
 public:
  /// `threshold`: robust standard deviations above the median. `unknown_limit`: the limit until kMinAccepted losses are
  /// known. State is stored in `history`, which must outlive this object and is part of the run's progress, so that
  /// resumed and rolled-back runs make the same decisions.
  LossSpikes(double threshold, double unknown_limit, checkpoint::SpikeHistory& history)
      : threshold_(threshold), unknown_limit_(unknown_limit), history_(history) {}
  /// As the config has them.
  LossSpikes(const config::Config& config, checkpoint::SpikeHistory& history);

  /// A loss of the next step above this is a spike.
  double limit() const;
  /// The device skips the next step if its loss is above this: limit() with training.loss_spikes skip, else infinity.
  double skip_limit() const;
  /// The median of the accepted losses; 0 if there are none.
  double median() const;
  /// Adds the (finite) loss of a step. Returns true for a spike, which is not accepted, unless kNewLevel spikes in a
  /// row establish a new level. After lower losses, losses beyond `unknown_limit` never become the level.
  bool add(double loss);
  /// Call after the run has returned to an earlier step, whose history this is. The losses in `undone` are not
  /// accepted, but their spikes are counted, and the time since the last spike is kept.
  void rollback(const checkpoint::SpikeHistory& undone);

  /// No spike so far, or none in the last kMinAccepted steps: a run that has diverged may have a low loss by chance.
  bool is_stable() const {
    return history_.total == 0 || history_.since >= static_cast<int64_t>(kMinAccepted);
  }
  /// So many consecutive spikes, at such a level, that no loss will be accepted again: the run has diverged.
  bool has_diverged() const;
  int64_t consecutive() const { return static_cast<int64_t>(history_.row.size()); }
  int64_t total() const { return history_.total; }

  static constexpr size_t kWindow = 64, kMinAccepted = 16, kNewLevel = 32;
  /// Consecutive bad steps at the end of a run that a single bad batch does not explain.
  static constexpr int64_t kDiverged = 3;

 private:
  double threshold_, unknown_limit_;
  bool skips_ = false;
  checkpoint::SpikeHistory& history_;
};

/// For a run that ends now: which of its last steps say that it has probably diverged, as "the last 4 steps had a loss
/// spike" or "... were not finite"; else empty.
std::string diverged_steps(const checkpoint::Faults& faults, const LossSpikes& spikes);

}  // namespace te::train
