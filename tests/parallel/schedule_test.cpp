// All valid schedules of 1..8 stages, 1..4 chunks and 1..32 microbatches. The simulation checks that they end and that
// sends match receives; the checks here are independent of the code that creates the lists.
#include "parallel/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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
  const bool several = shape.stages >= 2 && shape.microbatches % shape.stages == 0;
  if (shape.kind == ScheduleKind::interleaved) return shape.chunks >= 2 && several;
  return shape.chunks == 1 || (shape.kind == ScheduleKind::zero_bubble && several);
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
  return fmt::format("{}, {} stages, {} chunks, {} microbatches", to_string(shape.kind), shape.stages,
                     shape.chunks, shape.microbatches);
}

/// F = 1, B = 2 for every chunk, so that all times are integers and sums are exact.
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

/// Expected actions of a microbatch on a global chunk, from the semantics.
std::vector<ActionKind> expected_kinds(const ScheduleShape& shape, int global_chunk) {
  const bool first = global_chunk == 0;
  const bool last = global_chunk == shape.stages * shape.chunks - 1;
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

TEST(Schedule, NoDeadlockAndEverySendHasItsReceive) {
  for (const ScheduleShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    const auto schedule = make_schedule(shape);
    Costs bounded = whole_costs(shape);
    bounded.buffers = 1;
    for (int stage = 0; stage < shape.stages; ++stage) {
      for (const ActionKind send : {ActionKind::send_forward, ActionKind::send_backward}) {
        const int messages = shape.channel_messages(stage, send);
        const bool first = stage == 0, last = stage == shape.stages - 1;
        const bool closes = send == ActionKind::send_forward ? last : first;
        const bool more = shape.kind == ScheduleKind::zero_bubble && shape.chunks > 1 && closes;
        ASSERT_EQ(messages, more ? static_cast<int>(std::ceil(2.0 * shape.stages / 3.0)) : 1);
      }
    }
    Costs slow = bounded;
    slow.communication = 5;
    slow.wgrad_fraction = 0.25;
    const double makespan = simulate(schedule, shape, whole_costs(shape)).makespan;
    EXPECT_EQ(simulate(schedule, shape, bounded).makespan, makespan);  // more buffers would not be faster
    EXPECT_GE(simulate(schedule, shape, slow).makespan, makespan);
  }
}

/// Follows the slots of a stage's list: checks that none is allocated twice, and that all actions of a microbatch on a
/// chunk use the same slot.
struct SlotWalk {
  using Pass = std::pair<int, int>;           // (chunk, microbatch)
  std::map<std::pair<int, int>, Pass> owner;  // (pool, slot)
  std::map<int, Pass> wgrad_owner;            // wgrad slot
  std::map<int, std::set<int>> held;          // pool -> slots in use
  std::map<int, int> peak;
  int wgrad_peak = 0;
  int stage_peak = 0;

  void take(const Action& action, int pool) {
    ASSERT_TRUE(held[pool].insert(action.slot).second) << "slot " << action.slot << " is in use";
    owner[{pool, action.slot}] = {action.chunk, action.microbatch};
    peak[pool] = std::max(peak[pool], static_cast<int>(held[pool].size()));
    int all = 0;
    for (const auto& [chunk, slots] : held) all += static_cast<int>(slots.size());
    stage_peak = std::max(stage_peak, all);
  }

  void visit(const Action& action, const ScheduleShape& shape, bool first_global_chunk) {
    const bool split = shape.kind == ScheduleKind::zero_bubble;
    const int pool = split ? 0 : action.chunk;  // chunks of zero_bubble share their slots
    const std::pair<int, int> place = {pool, action.slot};
    if (action.kind == (first_global_chunk ? ActionKind::forward : ActionKind::receive_forward))
      take(action, pool);
    const auto expected = std::make_pair(action.chunk, action.microbatch);
    ASSERT_EQ(owner.at(place), expected) << action_name(action.kind);
    if (action.kind == ActionKind::backward && split) {
      ASSERT_TRUE(wgrad_owner.emplace(action.wgrad_slot, expected).second) << "wgrad slot in use";
      wgrad_peak = std::max(wgrad_peak, static_cast<int>(wgrad_owner.size()));
    } else if (action.kind == ActionKind::wgrad) {
      ASSERT_EQ(wgrad_owner.at(action.wgrad_slot), expected);
      wgrad_owner.erase(action.wgrad_slot);
    } else {
      ASSERT_EQ(action.wgrad_slot, -1);
    }
    // send_backward follows backward and has the slot's number after the slot is free, but before its next use.
    if (action.kind == (split ? ActionKind::wgrad : ActionKind::backward)) held[pool].erase(action.slot);
  }
};

/// Maximum number of chunk activations on a stage.
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
      return std::min(m, p) * shape.chunks;  // as on the first stage of 1F1B
  }
  return 0;
}

