// Finite divergence: a loss far above those before it. Large runs meet it after thousands of good steps, and a learning
// rate that is far too high at once; either way no number needs to become infinite for the run to be lost.
//
// The limit is robust: median and median absolute deviation of the last accepted losses, which a few spikes do not
// move. PaLM (Chowdhery et al., arXiv 2204.02311, section 5.1) went back some hundred steps and left the data out;
// Megatron-LM skips such steps' updates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checkpoint/progress.h"
#include "config/config.h"

namespace te::train {

class LossSpikes {
 public:
  /// `threshold`: robust standard deviations above the median. `unknown_limit`: the limit until kFewest losses are
  /// known.
  /// What is remembered is kept in `history`, which must outlive it: part of the run's progress, so that a resumed run
  /// and one that goes back to a checkpoint judge losses as they were judged there.
  LossSpikes(double threshold, double unknown_limit, checkpoint::SpikeHistory& history)
      : threshold_(threshold), unknown_limit_(unknown_limit), history_(history) {}
  /// As the config has them.
  LossSpikes(const config::Config& config, checkpoint::SpikeHistory& history);

  /// A loss above it is a spike: of the next step.
  double limit() const;
  /// The next step is skipped by the device when its loss is above it: limit() with training.loss_spikes skip, else
  /// infinite.
  double skip_limit() const;
  /// The median of the accepted losses; 0 when there is none.
  double median() const;
  /// Takes the (finite) loss of a step. True for a spike: it is not accepted, unless so many in a row say that this is
  /// the level now. Losses beyond `unknown_limit` are the level of no run that had lower ones.
  bool add(double loss);
  /// The history is that of an earlier step, and the run continues from there after what `undone` holds: those losses
  /// were never accepted, but the spikes among them are counted, and the last one was as recent as it was.
  void rollback(const checkpoint::SpikeHistory& undone);

  /// No spike so far, or none in the last kFewest steps: a run that has diverged may meet a low loss by chance.
  bool is_stable() const {
    return history_.total == 0 || history_.since >= static_cast<int64_t>(kMinAccepted);
  }
  /// So many spikes in a row, at such a level that no more will be accepted: the run has diverged.
  bool has_diverged() const;
  /// The run ends here and has probably diverged: not a single odd batch, but its last steps were spikes.
  bool probably_diverged() const { return consecutive() >= kDiverged; }
  int64_t consecutive() const { return static_cast<int64_t>(history_.row.size()); }
  int64_t total() const { return history_.total; }

  static constexpr size_t kWindow = 64, kMinAccepted = 16, kNewLevel = 32;
  static constexpr int64_t kDiverged = 3;

 private:
  double threshold_, unknown_limit_;
  bool skips_ = false;
  checkpoint::SpikeHistory& history_;
};

}  // namespace te::train
