// Every legal schedule of stages 1..8, chunks 1..4, microbatches 1..32. The simulation proves that it ends and
// that messages meet; the checks here read the lists themselves and know nothing of how they were made.
#include "parallel/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "core/error.h"
#include "parallel/schedule/simulate.h"

namespace te::parallel {
namespace {

constexpr ScheduleKind kKinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                   ScheduleKind::zero_bubble};

bool legal(const ScheduleShape& shape) {
  if (shape.kind != ScheduleKind::interleaved) return shape.chunks == 1;
  return shape.chunks >= 2 && shape.stages >= 2 && shape.microbatches % shape.stages == 0;
}

std::vector<ScheduleShape> shapes() {
  std::vector<ScheduleShape> all;
  for (const ScheduleKind kind : kKinds) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int chunks = 1; chunks <= 4; ++chunks) {
        for (int microbatches = 1; microbatches <= 32; ++microbatches) {
          const ScheduleShape shape = {kind, stages, chunks, microbatches};
          if (legal(shape)) all.push_back(shape);
        }
      }
    }
  }
  return all;
}

std::string text(const ScheduleShape& shape) {
  return fmt::format("{}, {} stages, {} chunks, {} microbatches", schedule_name(shape.kind), shape.stages,
                     shape.chunks, shape.microbatches);
}

/// F = 1, B = 2 for every chunk, so that all times are whole numbers and sums are exact.
Costs whole_costs(const ScheduleShape& shape) {
  Costs costs;
  costs.forward = shape.chunks;
  costs.backward = 2.0 * shape.chunks;
  return costs;
}

/// The actions of one (chunk, microbatch), in order.
using Passes = std::map<std::pair<int, int>, std::vector<Action>>;

Passes by_microbatch(const StageSchedule& stage) {
  Passes passes;
  for (const Action& action : stage.actions) passes[{action.chunk, action.microbatch}].push_back(action);
  return passes;
}

/// What a microbatch must go through on a piece, written down from the semantics.
std::vector<ActionKind> expected_kinds(const ScheduleShape& shape, int piece) {
  const bool first = piece == 0;
  const bool last = piece == shape.stages * shape.chunks - 1;
  std::vector<ActionKind> kinds;
  if (!first) kinds.push_back(ActionKind::receive_forward);
  kinds.push_back(ActionKind::forward);
  if (!last) kinds.push_back(ActionKind::send_forward);
  if (!last) kinds.push_back(ActionKind::receive_backward);
  kinds.push_back(ActionKind::backward);
  if (!first) kinds.push_back(ActionKind::send_backward);
  if (shape.kind == ScheduleKind::zero_bubble) kinds.push_back(ActionKind::wgrad);
  return kinds;
}

TEST(Schedule, EveryPassOnceAndInOrder) {
  for (const ScheduleShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    const auto schedule = make_schedule(shape);
    ASSERT_EQ(schedule.size(), static_cast<size_t>(shape.stages));
    for (int stage = 0; stage < shape.stages; ++stage) {
      const Passes passes = by_microbatch(schedule[static_cast<size_t>(stage)]);
      ASSERT_EQ(passes.size(), static_cast<size_t>(shape.chunks * shape.microbatches));
      for (const auto& [key, actions] : passes) {
        std::vector<ActionKind> kinds;
        for (const Action& action : actions) kinds.push_back(action.kind);
        ASSERT_EQ(kinds, expected_kinds(shape, key.first * shape.stages + stage));
        ASSERT_TRUE(key.first >= 0 && key.first < shape.chunks);
        ASSERT_TRUE(key.second >= 0 && key.second < shape.microbatches);
      }
    }
  }
}

TEST(Schedule, GradientsAreSummedInTheOrderOfTheMicrobatches) {
  for (const ScheduleShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    for (const StageSchedule& stage : make_schedule(shape)) {
      std::map<std::pair<ActionKind, int>, int> next;
      for (const Action& action : stage.actions) {
        int& expected = next[{action.kind, action.chunk}];
        ASSERT_EQ(action.microbatch, expected++) << action_name(action.kind);
      }
    }
  }
}

TEST(Schedule, NoDeadlockAndEverySendMeetsItsReceive) {
  for (const ScheduleShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    const auto schedule = make_schedule(shape);
    Costs bounded = whole_costs(shape);
    bounded.buffers = 1;
    Costs slow = bounded;
    slow.communication = 5;
    slow.wgrad_share = 0.25;
    const double makespan = simulate(schedule, shape, whole_costs(shape)).makespan;
    EXPECT_EQ(simulate(schedule, shape, bounded).makespan, makespan);  // a second buffer would gain nothing
    EXPECT_GE(simulate(schedule, shape, slow).makespan, makespan);
  }
}