TEST(Schedule, SlotsHaveOneUserAndTheirCountIsThePeak) {
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
      const bool split = shape.kind == ScheduleKind::zero_bubble;
      ASSERT_EQ(stage.slots.size(), split ? 1u : static_cast<size_t>(shape.chunks));
      for (size_t pool = 0; pool < stage.slots.size(); ++pool) {
        const int at = static_cast<int>(pool);
        ASSERT_TRUE(walk.held[at].empty());
        ASSERT_EQ(stage.slots[pool], walk.peak[at]);
        if (shape.kind == ScheduleKind::interleaved) {
          ASSERT_LE(walk.peak[at], std::min(shape.microbatches, 2 * shape.stages));
        }
      }
      ASSERT_TRUE(walk.wgrad_owner.empty());
      ASSERT_EQ(stage.wgrad_slots, walk.wgrad_peak);
      ASSERT_EQ(walk.stage_peak, bound(shape, s)) << "stage " << s;
      ASSERT_EQ(simulation.stages[static_cast<size_t>(s)].peak, walk.stage_peak) << "stage " << s;
      ASSERT_EQ(stage.wgrad_slots, split ? std::min(shape.chunks * shape.microbatches, s + 1) : 0);
    }
  }
}

TEST(Schedule, BubbleMatchesTheFormulas) {
  for (const ScheduleShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    const double p = shape.stages;
    const double m = shape.microbatches;
    const double v = shape.chunks;
    const Simulation simulation = simulate(make_schedule(shape), shape, whole_costs(shape));
    EXPECT_EQ(simulation.ideal, 3 * v * m);
    for (const StageSimulation& stage : simulation.stages) EXPECT_EQ(stage.busy, 3 * v * m);
    if (shape.kind == ScheduleKind::zero_bubble) {
      const double makespan = m >= p ? 3 * v * m + p - 1 : 2 * m + 2 * p - 1;
      EXPECT_EQ(simulation.makespan, makespan);
      EXPECT_EQ(simulation.bubble_fraction, (makespan - 3 * v * m) / makespan);
      if (m >= p) {
        EXPECT_DOUBLE_EQ(simulation.bubble_fraction, (p - 1) / (3 * v * m + p - 1));
      }
    } else {
      EXPECT_EQ(simulation.makespan, 3 * v * m + 3 * (p - 1));
      EXPECT_DOUBLE_EQ(simulation.bubble_fraction, (p - 1) / (v * m + p - 1));
    }
  }
}

// One microbatch forward and backward, computed by hand.
TEST(Schedule, CommunicationTakesTime) {
  const ScheduleShape shape = {ScheduleKind::one_f_one_b, 2, 1, 1};
  Costs costs{.forward = 1, .backward = 2, .communication = 0.5};
  EXPECT_EQ(simulate(make_schedule(shape), shape, costs).makespan, 2 * (1 + 2) + 2 * 0.5);
  costs.waits_for_receiver = true;
  EXPECT_EQ(simulate(make_schedule(shape), shape, costs).makespan, 2 * (1 + 2) + 2 * 0.5);
  // With two microbatches the second transfer is overlapped, unless it waits for its receiver.
  const ScheduleShape two = {ScheduleKind::gpipe, 2, 1, 2};
  costs = {.forward = 1, .backward = 0, .communication = 0.5};
  const double early = simulate(make_schedule(two), two, costs).makespan;
  costs.waits_for_receiver = true;
  EXPECT_GT(simulate(make_schedule(two), two, costs).makespan, early);
}

