// Tokens of a sequence that a context-parallel rank has. Pure arithmetic, no communication.
//
// A sequence is divided into 2N chunks; rank r of N has chunk r and chunk 2N - 1 - r, in this order. With causal
// attention the work per token grows along the sequence. A chunk near the beginning and its mirror chunk near the end
// have as much work as any other such pair, so all ranks have equal work for their own queries (Llama 3 herd of models,
// arXiv 2407.21783).
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
  /// For rank `rank` of `ranks`. InternalError if there are several ranks and 2 * ranks does not divide seq.
  SequenceSplit(int64_t seq, int rank, int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int64_t seq() const { return seq_; }
  /// Number of tokens of a sequence on each rank.
  int64_t local() const { return seq_ / ranks_; }

  /// This rank's ranges of tokens in each sequence, in order: two, or one if there is only one rank.
  const std::vector<TokenRange>& ranges() const { return ranges_; }
  std::vector<TokenRange> ranges_of(int rank) const;
  /// The range that contains this rank's local-th token.
  const TokenRange& range_at(int64_t local) const {
    return ranges_[ranges_.size() == 1 || local < ranges_[1].local ? 0 : 1];
  }

  /// local [samples, local()] = this rank's tokens of full [samples, seq()].
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
