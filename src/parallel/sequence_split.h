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

#include "parallel/token_range.h"

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

  /// This rank's tokens in each sequence, in order: two, or one where it is alone.
  const std::vector<TokenRange>& ranges() const { return ranges_; }
  std::vector<TokenRange> ranges_of(int rank) const;
  /// The range of this rank's local-th token.
  const TokenRange& range_at(int64_t local) const {
    return ranges_[ranges_.size() == 1 || local < ranges_[1].local ? 0 : 1];
  }

  /// local [samples, local()] = this rank's tokens of whole [samples, seq()].
  template <class T>
  void copy_local(const T* full, int64_t samples, T* local) const {
    for (int64_t sample = 0; sample < samples; ++sample) {
      for (const TokenRange& range : ranges_)
        std::copy_n(full + sample * seq_ + range.begin, range.count,
                    local + sample * this->local() + range.local);
    }
  }

 private:
  int64_t seq_;
  int rank_, ranks_;
  std::vector<TokenRange> ranges_;
};

}  // namespace te::parallel
