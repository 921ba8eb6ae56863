// Order of pieces and chunks in which tensor-parallel ranks process tokens that copy engines transfer.
#include "parallel/peer_pieces.h"

#include <vector>

#include "testing/testing.h"

namespace te::testing {
namespace {

using parallel::PeerPieces;

std::vector<int> order(const PeerPieces& cut, int (PeerPieces::*piece_of)(int) const) {
  std::vector<int> pieces;
  for (int step = 0; step < cut.pieces; ++step) pieces.push_back((cut.*piece_of)(step));
  return pieces;
}

TEST(PeerPieces, OwnTokensAreGatheredFirstAndReducedLast) {
  const auto gathered = [](PeerPieces cut) { return order(cut, &PeerPieces::gathered); };
  const auto reduced = [](PeerPieces cut) { return order(cut, &PeerPieces::reduced); };
  using Order = std::vector<int>;
  EXPECT_EQ(gathered({2, 1, 1, 8}), (Order{0}));
  EXPECT_EQ(reduced({2, 1, 1, 8}), (Order{0}));
  EXPECT_EQ(gathered({2, 1, 2, 8}), (Order{1, 0}));
  EXPECT_EQ(reduced({2, 1, 2, 8}), (Order{0, 1}));
  EXPECT_EQ(gathered({2, 1, 4, 8}), (Order{2, 3, 0, 1}));
  EXPECT_EQ(reduced({2, 1, 4, 8}), (Order{0, 1, 2, 3}));
  EXPECT_EQ(gathered({4, 1, 8, 8}), (Order{2, 3, 4, 5, 6, 7, 0, 1}));
  EXPECT_EQ(reduced({4, 1, 8, 8}), (Order{4, 5, 6, 7, 0, 1, 2, 3}));
  // Pieces with the tokens of two ranks.
  EXPECT_EQ(gathered({4, 3, 2, 8}), (Order{1, 0}));
  EXPECT_EQ(reduced({4, 3, 2, 8}), (Order{0, 1}));
  EXPECT_EQ(gathered({4, 1, 2, 8}), (Order{0, 1}));
}

// With too few chunks a GEMM would read rows that have not arrived.
TEST(PeerPieces, RowsNeedTheirChunks) {
  for (const int ranks : {2, 3, 4}) {
    for (const int pieces : {1, ranks, 3 * ranks}) {
      const PeerPieces cut{ranks, 0, pieces, int64_t{2} * 3 * ranks};
      ASSERT_TRUE(cut.valid());
      for (int64_t first = 0; first < cut.tokens; ++first) {
        for (int64_t count = 1; first + count <= cut.tokens; ++count) {
          for (int from = 0; from < ranks; ++from) {
            int needed = 0;
            for (int64_t row = first; row < first + count; ++row)
              if (row / cut.shard() == from) needed = static_cast<int>(row % cut.shard() / cut.chunk()) + 1;
            EXPECT_EQ(cut.needed(from, first, count), needed)
                << ranks << " ranks, " << pieces << " pieces, rows " << first << " + " << count << " of rank "
                << from;
          }
        }
      }
    }
  }
}

TEST(PeerPieces, PiecesAreFullShardsOrPartsOfOne) {
  EXPECT_TRUE((PeerPieces{4, 0, 2, 8}.valid()));
  EXPECT_FALSE((PeerPieces{4, 0, 3, 12}.valid()));
  EXPECT_FALSE((PeerPieces{4, 0, 8, 12}.valid()));
  EXPECT_FALSE((PeerPieces{2, 0, 2, 7}.valid()));
}

}  // namespace
}  // namespace te::testing
