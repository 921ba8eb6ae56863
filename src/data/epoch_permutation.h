// Shuffling of epochs. Private to the data library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/random.h"
#include "data/permutation.h"

namespace te::data {

/// Number of epochs that a view caches: a batch that crosses the end of an epoch needs two.
constexpr size_t kRecentEpochs = 2;

/// A permutation of `size` items for (seed, stream, what, epoch); `stream` is the dataset's index in its blend.
inline Permutation epoch_permutation(int64_t size, uint64_t seed, uint64_t stream, std::string_view what,
                                     int64_t epoch) {
  const Philox4 random = philox(seed, stream_of(what) + stream, static_cast<uint64_t>(epoch));
  return {size, (uint64_t{random.word[0]} << 32) | random.word[1],
          (uint64_t{random.word[2]} << 32) | random.word[3]};
}

/// For items that are concatenated in the order of a permutation: the start positions of items 0, block, 2 * block, ...
/// of that order, and the sum of all lengths. read_lengths(first, lengths) must fill `lengths` with the lengths of the
/// items from `first`. It is called once per item, in ascending order, so that an index of 10^8 documents is read
/// sequentially: in the order of an epoch, each document would cost several cache misses or disk reads.
template <class ReadLengths>
std::vector<int64_t> block_starts(const Permutation& order, int64_t block, ReadLengths&& read_lengths) {
  std::vector<int64_t> starts(static_cast<size_t>((order.size() + block - 1) / block + 1));
  constexpr int64_t kPart =
      256;  // blocks of this many items are computed and prefetched before they are updated
  int64_t blocks[kPart], lengths[kPart];
  for (int64_t first = 0; first < order.size(); first += kPart) {
    const int64_t count = std::min(kPart, order.size() - first);
    order.inverse(first, std::span(blocks, static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) {
      blocks[i] /= block;
      __builtin_prefetch(&starts[static_cast<size_t>(blocks[i])], 1);
    }
    read_lengths(first, std::span(lengths, static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) starts[static_cast<size_t>(blocks[i])] += lengths[i];
  }
  int64_t position = 0;
  for (int64_t& start : starts) position += std::exchange(start, position);
  return starts;
}

}  // namespace te::data
