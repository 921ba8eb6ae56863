// First key that each query of causal attention sees, given its document and the sliding window. Along a sample, first
// keys never decrease, and they never exceed the query's position. A block of queries therefore sees a contiguous run
// of key blocks, and a block of keys is seen by a contiguous run of query blocks. Used by the CPU attention and all of
// te-train's own kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/random.h"
#include "kernels/attention/attention.h"

namespace te::kernels {

struct FirstKeys {
  /// [batch * seq] as in attention.h; null if every sample is one document.
  const int32_t* document_start = nullptr;
  int seq = 0;
  int window = 0;  ///< 0: none

  TE_HOST_DEVICE int of(int batch, int query) const {
    const int document = document_start == nullptr ? 0 : document_start[int64_t{batch} * seq + query];
    return window == 0 ? document : std::max(document, query - window + 1);
  }
  /// Also accepts queries that pad the last block; they get the first key of the last query.
  TE_HOST_DEVICE int of_padded(int batch, int query) const { return of(batch, std::min(query, seq - 1)); }
};

/// document_start is required if shape.max_documents > 0.
inline FirstKeys first_keys_of(const AttentionShape& shape, const Tensor& document_start) {
  return {document_start.as<int32_t>(), static_cast<int>(shape.seq), static_cast<int>(shape.window)};
}

/// Query blocks that see a block of keys, starting with the first one that is not entirely before the keys.
struct VisibleQueries {
  int end;  ///< no query from this block on sees any of the keys; if at most the first block, no query does
  int clear_end;  ///< all queries before this block see all of the keys, except for causality
  int end_below;  ///< `end` of the preceding block of keys; 0 if there is none
};

/// First block of queries in [begin, end) whose query `offset` has a first key of at least `least`.
template <int kQueries>
TE_HOST_DEVICE int first_block_with(const FirstKeys& first, int batch, int begin, int end, int offset,
                                    int least) {
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (first.of_padded(batch, middle * kQueries + offset) >= least) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

/// Restricted to blocks of queries [first_block, end_block) of the sequence.
template <int kKeys, int kQueries>
TE_HOST_DEVICE VisibleQueries visible_queries(const FirstKeys& first, int batch, int keys, int first_block,
                                              int end_block) {
  const int key = keys * kKeys, begin = std::max(key / kQueries, first_block);
  return {first_block_with<kQueries>(first, batch, begin, end_block, 0, key + kKeys),
          first_block_with<kQueries>(first, batch, begin, end_block, kQueries - 1, key + 1),
          keys == 0 ? 0
                    : first_block_with<kQueries>(
                          first, batch, std::max((key - kKeys) / kQueries, first_block), end_block, 0, key)};
}

}  // namespace te::kernels
