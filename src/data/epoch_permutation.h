// The shuffle of one epoch. Private to the data library.
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

/// Epochs that a view keeps: a batch that crosses the end of an epoch needs two.
constexpr size_t kRecentEpochs = 2;

/// A permutation of `size` items for (seed, stream, what, epoch): `stream` is the dataset's place in its blend.
inline Permutation epoch_permutation(int64_t size, uint64_t seed, uint64_t stream, std::string_view what,
                                     int64_t epoch) {
  const Philox4 random = philox(seed, stream_of(what) + stream, static_cast<uint64_t>(epoch));
  return {size, (uint64_t{random.word[0]} << 32) | random.word[1],
          (uint64_t{random.word[2]} << 32) | random.word[3]};
}

/// Items one after the other in the order of a permutation: where items 0, block, 2 * block, ... of that order begin,
/// and the sum of all lengths. read_lengths(first, lengths) gives the lengths of as many items from `first` on, and is
/// called for each item once, in ascending order, because an index of 10^8 documents has to be read from front to
/// back: in the order of an epoch each document costs several cache misses, or reads from a disk.
template <class ReadLengths>
std::vector<int64_t> block_starts(const Permutation& order, int64_t block, ReadLengths&& read_lengths) {
  std::vector<int64_t> starts(static_cast<size_t>((order.size() + block - 1) / block + 1));
  constexpr int64_t kPart = 256;  // places are known, and on their way to the cache, before they are added to
  int64_t places[kPart], lengths[kPart];
  for (int64_t first = 0; first < order.size(); first += kPart) {
    const int64_t count = std::min(kPart, order.size() - first);
    order.inverse(first, std::span(places, static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) {
      places[i] /= block;
      __builtin_prefetch(&starts[static_cast<size_t>(places[i])], 1);
    }
    read_lengths(first, std::span(lengths, static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) starts[static_cast<size_t>(places[i])] += lengths[i];
  }
  int64_t position = 0;
  for (int64_t& start : starts) position += std::exchange(start, position);
  return starts;
}

}  // namespace te::data
