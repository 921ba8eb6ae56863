// Which parts of something too large to be read whole stand for it. Private to the data library.
#pragma once

#include <algorithm>
#include <cstdint>

namespace te::data {

constexpr int64_t kPieces = 256;

/// Calls visit(begin, count) for parts of [0, size) of at most `piece` each, in order: all of it up to kPieces * piece,
/// else kPieces parts, evenly spread, with both ends among them.
template <class Visit>
void for_each_piece(int64_t size, int64_t piece, Visit&& visit) {
  const bool whole = size <= kPieces * piece;
  const int64_t pieces = whole ? (size + piece - 1) / piece : kPieces;
  for (int64_t i = 0; i < pieces; ++i) {
    // Not i * (size - piece) / ...: a product of the two may leave 64 bits in no dataset, but a quotient never does.
    const int64_t begin =
        whole ? i * piece
              : (size - piece) / (kPieces - 1) * i + (size - piece) % (kPieces - 1) * i / (kPieces - 1);
    visit(begin, std::min(piece, size - begin));
  }
}

}  // namespace te::data
