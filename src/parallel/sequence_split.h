// Which tokens of a sequence a context rank holds. Pure arithmetic, no communication.
//
// A sequence is cut into 2N chunks; rank r of N holds chunk r and chunk 2N - 1 - r, in this order. A token attends to
// those before it, so work grows along the sequence: a chunk of the front and its mirror at the back are as much as any
// other pair, and all ranks have equal work where each attends with its own tokens (Llama 3 herd of models, arXiv
// 2407.21783).
//
//   chunks of N = 2    | 0 | 1 | 2 | 3 |        rank 0: | 0 | 3 |        rank 1: | 1 | 2 |
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace te::parallel {

class SequenceSplit {
 public:
  /// Rank `rank` of `ranks`. InternalError unless 2 * ranks divides seq (where there are several).
  SequenceSplit(int64_t seq, int rank, int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int64_t seq() const { return seq_; }
  /// Tokens of a sequence that a rank holds.
  int64_t local() const { return seq_ / ranks_; }

  /// Consecutive tokens of a rank.
  struct Run {
    int64_t local = 0;     ///< the first one's place among the rank's tokens of the sequence
    int64_t position = 0;  ///< and in the sequence
    int64_t count = 0;
  };
  /// This rank's, in order: two, or one where it is alone.
  const std::vector<Run>& runs() const { return runs_; }
  std::vector<Run> runs_of(int rank) const;
  /// The run of this rank's local-th token.
  const Run& run_at(int64_t local) const {
    return runs_[runs_.size() == 1 || local < runs_[1].local ? 0 : 1];
  }

  /// local [samples, local()] = this rank's tokens of whole [samples, seq()].
  template <class T>
  void take(const T* whole, int64_t samples, T* local) const {
    for (int64_t sample = 0; sample < samples; ++sample) {
      for (const Run& run : runs_)
        std::copy_n(whole + sample * seq_ + run.position, run.count,
                    local + sample * this->local() + run.local);
    }
  }

 private:
  int64_t seq_;
  int rank_, ranks_;
  std::vector<Run> runs_;
};

}  // namespace te::parallel
