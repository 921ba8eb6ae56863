// For every grid of this number of ranks: each group has the right ranks, and the pipeline's channels transfer tensors
// in both directions concurrently, in order, around the complete ring.
#include "parallel/groups.h"

#include <algorithm>
#include <numeric>

#include "communicator_checks.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::Axis;
using parallel::Channel;
using parallel::Group;
using parallel::Groups;
using parallel::ProcessGrid;

std::vector<ProcessGrid> grids_of(int ranks) {
  std::vector<ProcessGrid> grids;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int pipeline = 1; tensor * pipeline <= ranks; ++pipeline) {
      for (int context = 1; context <= 2; ++context) {
        if (ranks % (tensor * context * pipeline) == 0) {
          grids.push_back(ProcessGrid::of(ranks, tensor, context, pipeline));
        }
      }
    }
  }
  return grids;
}

class GroupsTest : public ::testing::Test {
 protected:
  const Context cpu_ = Context::cpu();
};

TEST_F(GroupsTest, ReduceOverTheRanksOfTheGrid) {
  for (const ProcessGrid& grid : grids_of(world().size())) {
    SCOPED_TRACE(grid.str());
    const Groups groups = Groups::connect(world(), cpu_, grid);
    EXPECT_EQ(groups.rank(), world().rank());
    EXPECT_EQ(groups.at(), grid.coordinates(world().rank()));
    const int rank = world().rank();
    std::vector<int> all(static_cast<size_t>(world().size()));
    std::iota(all.begin(), all.end(), 0);
    const auto check = [&](Communicator& group, const std::vector<int>& members) {
      SCOPED_TRACE(group.name());
      EXPECT_EQ(group.world_ranks(), members);
      EXPECT_EQ(group.world_ranks().at(static_cast<size_t>(group.rank())), rank);
      // One bit per rank: the sum identifies the members.
      TestTensor bits(cpu_, DType::i32, {1}), ranks(cpu_, DType::i32, {group.size()});
      bits.fill_ints({1 << rank});
      group.all_reduce(cpu_, bits, ReduceOp::sum);
      int32_t expected = 0;
      for (const int member : members) expected |= 1 << member;
      EXPECT_EQ(bits.floats(), std::vector<float>{static_cast<float>(expected)});
      TestTensor own(cpu_, DType::i32, {1});
      own.fill_ints({rank});
      group.all_gather(cpu_, own, ranks);
      EXPECT_EQ(ranks.floats(), std::vector<float>(members.begin(), members.end()));
    };
    check(groups.world(), all);
    check(groups.tensor(), grid.ranks_along({Axis::tensor}, rank));
    check(groups.context(), grid.ranks_along({Axis::context}, rank));
    check(groups.microbatch(), grid.members(Group::microbatch, rank));
    check(groups.data(), grid.members(Group::data, rank));
    check(groups.stage(), grid.members(Group::stage, rank));
    check(groups.embedding(), grid.members(Group::embedding, rank));
  }
}

/// Values of tensor number `message` from a stage; values and sizes identify sender, number and direction.
std::vector<float> message_values(int from, int message, bool forward) {
  const int64_t count = message % 2 == 0 ? 150001 : 3;
  return rank_values(DType::bf16, count, from, static_cast<uint64_t>(2 * message + (forward ? 1 : 0)));
}

TEST_F(GroupsTest, ChannelsTransferBothDirectionsConcurrently) {
  constexpr int kMessages = 4;
  for (const ProcessGrid& grid : grids_of(world().size())) {
    if (grid[Axis::pipeline] == 1 || grid[Axis::context] != 1) continue;
    SCOPED_TRACE(grid.str());
    const Groups groups = Groups::connect(world(), cpu_, grid);
    const std::vector<int> stages = grid.ranks_along({Axis::pipeline}, world().rank());
    const int own = groups.at()[Axis::pipeline], count = grid[Axis::pipeline];
    const int next = stages[static_cast<size_t>((own + 1) % count)];
    const int previous = stages[static_cast<size_t>((own + count - 1) % count)];
    const auto send = [&](Channel which, int message) {
      const std::vector<float> values =
          message_values(world().rank(), message, which == Channel::forward_to_next);
      TestTensor t(cpu_, DType::bf16, {static_cast<int64_t>(values.size())});
      t.fill(values);
      groups.send(cpu_, t, which);
    };
    const auto receive = [&](Channel which, int from, int message) {
      const std::vector<float> values =
          message_values(from, message, which == Channel::forward_from_previous);
      TestTensor t(cpu_, DType::bf16, {static_cast<int64_t>(values.size())});
      groups.receive(cpu_, t, which);
      EXPECT_EQ(t.floats(), values) << "message " << message << " from rank " << from;
    };
    // All ranks send everything before they receive, and receive the directions in the opposite order: this would hang
    // if the directions shared a queue, or if a send blocked.
    for (int message = 0; message < kMessages; ++message) {
      send(Channel::forward_to_next, message);
      send(Channel::backward_to_previous, message);
    }
    for (int message = 0; message < kMessages; ++message) receive(Channel::backward_from_next, next, message);
    for (int message = 0; message < kMessages; ++message) {
      receive(Channel::forward_from_previous, previous, message);
    }
  }
}

