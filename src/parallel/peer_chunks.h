// Order in which a tensor-parallel rank processes the tokens of all ranks, if copy engines transfer them
// (peer_transport.h).
//
// Each rank's shard is a run of the tokens, in rank order. All tokens are divided into `chunks` equal chunks, which are
// processed one after another. A chunk has the tokens of several ranks, of one rank, or a part of one rank's tokens.
//
//   4 ranks, rank 1   4 chunks: gathered 1 2 3 0, reduced 2 3 0 1     8 chunks: gathered 2 3 4 5 6 7 0 1
//
// A gather begins with the rank's own tokens, which are already available; a reduction ends with them, because they are
// not transferred.
#pragma once

#include <algorithm>
#include <cstdint>

namespace te::parallel {

struct PeerChunks {
  int ranks = 1, rank = 0;
  int chunks = 1;      ///< divides `ranks` or is a multiple of it
  int64_t tokens = 0;  ///< tokens of all ranks; a multiple of `ranks` and `chunks`

  bool valid() const {
    return (ranks % chunks == 0 || chunks % ranks == 0) && tokens % std::max(ranks, chunks) == 0;
  }
  int64_t shard() const { return tokens / ranks; }
  int64_t chunk() const { return tokens / chunks; }
  /// Number of transfers of a rank's tokens.
  int transfers_per_rank() const { return std::max(1, chunks / ranks); }
  int64_t transfer_rows() const { return shard() / transfers_per_rank(); }

  /// The `step`-th chunk of a gather and of a reduction.
  int gathered(int step) const { return (first() + step) % chunks; }
  int reduced(int step) const { return (first() + transfers_per_rank() + step) % chunks; }

  /// Number of transfers of rank `from` that must have arrived before rows [first_row, first_row + count) of the full
  /// tensor can be read.
  int needed(int from, int64_t first_row, int64_t count) const {
    const int64_t end = std::min(first_row + count, (from + 1) * shard()) - from * shard();
    if (end <= 0 || first_row >= (from + 1) * shard()) return 0;
    return static_cast<int>((end + transfer_rows() - 1) / transfer_rows());
  }

 private:
  int first() const { return rank * chunks / ranks; }  ///< first chunk with this rank's tokens
};

}  // namespace te::parallel
