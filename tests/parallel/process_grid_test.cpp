#include "parallel/process_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace te::parallel {
namespace {

using Ranks = std::vector<int>;

std::vector<ProcessGrid> all_grids() {
  std::vector<ProcessGrid> grids;
  for (int tensor : {1, 2, 3}) {
    for (int context : {1, 2}) {
      for (int data : {1, 2, 3}) {
        for (int pipeline : {1, 2, 4}) {
          grids.push_back(ProcessGrid::of(tensor * context * data * pipeline, tensor, context, pipeline));
          EXPECT_EQ(grids.back()[Axis::data], data);
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
    for (int p = 0; p < grid[Axis::pipeline]; ++p) {
      for (int d = 0; d < grid[Axis::data]; ++d) {
        for (int c = 0; c < grid[Axis::context]; ++c) {
          for (int t = 0; t < grid[Axis::tensor]; ++t, ++rank) {
            const Coordinates at{{Axis::tensor, t}, {Axis::context, c}, {Axis::data, d}, {Axis::pipeline, p}};
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
void expect_partition(const ProcessGrid& grid, const GroupRow& row, int size) {
  SCOPED_TRACE(fmt::format("{}: {}", grid.str(), row.name));
  for (int rank = 0; rank < grid.world; ++rank) {
    const Ranks group = grid.members(row, rank);
    EXPECT_EQ(static_cast<int>(group.size()), size);
    EXPECT_TRUE(std::ranges::is_sorted(group));
    EXPECT_EQ(std::ranges::count(group, rank), 1);
    for (const int member : group) EXPECT_EQ(grid.members(row, member), group);
  }
}

TEST(ProcessGrid, GroupsPartitionTheWorld) {
  for (const ProcessGrid& grid : all_grids()) {
    for (const GroupRow& row : kGroups) {
      if (row.select != nullptr) continue;
      int size = 1;
      for (const AxisRow& axis : kAxes)
        if (row.axes.contains(axis.axis)) size *= grid[axis.axis];
      expect_partition(grid, row, size);
    }
  }
}

// Ranks along some axes are those that a comparison of all coordinates finds.
TEST(ProcessGrid, RanksAlongAxesDifferOnlyThere) {
  for (const ProcessGrid& grid : all_grids()) {
    for (const GroupRow& row : kGroups) {
      for (int rank = 0; rank < grid.world; ++rank) {
        Ranks expected;
        for (int other = 0; other < grid.world; ++other) {
          const auto same = [&](const AxisRow& axis) {
            return row.axes.contains(axis.axis) ||
                   grid.coordinates(other)[axis.axis] == grid.coordinates(rank)[axis.axis];
          };
          if (std::all_of(std::begin(kAxes), std::end(kAxes), same)) expected.push_back(other);
        }
        EXPECT_EQ(grid.ranks_along(row.axes, rank), expected)
            << grid.str() << " rank " << rank << " " << row.name;
      }
    }
  }
}

// Rows that divide the context- and data-parallel ranks of a stage and tensor-parallel rank by nodes.
#include "pages/divided_groups.inc"

TEST(ProcessGrid, AGroupRowCanSplitItsAxes) {
  int tested = 0;
  for (const ProcessGrid& grid : all_grids()) {
    const int replicas = grid[Axis::context] * grid[Axis::data];
    if (replicas % kRanksPerNode != 0) continue;
    ++tested;
    expect_partition(grid, kNode, kRanksPerNode);
    expect_partition(grid, kAcrossNodes, replicas / kRanksPerNode);
    // Together, the two groups reach all ranks that hold copies of the other parameters.
    for (int rank = 0; rank < grid.world; ++rank) {
      Ranks reached;
      for (const int other : grid.members(kNode, rank))
        for (const int copy : grid.members(kAcrossNodes, other)) reached.push_back(copy);
      std::ranges::sort(reached);
      EXPECT_EQ(reached, grid.members(Group::data, rank)) << grid.str();
    }
  }
  EXPECT_GT(tested, 0);
  // 8 ranks, tensor 2 x data 4: adjacent data-parallel ranks are on one node.
  const ProcessGrid grid = ProcessGrid::of(8, 2, 1, 1);
  EXPECT_EQ(grid.members(kNode, 4), (Ranks{4, 6}));
  EXPECT_EQ(grid.members(kAcrossNodes, 4), (Ranks{0, 4}));
}

TEST(ProcessGrid, EmbeddingGroupIsFirstAndLastStage) {
  for (const ProcessGrid& grid : all_grids()) {
    for (int rank = 0; rank < grid.world; ++rank) {
      const Coordinates at = grid.coordinates(rank);
      Coordinates first = at, last = at;
      first[Axis::pipeline] = 0;
      last[Axis::pipeline] = grid[Axis::pipeline] - 1;
      const bool end = at == first || at == last;
      const Ranks expected =
          end && grid[Axis::pipeline] > 1 ? Ranks{grid.rank(first), grid.rank(last)} : Ranks{rank};
      EXPECT_EQ(grid.members(Group::embedding, rank), expected) << grid.str() << " rank " << rank;
    }
  }
}

TEST(ProcessGrid, ExampleWithEightRanks) {
  const ProcessGrid grid = ProcessGrid::of(8, 2, 1, 2);
  EXPECT_EQ(grid[Axis::data], 2);
  EXPECT_EQ(grid.str(), "8 ranks: tensor 2 x data 2 x pipeline 2");
  EXPECT_EQ(grid.coordinates(5).str(), "tensor 1, data 0, pipeline 1");
  EXPECT_EQ(grid.ranks_along({Axis::tensor}, 5), (Ranks{4, 5}));
  EXPECT_EQ(grid.members(Group::data, 5), (Ranks{5, 7}));
  EXPECT_EQ(grid.ranks_along({Axis::pipeline}, 5), (Ranks{1, 5}));
  EXPECT_EQ(grid.members(Group::stage, 5), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(grid.members(Group::embedding, 5), (Ranks{1, 5}));
}

TEST(ProcessGrid, ExpertGroupsDivideTheRanksOfAStage) {
  const ProcessGrid grid = ProcessGrid::of(16, 2, 1, 2, 2);
  EXPECT_EQ(grid.str(), "16 ranks: tensor 2 x data 4 x pipeline 2, expert 2");
  EXPECT_EQ(grid.members(Group::expert, 4), (Ranks{4, 5}));
  EXPECT_EQ(grid.members(Group::expert_data, 4), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(ProcessGrid::of(4, 1, 1, 1, 4).members(Group::expert_data, 3), (Ranks{3}));
  EXPECT_EQ(ProcessGrid::of(4, 1, 1, 1).members(Group::expert, 3), (Ranks{3}));
}

std::string refusal(int world, int tensor, int context, int pipeline, int experts = 1) {
  try {
    static_cast<void>(ProcessGrid::of(world, tensor, context, pipeline, experts));
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
  EXPECT_NE(refusal(8, 1, 1, 2, 3)
                .find("parallel.expert (3) does not divide the 4 ranks of a pipeline stage "
                      "(tensor 1 x data 4 x pipeline 2)"),
            std::string::npos);
  EXPECT_NE(refusal(8, 1, 1, 2, 0), "");
}

}  // namespace
}  // namespace te::parallel
