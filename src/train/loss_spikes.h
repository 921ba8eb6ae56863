// Finite divergence: a loss far above those before it. Large runs meet it after thousands of good steps, and a learning
// rate that is far too high at once; either way no number needs to become infinite for the run to be lost.
//
// The limit is robust: median and median absolute deviation of the last accepted losses, which a few spikes do not
// move. PaLM (Chowdhery et al., arXiv 2204.02311, section 5.1) went back some hundred steps and left the data out;
// Megatron-LM skips such steps' updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace te::train {

class LossSpikes {
 public:
  /// `threshold`: robust standard deviations above the median. `unknown_limit`: the limit until kFewest losses are
  /// known.
  LossSpikes(double threshold, double unknown_limit) : threshold_(threshold), unknown_limit_(unknown_limit) {}

  /// A loss above it is a spike: of the next step.
  double limit() const;
  /// The median of the accepted losses; 0 when there is none.
  double median() const;
  /// Takes the (finite) loss of a step. True for a spike: it is not accepted, unless so many in a row say that this is
  /// the level now. Losses beyond `unknown_limit` are the level of no run that had lower ones.
  bool add(double loss);
  /// After a rollback: the losses since then never were.
  void forget(int64_t newest);

  /// No spike so far, or none in the last kFewest steps: a run that has diverged may meet a low loss by chance.
  bool calm() const { return total_ == 0 || since_ >= static_cast<int64_t>(kFewest); }
  /// So many spikes in a row, at such a level that no more will be accepted: the run has diverged.
  bool lost() const;
  int64_t in_a_row() const { return static_cast<int64_t>(row_.size()); }
  int64_t total() const { return total_; }

  static constexpr size_t kWindow = 64, kFewest = 16, kNewLevel = 32;

 private:
  double threshold_, unknown_limit_;
  std::deque<double> accepted_, row_;
  int64_t total_ = 0, since_ = 0;
};

}  // namespace te::train
