// Geometry of slices, compared with explicit sets of elements.
#include "checkpoint/block.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/random.h"

namespace te {
namespace {

using checkpoint::Block;

/// Global index (row * cols + col) of every element of a block, in its order.
std::vector<int64_t> elements(const Block& block, int64_t cols) {
  std::vector<int64_t> result;
  for (int64_t i = block.first; i < block.end(); ++i)
    result.push_back(i / block.width * cols + block.col + i % block.width);
  return result;
}

class Dice {
 public:
  int64_t below(int64_t n) {
    return static_cast<int64_t>(philox(1, 2, count_++).word[0] % static_cast<uint64_t>(n));
  }
  Block block(int64_t rows, int64_t cols) {
    const int64_t col = below(cols), width = 1 + below(cols - col);
    const int64_t first = below(rows * width);
    return {col, width, first, below(rows * width - first + 1)};
  }

 private:
  uint64_t count_ = 0;
};

TEST(Block, OverlapsMatchTheElements) {
  Dice dice;
  int64_t same_window = 0, found = 0;
  for (int round = 0; round < 4000; ++round) {
    const int64_t rows = 1 + dice.below(6), cols = 1 + dice.below(7);
    const Block a = dice.block(rows, cols);
    Block b = dice.block(rows, cols);
    if (round % 3 == 0) {
      b = a;
      b.first = dice.below(rows * b.width);
      b.count = dice.below(rows * b.width - b.first + 1);
      ++same_window;
    }
    const std::vector<int64_t> in_a = elements(a, cols), in_b = elements(b, cols);
    std::map<int64_t, int64_t> places;  // position of each element in b
    for (size_t i = 0; i < in_b.size(); ++i) places[in_b[i]] = static_cast<int64_t>(i);
    int64_t expected = 0, covered = 0;
    for (const int64_t element : in_a) expected += places.count(element);
    for_each_overlap(a, b, [&](int64_t a_at, int64_t b_at, int64_t count) {
      ASSERT_GT(count, 0);
      ASSERT_LE(a_at + count, static_cast<int64_t>(in_a.size()));
      ASSERT_LE(b_at + count, static_cast<int64_t>(in_b.size()));
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(in_a[a_at + i], in_b[b_at + i]);
      covered += count;
    });
    EXPECT_EQ(covered, expected);
    found += covered;
  }
  EXPECT_GT(found, 1000);
  EXPECT_GT(same_window, 100);
}

TEST(Block, EqualWindowsOverlapInOneRun) {
  int runs = 0;
  for_each_overlap(Block{2, 3, 4, 100}, Block{2, 3, 50, 90}, [&](int64_t a, int64_t b, int64_t count) {
    EXPECT_EQ(a, 46);
    EXPECT_EQ(b, 0);
    EXPECT_EQ(count, 54);
    ++runs;
  });
  EXPECT_EQ(runs, 1);
}

TEST(Block, DisjointIfNoElementIsSharedOrOutside) {
  Dice dice;
  int64_t yes = 0, no = 0;
  for (int round = 0; round < 6000; ++round) {
    const int64_t rows = 1 + dice.below(5), cols = 1 + dice.below(6);
    std::vector<Block> blocks;
    for (int64_t n = dice.below(5); n >= 0; --n) blocks.push_back(dice.block(rows, cols));
    std::set<int64_t> seen;
    int64_t total = 0;
    for (const Block& block : blocks) {
      for (const int64_t element : elements(block, cols)) seen.insert(element);
      total += block.count;
    }
    const bool expected = static_cast<int64_t>(seen.size()) == total;
    EXPECT_EQ(checkpoint::disjoint(blocks, rows, cols), expected);
    (expected ? yes : no) += 1;
  }
  EXPECT_GT(yes, 500);
  EXPECT_GT(no, 500);
  EXPECT_TRUE(checkpoint::disjoint({{0, 4, 0, 12}}, 3, 4));
  EXPECT_FALSE(checkpoint::disjoint({{0, 4, 1, 12}}, 3, 4));
  EXPECT_FALSE(checkpoint::disjoint({{1, 4, 0, 4}}, 3, 4));
  EXPECT_FALSE(checkpoint::disjoint({{-1, 4, 0, 4}}, 3, 4));
  EXPECT_FALSE(checkpoint::disjoint({{0, 4, -1, 4}}, 3, 4));
}

}  // namespace
}  // namespace te