// Stages with different costs, computed by hand: the slow last stage (output layer) determines the time of 1f1b, and
// the other stage waits.
//
//   stage 0  F0 F1 . . B0 . F2 . B1 . . . B2       forward 1, backward 2
//   stage 1  . F0 B0 F1 B1 F2 B2                   forward 2, backward 3
TEST(Schedule, ChunksMayHaveDifferentCosts) {
  const ScheduleShape shape = {ScheduleKind::one_f_one_b, 2, 1, 3};
  Costs costs;
  costs.per_chunk = {{1, 2, 0}, {2, 3, 0}};
  const Simulation simulation = simulate(make_schedule(shape), shape, costs);
  EXPECT_EQ(simulation.ideal, 3 * 5);
  EXPECT_EQ(simulation.makespan, 1 + 3 * 5 + 2);
  EXPECT_EQ(simulation.stages[0].busy, 3 * 3);
  EXPECT_EQ(simulation.stages[1].busy, 3 * 5);
  EXPECT_DOUBLE_EQ(simulation.bubble_fraction, 3.0 / 18);
  // Equal costs per chunk are the same as one set of costs.
  for (const ScheduleShape& other : shapes()) {
    const Costs one = whole_costs(other);
    Costs each = one;
    each.per_chunk.assign(static_cast<size_t>(other.total_chunks()),
                          {one.forward / other.chunks, one.backward / other.chunks,
                           one.backward * one.wgrad_fraction / other.chunks});
    ASSERT_EQ(simulate(make_schedule(other), other, each).makespan,
              simulate(make_schedule(other), other, one).makespan)
        << text(other);
  }
  costs.per_chunk.pop_back();
  EXPECT_THROW(simulate(make_schedule(shape), shape, costs), InternalError);
}

// A transfer that waits for its receiver delays each receive; other transfers overlap with computation.
TEST(Schedule, TransfersMayWaitForTheirReceiver) {
  const ScheduleShape shape = {ScheduleKind::gpipe, 2, 1, 4};
  Costs costs;
  costs.communication = 0.5;
  const double early = simulate(make_schedule(shape), shape, costs).makespan;
  costs.waits_for_receiver = true;
  const double late = simulate(make_schedule(shape), shape, costs).makespan;
  // Forward: with early transfers only the first receive waits; otherwise each one does. Backward: the first receive
  // waits in both cases, the others only on a stage that has just finished a pass.
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
        costs.wgrad_fraction = share;
        EXPECT_LT(simulate(make_schedule(zero), zero, costs).bubble_fraction,
                  simulate(make_schedule(one), one, costs).bubble_fraction)
            << text(zero) << ", wgrad fraction " << share;
      }
    }
  }
}

// Two stages of two chunks (a, b) and four microbatches, computed by hand. Stage 1 runs B0b directly after F0b and
// defers one W; stage 0 runs three forwards before B0b. F0b, which depends only on F0a on stage 1, runs as soon as both
// microbatches of the first group have passed chunk a.
TEST(Schedule, InterleavedZeroBubbleExample) {
  const auto schedule = make_schedule({ScheduleKind::zero_bubble, 2, 2, 4});
  const auto computations = [&](size_t stage) {
    std::string order;
    for (const Action& action : schedule[stage].actions) {
      const char letter = action.kind == ActionKind::forward    ? 'F'
                          : action.kind == ActionKind::backward ? 'B'
                          : action.kind == ActionKind::wgrad    ? 'W'
                                                                : ' ';
      if (letter != ' ') order += fmt::format("{}{}{} ", letter, action.microbatch, "ab"[action.chunk]);
    }
    return order;
  };
  EXPECT_EQ(
      computations(0),
      "F0a F1a F0b F1b B0b W0b F2a B1b W1b F3a B0a W0a F2b B1a W1a F3b B2b W2b B3b W3b B2a W2a B3a W3a ");
  EXPECT_EQ(
      computations(1),
      "F0a F1a F0b B0b F1b B1b W0b F2a B0a W1b F3a B1a W0a F2b B2b W1a F3b B3b W2b B2a W3b B3a W2a W3a ");
  // The chunks share slots, lowest first: on stage 0, F2a reuses the slot of microbatch 0 on chunk b.
  const auto& actions = schedule[0].actions;
  const auto slot_of = [&](ActionKind kind, int microbatch, int chunk) {
    return std::ranges::find_if(actions,
                                [&](const Action& a) {
                                  return a.kind == kind && a.microbatch == microbatch && a.chunk == chunk;
                                })
        ->slot;
  };
  EXPECT_EQ(slot_of(ActionKind::forward, 0, 1), 2);
  EXPECT_EQ(slot_of(ActionKind::forward, 2, 0), 2);
  EXPECT_EQ(schedule[0].slots, std::vector<int>{4});
  EXPECT_EQ(schedule[1].slots, std::vector<int>{4});
  EXPECT_EQ(schedule[0].wgrad_slots, 1);
  EXPECT_EQ(schedule[1].wgrad_slots, 2);
}

