// Chooses sample parts of data that is too large to be read completely. Private to the data library.
#pragma once

#include <algorithm>
#include <cstdint>

namespace te::data {

constexpr int64_t kPieces = 256;

/// Calls visit(begin, count) for parts of [0, size) with at most `piece` elements each, in order. The parts cover
/// everything if size <= kPieces * piece; else there are kPieces evenly spaced parts that include both ends.
template <class Visit>
void for_each_piece(int64_t size, int64_t piece, Visit&& visit) {
  const bool whole = size <= kPieces * piece;
  const int64_t pieces = whole ? (size + piece - 1) / piece : kPieces;
  for (int64_t i = 0; i < pieces; ++i) {
    // Equal to (size - piece) * i / (kPieces - 1), but without overflow for any size.
    const int64_t begin =
        whole ? i * piece
              : (size - piece) / (kPieces - 1) * i + (size - piece) % (kPieces - 1) * i / (kPieces - 1);
    visit(begin, std::min(piece, size - begin));
  }
}

}  // namespace te::data
