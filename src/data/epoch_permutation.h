// The shuffle of one epoch. Private to the data room.
#pragma once

#include <cstddef>
#include <string_view>

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

}  // namespace te::data