// Between the last stage and the first, less capacity than the shape's makes stages wait, here in a deadlock. A shape
// of kind interleaved has channels for one tensor, so the simulation uses that capacity for it.
TEST(Schedule, InterleavedZeroBubbleNeedsItsChannels) {
  const ScheduleShape shape = {ScheduleKind::zero_bubble, 4, 3, 16};
  ASSERT_EQ(shape.channel_messages(3, ActionKind::send_forward), 3);
  auto schedule = make_schedule(shape);
  Costs costs = whole_costs(shape);
  costs.buffers = 1;
  EXPECT_NO_THROW(simulate(schedule, shape, costs));
  // The same lists with channels for one tensor.
  ScheduleShape narrow = shape;
  narrow.kind = ScheduleKind::interleaved;
  for (StageSchedule& stage : schedule)
    std::erase_if(stage.actions, [](const Action& action) { return action.kind == ActionKind::wgrad; });
  EXPECT_NO_THROW(simulate(schedule, narrow));
  try {
    simulate(schedule, narrow, costs);
    FAIL() << "channels for one tensor are sufficient";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("deadlock"), std::string::npos) << error.what();
  }
}

// The output layer adds a layer's work to the last of four chunks: F, B, W take 2 there, 1 elsewhere. Two microbatches,
// computed by hand:
//
//   stage 0  F0a F1a F0b F1b . . B0b W0b B1b W1b . B0a W0a B1a W1a     F0b waits for F0a on stage 1, until 2: no gap
//   stage 1  . F0a F1a F0b- B0b- F1b- B1b- W0b- B0a W1b- B1a W0a W1a
//
// Stage 1: F0b 3 to 5, B0b to 7, F1b to 9, B1b to 11, W0b to 13, B0a (its gradient, B0b of stage 0, is ready at 8) to
// 14, W1b to 16, B1a to 17, W0a, W1a to 19. Stage 0: F1b to 4, B0b 7 to 8, W0b to 9, B1b 11 to 12, W1b to 13, B0a 14 to
// 15, W0a to 16, B1a 17 to 18, W1a to 19.
TEST(Schedule, InterleavedZeroBubbleWithAnOutputLayerExample) {
  const ScheduleShape shape = {ScheduleKind::zero_bubble, 2, 2, 2};
  Costs costs;
  costs.per_chunk = {{1, 2, 1}, {1, 2, 1}, {1, 2, 1}, {2, 4, 2}};
  const Simulation simulation = simulate(make_schedule(shape), shape, costs);
  EXPECT_EQ(simulation.makespan, 19);
  EXPECT_EQ(simulation.ideal, 2 * 9);
  const auto start_of = [&](size_t stage, ActionKind kind, int microbatch, int chunk) {
    for (const TimelineEntry& entry : simulation.stages[stage].timeline)
      if (entry.kind == kind && entry.microbatch == microbatch && entry.chunk == chunk) return entry.start;
    return -1.0;
  };
  EXPECT_EQ(start_of(1, ActionKind::backward, 0, 1), 5);
  EXPECT_EQ(start_of(0, ActionKind::backward, 0, 1), 7);
  EXPECT_EQ(start_of(1, ActionKind::backward, 0, 0), 13);
  EXPECT_EQ(start_of(0, ActionKind::backward, 1, 0), 17);
}

TEST(Schedule, InterleavedZeroBubbleBeatsZeroBubbleAndInterleaved) {
  for (const double share : {0.4, 0.5, 0.6}) {
    for (int stages = 2; stages <= 8; ++stages) {
      for (int microbatches = stages; microbatches <= 32; microbatches += stages) {
        Costs costs;
        costs.wgrad_fraction = share;
        double before = 1;
        for (int chunks = 1; chunks <= 4; ++chunks) {
          const ScheduleShape zero = {ScheduleKind::zero_bubble, stages, chunks, microbatches};
          const double bubble = simulate(make_schedule(zero), zero, costs).bubble_fraction;
          EXPECT_LT(bubble, before) << text(zero) << ", wgrad fraction " << share;
          before = bubble;
          const ScheduleShape other = {ScheduleKind::interleaved, stages, chunks, microbatches};
          if (!legal(other)) continue;
          EXPECT_LT(bubble, simulate(make_schedule(other), other, costs).bubble_fraction) << text(other);
        }
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
