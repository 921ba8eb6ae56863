// Which keys a query of causal attention does not see in front of it: those of earlier documents, and those beyond its
// window. Its first key never decreases along a sample, and never passes the query; so a block of queries sees a run of
// blocks of keys, and a block of keys is seen by a run of blocks of queries. The CPU's attention and all kernels of
// te-train's own have it from here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/random.h"
#include "kernels/attention/attention.h"

namespace te::kernels {

struct FirstKeys {
  /// [batch * seq] as in attention.h, or null: one document a sample.
  const int32_t* document_start = nullptr;
  int seq = 0;
  int window = 0;  ///< 0: none

  TE_HOST_DEVICE int of(int batch, int query) const {
    const int document = document_start == nullptr ? 0 : document_start[int64_t{batch} * seq + query];
    return window == 0 ? document : std::max(document, query - window + 1);
  }
  /// Also of queries that fill up the last block: that of the last query.
  TE_HOST_DEVICE int of_padded(int batch, int query) const { return of(batch, std::min(query, seq - 1)); }
};

/// document_start: there with shape.max_documents.
inline FirstKeys first_keys_of(const AttentionShape& shape, const Tensor& document_start) {
  return {document_start.as<int32_t>(), static_cast<int>(shape.seq), static_cast<int>(shape.window)};
}

/// Of a block of keys: blocks of queries, from the first one that is not in front of the keys.
struct VisibleQueries {
  int end;        ///< from there on nobody sees any of the keys; at most the first one: nobody at all
  int clear_end;  ///< up to there everybody sees them all, but for causality
  int end_below;  ///< end of the block of keys in front; 0: there is none
};

/// The first block of queries, of those in [begin, end), of which query `offset` has a first key of `least` or more.
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

/// Of the blocks of queries [first_block, end_block) of the sequence.
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