/// Walks a stage's list with its slots: none taken twice, all actions of a microbatch on the same one.
struct SlotWalk {
  std::map<std::pair<int, int>, std::pair<int, int>> owner;  // (chunk, slot) -> (chunk, microbatch)
  std::map<int, int> wgrad_owner;                            // wgrad slot -> microbatch
  std::map<int, std::set<int>> held;                         // chunk -> slots in use
  std::map<int, int> peak;
  int wgrad_peak = 0;
  int stage_peak = 0;

  void take(const Action& action) {
    ASSERT_TRUE(held[action.chunk].insert(action.slot).second) << "slot " << action.slot << " is in use";
    owner[{action.chunk, action.slot}] = {action.chunk, action.microbatch};
    peak[action.chunk] = std::max(peak[action.chunk], static_cast<int>(held[action.chunk].size()));
    int all = 0;
    for (const auto& [chunk, slots] : held) all += static_cast<int>(slots.size());
    stage_peak = std::max(stage_peak, all);
  }

  void visit(const Action& action, const ScheduleShape& shape, bool first_piece) {
    const bool split = shape.kind == ScheduleKind::zero_bubble;
    const std::pair<int, int> place = {action.chunk, action.slot};
    if (action.kind == (first_piece ? ActionKind::forward : ActionKind::receive_forward)) take(action);
    const auto expected = std::make_pair(action.chunk, action.microbatch);
    ASSERT_EQ(owner.at(place), expected) << action_name(action.kind);
    if (action.kind == ActionKind::backward && split) {
      ASSERT_TRUE(wgrad_owner.emplace(action.wgrad_slot, action.microbatch).second) << "wgrad slot in use";
      wgrad_peak = std::max(wgrad_peak, static_cast<int>(wgrad_owner.size()));
    } else if (action.kind == ActionKind::wgrad) {
      ASSERT_EQ(wgrad_owner.at(action.wgrad_slot), action.microbatch);
      wgrad_owner.erase(action.wgrad_slot);
    } else {
      ASSERT_EQ(action.wgrad_slot, -1);
    }
    // send_backward follows backward and may name the slot after it is free, before anybody else takes it.
    if (action.kind == (split ? ActionKind::wgrad : ActionKind::backward))
      held[action.chunk].erase(action.slot);
  }
};

/// The most chunk activations a stage may hold.
int bound(const ScheduleShape& shape, int stage) {
  const int p = shape.stages;
  const int m = shape.microbatches;
  switch (shape.kind) {
    case ScheduleKind::gpipe:
      return p == 1 ? 1 : m;
    case ScheduleKind::one_f_one_b:
      return std::min(m, p - stage);
    case ScheduleKind::interleaved:
      return std::min(m * shape.chunks, 2 * (p - 1 - stage) + (shape.chunks - 1) * p + 1);
    case ScheduleKind::zero_bubble:
      return std::min(m, p);  // 1F1B's on its largest stage
  }
  return 0;
}

TEST(Schedule, SlotsAreUsedOnceAtATimeAndCountIsThePeak) {
  for (const ScheduleShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    const auto schedule = make_schedule(shape);
    const Simulation simulation = simulate(schedule, shape);
    for (int s = 0; s < shape.stages; ++s) {
      const StageSchedule& stage = schedule[static_cast<size_t>(s)];
      SlotWalk walk;
      for (const Action& action : stage.actions) {
        walk.visit(action, shape, action.chunk * shape.stages + s == 0);
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
      }
      ASSERT_EQ(stage.slots.size(), static_cast<size_t>(shape.chunks));
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        ASSERT_TRUE(walk.held[chunk].empty());
        ASSERT_EQ(stage.slots[static_cast<size_t>(chunk)], walk.peak[chunk]);
        if (shape.kind == ScheduleKind::interleaved) {
          ASSERT_LE(walk.peak[chunk], std::min(shape.microbatches, 2 * shape.stages));
        }
      }
      ASSERT_TRUE(walk.wgrad_owner.empty());
      ASSERT_EQ(stage.wgrad_slots, walk.wgrad_peak);
      ASSERT_EQ(walk.stage_peak, bound(shape, s)) << "stage " << s;
      ASSERT_EQ(simulation.stages[static_cast<size_t>(s)].peak, walk.stage_peak) << "stage " << s;
      const bool split = shape.kind == ScheduleKind::zero_bubble;
      ASSERT_EQ(stage.wgrad_slots, split ? std::min(shape.microbatches, s + 1) : 0);
    }
  }
}

