// The process grid after the diff of docs/how-to/add-a-layer.md: a new axis needs rows and no other code.
#include <gtest/gtest.h>

#include "parallel/process_grid.h"

namespace te::parallel {
namespace {

using Ranks = std::vector<int>;

TEST(AddedAxis, IsPlacedAndHasAGroup) {
  const ProcessGrid grid = ProcessGrid::of(16, {{Axis::tensor, 2}, {Axis::replica, 2}, {Axis::pipeline, 2}});
  EXPECT_EQ(grid[Axis::data], 2);
  EXPECT_EQ(grid.str(), "16 ranks: tensor 2 x data 2 x replica 2 x pipeline 2");
  EXPECT_EQ(grid.coordinates(5).str(), "tensor 1, data 0, replica 1, pipeline 0");
  EXPECT_EQ(grid.rank(grid.coordinates(13)), 13);
  EXPECT_EQ(grid.members(Group::replica, 5), (Ranks{1, 5}));
  EXPECT_EQ(grid.members(Group::data, 5), (Ranks{5, 7}));
  EXPECT_EQ(grid.members(Group::stage, 5), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(grid.members(Group::world, 5).size(), 16u);
  EXPECT_EQ(grid.members(Group::embedding, 5), (Ranks{5, 13}));
}

// Layouts without the axis keep their ranks and texts.
TEST(AddedAxis, IsInvisibleAtSizeOne) {
  const ProcessGrid grid = ProcessGrid::of(8, 2, 1, 2);
  EXPECT_EQ(grid.str(), "8 ranks: tensor 2 x data 2 x pipeline 2");
  EXPECT_EQ(grid.members(Group::data, 5), (Ranks{5, 7}));
  EXPECT_EQ(grid.members(Group::embedding, 5), (Ranks{1, 5}));
}

}  // namespace
}  // namespace te::parallel
