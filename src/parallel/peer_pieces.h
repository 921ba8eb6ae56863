// In which order a tensor rank works on the tokens of all, where they travel by copy engines (peer_transport.h).
//
// Every rank holds a run of the tokens, in the order of the ranks. `pieces` equal runs are worked on one after another:
// several ranks' tokens at once, one rank's, or each rank's in several chunks.
//
//   4 ranks, rank 1   4 pieces: gathered 1 2 3 0, reduced 2 3 0 1     8 pieces: gathered 2 3 4 5 6 7 0 1
//
// A gather begins with the tokens that are here already, a reduction ends with those that need not travel.
#pragma once

#include <algorithm>
#include <cstdint>

namespace te::parallel {

struct PeerPieces {
  int ranks = 1, rank = 0;
  int pieces = 1;      ///< divides `ranks` or is a multiple of it
  int64_t tokens = 0;  ///< of all ranks; a multiple of both

  bool valid() const {
    return (ranks % pieces == 0 || pieces % ranks == 0) && tokens % std::max(ranks, pieces) == 0;
  }
  int64_t shard() const { return tokens / ranks; }
  int64_t piece() const { return tokens / pieces; }
  /// A rank's tokens travel in so many chunks.
  int chunks() const { return std::max(1, pieces / ranks); }
  int64_t chunk() const { return shard() / chunks(); }

  /// The `step`-th piece of a gather and of a reduction.
  int gathered(int step) const { return (first() + step) % pieces; }
  int reduced(int step) const { return (first() + chunks() + step) % pieces; }

  /// How many chunks of a rank's must have come before rows [first, first + count) of the whole can be read.
  int needed(int from, int64_t first_row, int64_t count) const {
    const int64_t end = std::min(first_row + count, (from + 1) * shard()) - from * shard();
    if (end <= 0 || first_row >= (from + 1) * shard()) return 0;
    return static_cast<int>((end + chunk() - 1) / chunk());
  }

 private:
  int first() const { return rank * pieces / ranks; }  ///< of the pieces with this rank's tokens
};

}  // namespace te::parallel
