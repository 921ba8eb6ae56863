// Order in which a tensor-parallel rank processes the tokens of all ranks, if copy engines transfer them
// (peer_transport.h).
//
// Each rank's shard is a run of the tokens, in rank order. All tokens are divided into `pieces` equal pieces, which are
// processed one after another. A piece has the tokens of several ranks, of one rank, or a chunk of one rank's tokens.
//
//   4 ranks, rank 1   4 pieces: gathered 1 2 3 0, reduced 2 3 0 1     8 pieces: gathered 2 3 4 5 6 7 0 1
//
// A gather begins with the rank's own tokens, which are already available; a reduction ends with them, because they are
// not transferred.
#pragma once

#include <algorithm>
#include <cstdint>

namespace te::parallel {

struct PeerPieces {
  int ranks = 1, rank = 0;
  int pieces = 1;      ///< divides `ranks` or is a multiple of it
  int64_t tokens = 0;  ///< tokens of all ranks; a multiple of `ranks` and `pieces`

  bool valid() const {
    return (ranks % pieces == 0 || pieces % ranks == 0) && tokens % std::max(ranks, pieces) == 0;
  }
  int64_t shard() const { return tokens / ranks; }
  int64_t piece() const { return tokens / pieces; }
  /// Number of chunks in which a rank's tokens are transferred.
  int chunks() const { return std::max(1, pieces / ranks); }
  int64_t chunk() const { return shard() / chunks(); }

  /// The `step`-th piece of a gather and of a reduction.
  int gathered(int step) const { return (first() + step) % pieces; }
  int reduced(int step) const { return (first() + chunks() + step) % pieces; }

  /// Number of chunks of rank `from` that must have arrived before rows [first_row, first_row + count) of the full
  /// tensor can be read.
  int needed(int from, int64_t first_row, int64_t count) const {
    const int64_t end = std::min(first_row + count, (from + 1) * shard()) - from * shard();
    if (end <= 0 || first_row >= (from + 1) * shard()) return 0;
    return static_cast<int>((end + chunk() - 1) / chunk());
  }

 private:
  int first() const { return rank * pieces / ranks; }  ///< first piece with this rank's tokens
};

}  // namespace te::parallel
