#include "parallel/sequence_split.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "core/error.h"

namespace te::parallel {
namespace {

TEST(SequenceSplit, EveryTokenHasOneRankAndAllRanksEqualWork) {
  for (const int ranks : {1, 2, 4, 8}) {
    constexpr int64_t kSeq = 64;
    std::set<int64_t> seen;
    std::set<int64_t> work;
    for (int rank = 0; rank < ranks; ++rank) {
      const SequenceSplit split(kSeq, rank, ranks);
      EXPECT_EQ(split.local() * ranks, kSeq);
      int64_t local = 0, keys = 0;
      for (const TokenRange& range : split.ranges()) {
        EXPECT_EQ(range.local, local);
        for (int64_t i = 0; i < range.count; ++i) {
          EXPECT_TRUE(seen.insert(range.begin + i).second) << "two ranks have token " << range.begin + i;
          EXPECT_EQ(&split.range_at(range.local + i), &range);
          keys += range.begin + i + 1;
        }
        local += range.count;
      }
      EXPECT_EQ(local, split.local());
      work.insert(keys);
      EXPECT_EQ(split.ranges().size(), split.ranges_of(rank).size());
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(kSeq));
    EXPECT_EQ(work.size(), 1u) << "the ranks' numbers of keys differ";
  }
}

TEST(SequenceSplit, CopiesTheRanksTokensOfEverySample) {
  std::vector<int> full(16), local(8);
  std::iota(full.begin(), full.end(), 0);
  SequenceSplit(8, 0, 2).copy_local(full.data(), 2, local.data());
  EXPECT_EQ(local, (std::vector<int>{0, 1, 6, 7, 8, 9, 14, 15}));
  SequenceSplit(8, 1, 2).copy_local(full.data(), 2, local.data());
  EXPECT_EQ(local, (std::vector<int>{2, 3, 4, 5, 10, 11, 12, 13}));
}

TEST(SequenceSplit, RefusesUnequalChunks) {
  EXPECT_THROW(SequenceSplit(10, 0, 2), InternalError);
  EXPECT_THROW(SequenceSplit(8, 2, 2), InternalError);
  EXPECT_NO_THROW(SequenceSplit(7, 0, 1));
}

}  // namespace
}  // namespace te::parallel
