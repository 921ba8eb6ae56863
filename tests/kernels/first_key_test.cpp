// Blocks of queries and keys with first keys against every pair of a query and a key; also for query ranges.
#include "kernels/attention/first_key.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/attention_documents.h"

namespace te::kernels {
namespace {

constexpr int kKeys = 128;

struct Sample {
  FirstKeys first;
  int batch;

  bool sees(int query, int key) const { return key <= query && key >= first.of(batch, query); }
  /// Whether fn(query, key) holds for any pair of existing queries and keys of the two blocks.
  template <class Fn>
  bool any(int query_block, int queries, int key_block, Fn&& fn) const {
    for (int q = query_block * queries; q < std::min(first.seq, (query_block + 1) * queries); ++q)
      for (int k = key_block * kKeys; k < std::min(first.seq, (key_block + 1) * kKeys); ++k)
        if (fn(q, k)) return true;
    return false;
  }
};

template <int kQueries>
void check(const Sample& sample) {
  const int seq = sample.first.seq, key_blocks = (seq + kKeys - 1) / kKeys,
            query_blocks = (seq + kQueries - 1) / kQueries;
  std::vector<VisibleQueries> all;
  for (int keys = 0; keys < key_blocks; ++keys) {
    const VisibleQueries seen =
        visible_queries<kKeys, kQueries>(sample.first, sample.batch, keys, 0, query_blocks);
    for (int queries = keys * kKeys / kQueries; queries < query_blocks; ++queries) {
      const auto any = [&](auto&& fn) { return sample.any(queries, kQueries, keys, fn); };
      ASSERT_EQ(queries < seen.end, any([&](int q, int k) { return sample.sees(q, k); }))
          << "keys " << keys << ", queries " << queries;
      const bool hidden = any([&](int q, int k) { return k <= q && !sample.sees(q, k); });
      ASSERT_EQ(queries >= seen.clear_end, hidden) << "keys " << keys << ", queries " << queries;
    }
    ASSERT_EQ(seen.end_below, keys == 0 ? 0 : all.back().end);
    all.push_back(seen);
  }
  // The backward pass adds the parts of dq from the diagonal to the last visible block, and omits none.
  for (int queries = 0; queries < query_blocks; ++queries) {
    int last = -1;
    for (int keys = queries * kQueries / kKeys; keys >= 0; --keys) {
      const VisibleQueries& seen = all[static_cast<size_t>(keys)];
      ASSERT_EQ(queries < seen.end, last < 0) << "keys " << keys << ", queries " << queries;
      if (queries < seen.end && queries >= seen.end_below) last = keys;
    }
    ASSERT_EQ(last, sample.first.of(sample.batch, queries * kQueries) / kKeys);
  }
}

/// The result for a query range equals the part of the full result within the range.
template <int kQueries>
void check_ranges(const Sample& sample) {
  const int key_blocks = (sample.first.seq + kKeys - 1) / kKeys,
            query_blocks = (sample.first.seq + kQueries - 1) / kQueries;
  for (int begin = 0; begin < query_blocks; begin += kKeys / kQueries) {
    for (int end = begin + 1; end <= query_blocks; ++end) {
      for (int keys = 0; keys * kKeys < end * kQueries && keys < key_blocks; ++keys) {
        const VisibleQueries whole = visible_queries<kKeys, kQueries>(sample.first, sample.batch, keys, 0,
                                                                      query_blocks),
                             part = visible_queries<kKeys, kQueries>(sample.first, sample.batch, keys, begin,
                                                                     end);
        for (int queries = std::max(begin, keys * kKeys / kQueries); queries < end; ++queries) {
          ASSERT_EQ(queries < part.end, queries < whole.end) << keys << " " << queries;
          ASSERT_EQ(queries >= part.clear_end, queries >= whole.clear_end) << keys << " " << queries;
          ASSERT_EQ(queries >= part.end_below, queries >= whole.end_below) << keys << " " << queries;
        }
      }
    }
  }
}

TEST(FirstKey, BlocksAgainstEveryPair) {
  constexpr int kBatch = 2;
  for (const int seq : {2, 64, 127, 128, 129, 320, 700}) {
    const std::vector<int32_t> many = some_documents(kBatch, seq);
    std::vector<int32_t> two(many.size());  // one document, and one that begins late
    for (int i = seq / 2; i < seq; ++i) two[static_cast<size_t>(i)] = seq / 2;
    for (const int32_t* start :
         {static_cast<const int32_t*>(nullptr), many.data(), std::as_const(two).data()}) {
      for (const int window : {0, 1, 2, 63, 128, 129, 300}) {
        if (start == nullptr && window == 0) continue;
        for (int batch = 0; batch < kBatch; ++batch) {
          SCOPED_TRACE(fmt::format("seq {}, window {}, sample {}, {}", seq, window, batch,
                                   start == nullptr      ? "one document"
                                   : start == two.data() ? "two"
                                                         : "many"));
          const Sample sample{{start, seq, window}, batch};
          check<64>(sample);
          check<128>(sample);
          check_ranges<64>(sample);
          check_ranges<128>(sample);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(FirstKey, IsMaximumOfDocumentAndWindow) {
  const std::vector<int32_t> start{0, 0, 2, 2, 2};
  const FirstKeys both{start.data(), 5, 2};
  EXPECT_EQ(both.of(0, 1), 0);
  EXPECT_EQ(both.of(0, 2), 2);
  EXPECT_EQ(both.of(0, 4), 3);
  EXPECT_EQ(both.of_padded(0, 7), 3);
  EXPECT_EQ((FirstKeys{nullptr, 5, 3}.of(0, 4)), 2);
}

}  // namespace
}  // namespace te::kernels
