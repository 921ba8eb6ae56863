// Order of chunks in which tensor-parallel ranks process tokens that copy engines transfer.
#include "parallel/peer_chunks.h"

#include <vector>

#include "testing/testing.h"

namespace te::testing {
namespace {

using parallel::PeerChunks;

std::vector<int> order(const PeerChunks& order, int (PeerChunks::*chunk_of)(int) const) {
  std::vector<int> chunks;
  for (int step = 0; step < order.chunks; ++step) chunks.push_back((order.*chunk_of)(step));
  return chunks;
}

TEST(PeerChunks, OwnTokensAreGatheredFirstAndReducedLast) {
  const auto gathered = [](PeerChunks chunks) { return order(chunks, &PeerChunks::gathered); };
  const auto reduced = [](PeerChunks chunks) { return order(chunks, &PeerChunks::reduced); };
  using Order = std::vector<int>;
  EXPECT_EQ(gathered({2, 1, 1, 8}), (Order{0}));
  EXPECT_EQ(reduced({2, 1, 1, 8}), (Order{0}));
  EXPECT_EQ(gathered({2, 1, 2, 8}), (Order{1, 0}));
  EXPECT_EQ(reduced({2, 1, 2, 8}), (Order{0, 1}));
  EXPECT_EQ(gathered({2, 1, 4, 8}), (Order{2, 3, 0, 1}));
  EXPECT_EQ(reduced({2, 1, 4, 8}), (Order{0, 1, 2, 3}));
  EXPECT_EQ(gathered({4, 1, 8, 8}), (Order{2, 3, 4, 5, 6, 7, 0, 1}));
  EXPECT_EQ(reduced({4, 1, 8, 8}), (Order{4, 5, 6, 7, 0, 1, 2, 3}));
  // Chunks with the tokens of two ranks.
  EXPECT_EQ(gathered({4, 3, 2, 8}), (Order{1, 0}));
  EXPECT_EQ(reduced({4, 3, 2, 8}), (Order{0, 1}));
  EXPECT_EQ(gathered({4, 1, 2, 8}), (Order{0, 1}));
}

// With too few transfers a GEMM would read rows that have not arrived.
TEST(PeerChunks, RowsNeedTheirChunks) {
  for (const int ranks : {2, 3, 4}) {
    for (const int chunks : {1, ranks, 3 * ranks}) {
      const PeerChunks order{ranks, 0, chunks, int64_t{2} * 3 * ranks};
      ASSERT_TRUE(order.valid());
      for (int64_t first = 0; first < order.tokens; ++first) {
        for (int64_t count = 1; first + count <= order.tokens; ++count) {
          for (int from = 0; from < ranks; ++from) {
            int needed = 0;
            for (int64_t row = first; row < first + count; ++row)
              if (row / order.shard() == from)
                needed = static_cast<int>(row % order.shard() / order.transfer_rows()) + 1;
            EXPECT_EQ(order.needed(from, first, count), needed)
                << ranks << " ranks, " << chunks << " chunks, rows " << first << " + " << count << " of rank "
                << from;
          }
        }
      }
    }
  }
}

TEST(PeerChunks, ChunksAreFullShardsOrPartsOfOne) {
  EXPECT_TRUE((PeerChunks{4, 0, 2, 8}.valid()));
  EXPECT_FALSE((PeerChunks{4, 0, 3, 12}.valid()));
  EXPECT_FALSE((PeerChunks{4, 0, 8, 12}.valid()));
  EXPECT_FALSE((PeerChunks{2, 0, 2, 7}.valid()));
}

}  // namespace
}  // namespace te::testing
