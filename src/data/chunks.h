// Chooses sample parts of data that is too large to be read completely. Private to the data library.
#pragma once

#include <algorithm>
#include <cstdint>

namespace te::data {

constexpr int64_t kMaxChunks = 256;

/// Calls visit(begin, count) for parts of [0, size) with at most `chunk` elements each, in order. The parts cover
/// everything if size <= kMaxChunks * chunk; else there are kMaxChunks evenly spaced parts that include both ends.
template <class Visit>
void for_each_chunk(int64_t size, int64_t chunk, Visit&& visit) {
  const bool whole = size <= kMaxChunks * chunk;
  const int64_t chunks = whole ? (size + chunk - 1) / chunk : kMaxChunks;
  for (int64_t i = 0; i < chunks; ++i) {
    // Equal to (size - chunk) * i / (kMaxChunks - 1), but without overflow for any size.
    const int64_t begin = whole ? i * chunk
                                : (size - chunk) / (kMaxChunks - 1) * i +
                                      (size - chunk) % (kMaxChunks - 1) * i / (kMaxChunks - 1);
    visit(begin, std::min(chunk, size - begin));
  }
}

}  // namespace te::data
