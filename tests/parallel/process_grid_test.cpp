#include "parallel/process_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace te::parallel {
namespace {

using Group = std::vector<int>;

std::vector<ProcessGrid> all_grids() {
  std::vector<ProcessGrid> grids;
  for (int tensor : {1, 2, 3}) {
    for (int context : {1, 2}) {
      for (int data : {1, 2, 3}) {
        for (int pipeline : {1, 2, 4}) {
          grids.push_back(ProcessGrid::of(tensor * context * data * pipeline, tensor, context, pipeline));
          EXPECT_EQ(grids.back().data, data);
        }
      }
    }
  }
  return grids;
}

TEST(ProcessGrid, RankAndCoordinatesAreInverse) {
  for (const ProcessGrid& grid : all_grids()) {
    // Explicit loops in rank order: tensor fastest, pipeline slowest.
    int rank = 0;
    for (int p = 0; p < grid.pipeline; ++p) {
      for (int d = 0; d < grid.data; ++d) {
        for (int c = 0; c < grid.context; ++c) {
          for (int t = 0; t < grid.tensor; ++t, ++rank) {
            const Coordinates at{.tensor = t, .context = c, .data = d, .pipeline = p};
            EXPECT_EQ(grid.rank(at), rank) << grid.str();
            EXPECT_EQ(grid.coordinates(rank), at) << grid.str();
          }
        }
      }
    }
    EXPECT_EQ(rank, grid.world);
  }
}

/// Checks groups of one kind: each contains its rank, is ascending and has the expected size. All members have the same
/// group, so the groups partition the world.
void expect_partition(const ProcessGrid& grid, Group (ProcessGrid::*group_of)(int) const, int size) {
  for (int rank = 0; rank < grid.world; ++rank) {
    const Group group = (grid.*group_of)(rank);
    EXPECT_EQ(static_cast<int>(group.size()), size) << grid.str();
    EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
    EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
    for (const int member : group) EXPECT_EQ((grid.*group_of)(member), group) << grid.str();
  }
}

TEST(ProcessGrid, GroupsPartitionTheWorld) {
  for (const ProcessGrid& grid : all_grids()) {
    expect_partition(grid, &ProcessGrid::tensor_group, grid.tensor);
    expect_partition(grid, &ProcessGrid::context_group, grid.context);
    expect_partition(grid, &ProcessGrid::microbatch_group, grid.tensor * grid.context);
    expect_partition(grid, &ProcessGrid::data_group, grid.data * grid.context);
    expect_partition(grid, &ProcessGrid::pipeline_group, grid.pipeline);
    expect_partition(grid, &ProcessGrid::stage_group, grid.tensor * grid.context * grid.data);
  }
}

TEST(ProcessGrid, EmbeddingGroupIsFirstAndLastStage) {
  for (const ProcessGrid& grid : all_grids()) {
    for (int rank = 0; rank < grid.world; ++rank) {
      const Coordinates at = grid.coordinates(rank);
      Coordinates first = at, last = at;
      first.pipeline = 0;
      last.pipeline = grid.pipeline - 1;
      const bool end = at == first || at == last;
      const Group expected =
          end && grid.pipeline > 1 ? Group{grid.rank(first), grid.rank(last)} : Group{rank};
      EXPECT_EQ(grid.embedding_group(rank), expected) << grid.str() << " rank " << rank;
    }
  }
}

TEST(ProcessGrid, ExampleWithEightRanks) {
  const ProcessGrid grid = ProcessGrid::of(8, 2, 1, 2);
  EXPECT_EQ(grid.data, 2);
  EXPECT_EQ(grid.str(), "8 ranks: tensor 2 x data 2 x pipeline 2");
  EXPECT_EQ(grid.coordinates(5).str(), "tensor 1, data 0, pipeline 1");
  EXPECT_EQ(grid.tensor_group(5), (Group{4, 5}));
  EXPECT_EQ(grid.data_group(5), (Group{5, 7}));
  EXPECT_EQ(grid.pipeline_group(5), (Group{1, 5}));
  EXPECT_EQ(grid.stage_group(5), (Group{4, 5, 6, 7}));
  EXPECT_EQ(grid.embedding_group(5), (Group{1, 5}));
}

std::string refusal(int world, int tensor, int context, int pipeline) {
  try {
    static_cast<void>(ProcessGrid::of(world, tensor, context, pipeline));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ProcessGrid, ErrorShowsTheArithmetic) {
  const std::string text = refusal(6, 4, 1, 1);
  EXPECT_NE(text.find("6 ranks cannot be divided into tensor 4 x pipeline 1 = 4 ranks"), std::string::npos)
      << text;
  EXPECT_NE(text.find("remainder 2"), std::string::npos) << text;
  EXPECT_NE(refusal(2, 4, 1, 1), "");  // fewer ranks than one copy of the model
  EXPECT_NE(refusal(8, 2, 3, 1).find("tensor 2 x context 3 x pipeline 1 = 6"), std::string::npos);
  EXPECT_NE(refusal(8, 0, 1, 1).find("at least 1"), std::string::npos);
  EXPECT_NE(refusal(8, 1, 1, -2).find("at least 1"), std::string::npos);
  // The product of the sizes exceeds 2^31.
  EXPECT_NE(refusal(8, 1 << 16, 1 << 10, 1 << 16), "");
  EXPECT_EQ(refusal(8, 2, 1, 4), "");
}

}  // namespace
}  // namespace te::parallel
