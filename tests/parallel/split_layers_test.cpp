// Layers of the pipeline's global chunks: examples of the documented rule, and its properties for every small shape.
#include "parallel/schedule/split_layers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"

namespace te::parallel {
namespace {

std::vector<int> counts(int layers, int stages, int chunks) {
  std::vector<int> result;
  for (const auto& [first, count] : split_layers(layers, stages, chunks)) result.push_back(count);
  return result;
}

TEST(SplitLayers, EvenSplit) {
  EXPECT_EQ(split_layers(8, 2, 2), (std::vector<std::pair<int, int>>{{0, 2}, {2, 2}, {4, 2}, {6, 2}}));
  EXPECT_EQ(split_layers(5, 1, 1), (std::vector<std::pair<int, int>>{{0, 5}}));
}

TEST(SplitLayers, RemainderGoesToTheMiddleStages) {
  EXPECT_EQ(counts(9, 4, 1), (std::vector<int>{2, 3, 2, 2}));
  EXPECT_EQ(counts(10, 4, 1), (std::vector<int>{2, 3, 3, 2}));
  EXPECT_EQ(counts(11, 4, 1), (std::vector<int>{3, 3, 3, 2}));
  EXPECT_EQ(counts(7, 3, 1), (std::vector<int>{2, 3, 2}));
  EXPECT_EQ(counts(8, 3, 1), (std::vector<int>{3, 3, 2}));
  EXPECT_EQ(counts(3, 2, 1), (std::vector<int>{2, 1}));
}

TEST(SplitLayers, RemainderOfChunksBalancesStages) {
  // 4 stages of 2 chunks. Global chunks 0..7 belong to stages 0 1 2 3 0 1 2 3; the middle of the model is 3.5.
  EXPECT_EQ(counts(10, 4, 2), (std::vector<int>{1, 1, 2, 1, 1, 2, 1, 1}));  // stages 1 and 2, inner chunks
  EXPECT_EQ(counts(12, 4, 2), (std::vector<int>{1, 1, 2, 2, 2, 2, 1, 1}));  // one extra layer for every stage
  EXPECT_EQ(counts(13, 4, 2), (std::vector<int>{1, 2, 2, 2, 2, 2, 1, 1}));  // both chunks of stage 1
  EXPECT_EQ(counts(5, 2, 2), (std::vector<int>{1, 1, 2, 1}));               // stage 0, its inner chunk
}

TEST(SplitLayers, PropertiesForEveryShape) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      const int global_chunks = stages * chunks;
      for (int layers = global_chunks; layers <= 3 * global_chunks + 1; ++layers) {
        const auto split = split_layers(layers, stages, chunks);
        ASSERT_EQ(split.size(), static_cast<size_t>(global_chunks));
        std::vector<int> of_stage(static_cast<size_t>(stages), 0);
        int next = 0;
        for (int g = 0; g < global_chunks; ++g) {
          const auto [first, count] = split[static_cast<size_t>(g)];
          ASSERT_EQ(first, next);
          ASSERT_TRUE(count == layers / global_chunks || count == layers / global_chunks + 1);
          of_stage[static_cast<size_t>(g % stages)] += count;
          next = first + count;
        }
        ASSERT_EQ(next, layers);
        const auto [low, high] = std::ranges::minmax_element(of_stage);
        ASSERT_LE(*high - *low, 1) << layers << " layers, " << stages << " x " << chunks;
      }
    }
  }
}

std::vector<int> counts_by_time(int layers, int stages, int chunks, double head) {
  std::vector<int> result;
  for (const auto& [first, count] : split_layers_by_time(layers, stages, chunks, head))
    result.push_back(count);
  return result;
}

TEST(SplitLayers, ByTimeTheLastStageHasFewerLayers) {
  EXPECT_EQ(counts_by_time(32, 4, 1, 0.0), counts(32, 4, 1));
  EXPECT_EQ(counts_by_time(32, 4, 1, 0.9), (std::vector<int>{8, 8, 8, 8}));  // moving a layer would not help
  EXPECT_EQ(counts_by_time(32, 4, 1, 1.2), (std::vector<int>{9, 8, 8, 7}));
  EXPECT_EQ(counts_by_time(80, 4, 1, 2.4), (std::vector<int>{21, 21, 20, 18}));
  EXPECT_EQ(counts_by_time(16, 2, 2, 2.2),
            (std::vector<int>{5, 4, 4, 3}));  // taken from stage 1's chunk with the output layer
  EXPECT_EQ(counts_by_time(8, 4, 1, 50.0), (std::vector<int>{3, 2, 2, 1}));  // a chunk keeps one layer
}

/// Minimum work of the slowest stage, found by trying all numbers of layers of the last stage.
double least_possible(int layers, int stages, int chunks, double head) {
  double least = 1e9;
  for (int last = chunks; last <= layers - (stages - 1) * chunks; ++last) {
    const int others = layers - last;
    const double most = stages == 1 ? 0 : (others + stages - 2) / (stages - 1);
    least = std::min(least, std::max(most, last + head));
  }
  return least;
}

TEST(SplitLayers, ByTimeNoOtherSplitIsFaster) {
  for (int stages = 2; stages <= 6; ++stages) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      for (int layers = stages * chunks; layers <= 4 * stages * chunks; ++layers) {
        for (const double head : {0.0, 0.3, 1.0, 1.7, 2.5, 6.0}) {
          const auto split = split_layers_by_time(layers, stages, chunks, head);
          std::vector<double> work(static_cast<size_t>(stages), 0.0);
          int next = 0;
          for (size_t g = 0; g < split.size(); ++g) {
            ASSERT_EQ(split[g].first, next);
            ASSERT_GE(split[g].second, 1);
            work[g % work.size()] += split[g].second;
            next += split[g].second;
          }
          ASSERT_EQ(next, layers);
          work.back() += head;
          ASSERT_DOUBLE_EQ(*std::ranges::max_element(work), least_possible(layers, stages, chunks, head))
              << layers << " layers, " << stages << " x " << chunks << ", head " << head;
        }
      }
    }
  }
}

TEST(SplitLayers, ErrorOnTooFewLayersShowsTheArithmetic) {
  try {
    split_layers(7, 4, 2);
    FAIL() << "7 layers for 8 chunks";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("model.num_layers (7)"), std::string::npos) << message;
    EXPECT_NE(message.find("4 x 2 = 8"), std::string::npos) << message;
    EXPECT_NE(message.find("by 1"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace te::parallel