TEST_F(GroupsTest, DestructorWaitsForPendingSends) {
  if (world().size() < 2) GTEST_SKIP() << "needs a pipeline";
  // The sender destroys its groups immediately, possibly before the receive; the tensor must still arrive.
  const int count = world().size();
  const Groups groups = Groups::connect(world(), cpu_, ProcessGrid::of(count, 1, 1, count));
  if (!groups.last_stage()) {
    TestTensor t(cpu_, DType::bf16, {150001});
    t.fill(message_values(groups.at()[Axis::pipeline], 0, true));
    groups.send(cpu_, t, Channel::forward_to_next);
  }
  if (!groups.first_stage()) {
    TestTensor t(cpu_, DType::bf16, {150001});
    groups.receive(cpu_, t, Channel::forward_from_previous);
    EXPECT_EQ(t.floats(), message_values(groups.at()[Axis::pipeline] - 1, 0, true));
  }
}

TEST_F(GroupsTest, DryRunGroupsHaveRanksAndRefuseToCommunicate) {
  const ProcessGrid grid = ProcessGrid::of(16, 2, 1, 4);
  const Groups groups = Groups::dry_run(grid, 6);
  EXPECT_EQ(groups.tensor().rank(), 0);
  EXPECT_EQ(groups.tensor().size(), 2);
  EXPECT_EQ(groups.data().world_ranks(), (std::vector<int>{4, 6}));
  EXPECT_EQ(groups.channel(Channel::forward_to_next).world_ranks(), (std::vector<int>{6, 10}));
  EXPECT_EQ(groups.channel(Channel::backward_from_next).world_ranks(), (std::vector<int>{10, 6}));
  EXPECT_EQ(groups.channel(Channel::backward_from_next).rank(), 1);
  EXPECT_EQ(groups.channel(Channel::forward_from_previous).world_ranks(), (std::vector<int>{2, 6}));
  EXPECT_EQ(groups.embedding().size(), 1);
  // A communicator needs GPU memory, so equal groups of a microbatch's ranks share one.
  EXPECT_EQ(&groups.microbatch(), &groups.tensor());
  const Groups split = Groups::dry_run(ProcessGrid::of(8, 1, 2, 1), 0);
  EXPECT_EQ(&split.microbatch(), &split.context());
  const Groups both = Groups::dry_run(ProcessGrid::of(8, 2, 2, 1), 0);
  EXPECT_EQ(both.microbatch().world_ranks(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(Groups::dry_run(grid, 0).embedding().world_ranks(), (std::vector<int>{0, 12}));
  // The previous stage of the first one is the last.
  EXPECT_EQ(Groups::dry_run(grid, 0).channel(Channel::forward_from_previous).world_ranks(),
            (std::vector<int>{12, 0}));
  TestTensor t(cpu_, DType::f32, {4});
  EXPECT_THROW(groups.tensor().all_reduce(cpu_, t, ReduceOp::sum), InternalError);
  EXPECT_THROW(groups.send(cpu_, t, Channel::forward_to_next), InternalError);
}

TEST_F(GroupsTest, SingleRankNeedsNoPeers) {
  const Groups groups = Groups::single();
  EXPECT_TRUE(groups.first_stage());
  EXPECT_TRUE(groups.last_stage());
  TestTensor in(cpu_, DType::f32, {4}), out(cpu_, DType::f32, {4});
  in.fill({1, 2, 3, 4});
  groups.tensor().all_reduce(cpu_, in, ReduceOp::sum);
  groups.data().all_gather(cpu_, in, out);
  EXPECT_EQ(out.floats(), in.floats());
  EXPECT_THROW(groups.channel(Channel::forward_to_next), InternalError);
}

}  // namespace
}  // namespace te::testing
