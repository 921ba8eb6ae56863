#include "parallel/sequence_split.h"

#include "core/error.h"

namespace te::parallel {

SequenceSplit::SequenceSplit(int64_t seq, int rank, int ranks) : seq_(seq), rank_(rank), ranks_(ranks) {
  TE_CHECK(ranks >= 1 && rank >= 0 && rank < ranks, "sequence split: rank {} of {}", rank, ranks);
  TE_CHECK(ranks == 1 || seq % (2 * ranks) == 0, "sequence split: {} tokens are not divisible into {} chunks",
           seq, 2 * ranks);
  ranges_ = ranges_of(rank);
}

std::vector<TokenRange> SequenceSplit::ranges_of(int rank) const {
  if (ranks_ == 1) return {{0, 0, seq_}};
  const int64_t chunk = seq_ / (2 * ranks_);
  return {{0, rank * chunk, chunk}, {chunk, (2 * ranks_ - 1 - rank) * chunk, chunk}};
}

}  // namespace te::parallel