TEST(Schedule, BubbleIsTheTextbooks) {
  for (const ScheduleShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    const double p = shape.stages;
    const double m = shape.microbatches;
    const double v = shape.chunks;
    const Simulation simulation = simulate(make_schedule(shape), shape, whole_costs(shape));
    EXPECT_EQ(simulation.ideal, 3 * v * m);
    for (const StageSimulation& stage : simulation.stages) EXPECT_EQ(stage.busy, 3 * v * m);
    if (shape.kind == ScheduleKind::zero_bubble) {
      const double makespan = m >= p ? 3 * m + p - 1 : 2 * m + 2 * p - 1;
      EXPECT_EQ(simulation.makespan, makespan);
      EXPECT_EQ(simulation.bubble_share, (makespan - 3 * m) / makespan);
      if (m >= p) {
        EXPECT_DOUBLE_EQ(simulation.bubble_share, (p - 1) / (3 * m + p - 1));
      }
    } else {
      EXPECT_EQ(simulation.makespan, 3 * v * m + 3 * (p - 1));
      EXPECT_DOUBLE_EQ(simulation.bubble_share, (p - 1) / (v * m + p - 1));
    }
  }
}

// Stages that are not alike, by hand: the slow last one (a head) sets the pace of 1f1b, and its neighbour waits.
//
//   stage 0  F0 F1 . . B0 . F2 . B1 . . . B2       forward 1, backward 2
//   stage 1  . F0 B0 F1 B1 F2 B2                   forward 2, backward 3
TEST(Schedule, PiecesMayDiffer) {
  const ScheduleShape shape = {ScheduleKind::one_f_one_b, 2, 1, 3};
  Costs costs;
  costs.pieces = {{1, 2, 0}, {2, 3, 0}};
  const Simulation simulation = simulate(make_schedule(shape), shape, costs);
  EXPECT_EQ(simulation.ideal, 3 * 5);
  EXPECT_EQ(simulation.makespan, 1 + 3 * 5 + 2);
  EXPECT_EQ(simulation.stages[0].busy, 3 * 3);
  EXPECT_EQ(simulation.stages[1].busy, 3 * 5);
  EXPECT_DOUBLE_EQ(simulation.bubble_share, 3.0 / 18);
  // Equal pieces are what one set of costs means.
  for (const ScheduleShape& other : shapes()) {
    const Costs one = whole_costs(other);
    Costs each = one;
    each.pieces.assign(static_cast<size_t>(other.pieces()),
                       {one.forward / other.chunks, one.backward / other.chunks,
                        one.backward * one.wgrad_share / other.chunks});
    ASSERT_EQ(simulate(make_schedule(other), other, each).makespan,
              simulate(make_schedule(other), other, one).makespan)
        << text(other);
  }
  costs.pieces.pop_back();
  EXPECT_THROW(simulate(make_schedule(shape), shape, costs), InternalError);
}

// A message that waits for its receiver is paid for by each receive; one that does not travels beside passes.
TEST(Schedule, MessagesMayWaitForTheirReceiver) {
  const ScheduleShape shape = {ScheduleKind::gpipe, 2, 1, 4};
  Costs costs;
  costs.communication = 0.5;
  const double early = simulate(make_schedule(shape), shape, costs).makespan;
  costs.waits_for_receiver = true;
  const double late = simulate(make_schedule(shape), shape, costs).makespan;
  // Forward: only the first message is waited for where it travels early; each one where it does not. The first of the
  // backward passes' messages is waited for in either case, the others by a stage that has just become free.
  EXPECT_EQ(early, 4 * 3 + 3 + 2 * 0.5);
  EXPECT_GT(late, early);
  EXPECT_LE(late, early + 2 * 3 * 0.5);
}

TEST(Schedule, ZeroBubbleBeats1F1B) {
  for (const double share : {0.25, 0.4, 0.5, 0.6}) {
    for (int stages = 2; stages <= 8; ++stages) {
      for (int microbatches = 1; microbatches <= 32; ++microbatches) {
        const ScheduleShape zero = {ScheduleKind::zero_bubble, stages, 1, microbatches};
        const ScheduleShape one = {ScheduleKind::one_f_one_b, stages, 1, microbatches};
        Costs costs;
        costs.wgrad_share = share;
        EXPECT_LT(simulate(make_schedule(zero), zero, costs).bubble_share,
                  simulate(make_schedule(one), one, costs).bubble_share)
            << text(zero) << ", wgrad share " << share;
      }
    }
  }
}

TEST(Schedule, OneStageAlternates) {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
    const auto schedule = make_schedule({kind, 1, 1, 2});
    const std::vector<Action> expected = {{ActionKind::forward, 0, 0, 0},
                                          {ActionKind::backward, 0, 0, 0},
                                          {ActionKind::forward, 1, 0, 0},
                                          {ActionKind::backward, 1, 0, 0}};
    EXPECT_EQ(schedule.at(0).actions, expected);
  }
  const auto split = make_schedule({ScheduleKind::zero_bubble, 1, 1, 1});
  const std::vector<Action> expected = {
      {ActionKind::forward, 0, 0, 0}, {ActionKind::backward, 0, 0, 0, 0}, {ActionKind::wgrad, 0, 0, 0, 0}};
  EXPECT_EQ(split.at(0).actions, expected);
}

}  // namespace
}  // namespace te::parallel
