// Shapes without a schedule cause a UserError; the simulation detects schedules that violate a rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "core/error.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/simulate.h"

namespace te::parallel {
namespace {

void expect_refused(const ScheduleShape& shape, const std::string& part) {
  try {
    make_schedule(shape);
    FAIL() << "accepted; expected: " << part;
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(ScheduleShape, ErrorsNameKeyRuleAndRemedy) {
  expect_refused({ScheduleKind::one_f_one_b, 0, 1, 1}, "parallel.pipeline (0)");
  expect_refused({ScheduleKind::one_f_one_b, 1, 0, 1}, "parallel.virtual_stages (0)");
  expect_refused({ScheduleKind::one_f_one_b, 1, 1, 0}, "gives 0 microbatches");
  expect_refused({ScheduleKind::gpipe, 4, 2, 8},
                 "parallel.virtual_stages (2) must be 1 with parallel.schedule gpipe");
  expect_refused({ScheduleKind::one_f_one_b, 4, 2, 8}, "with parallel.schedule 1f1b");
  expect_refused({ScheduleKind::one_f_one_b, 4, 2, 8}, "choose parallel.schedule interleaved or zero_bubble");
  expect_refused({ScheduleKind::interleaved, 4, 1, 8}, "parallel.virtual_stages of 2 or more (it is 1)");
  expect_refused({ScheduleKind::interleaved, 1, 2, 8}, "parallel.pipeline of 2 or more (it is 1)");
  expect_refused({ScheduleKind::interleaved, 4, 2, 6}, "is 6, 2 too many: make it 4 or 8");
  expect_refused({ScheduleKind::interleaved, 4, 2, 3}, "is 3, 3 too many: make it 4,");
  expect_refused({ScheduleKind::zero_bubble, 4, 2, 6},
                 "parallel.schedule zero_bubble with parallel.virtual_stages 2 needs a multiple of "
                 "parallel.pipeline (4) as number of microbatches, but training.global_batch_size / "
                 "micro_batch_size / data-parallel size is 6, 2 too many: make it 4 or 8, or choose "
                 "parallel.virtual_stages 1");
  expect_refused({ScheduleKind::zero_bubble, 1, 2, 8},
                 "zero_bubble with parallel.virtual_stages 2 needs parallel.pipeline of 2 or more (it is 1)");
  make_schedule(
      {ScheduleKind::zero_bubble, 4, 1, 6});  // with one chunk any number of microbatches is allowed
}

/// Damages a valid schedule and expects that the simulation reports it with this text.
void expect_found(const ScheduleShape& shape,
                  const std::function<void(std::vector<StageSchedule>&)>& breakage, const std::string& part,
                  int buffers = 0) {
  auto schedule = make_schedule(shape);
  breakage(schedule);
  Costs costs;
  costs.buffers = buffers;
  try {
    simulate(schedule, shape, costs);
    FAIL() << "not found: " << part;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

std::vector<Action>::iterator find(StageSchedule& stage, ActionKind kind, int microbatch) {
  return std::ranges::find_if(stage.actions,
                              [&](const Action& a) { return a.kind == kind && a.microbatch == microbatch; });
}

const ScheduleShape kGpipe = {ScheduleKind::gpipe, 2, 1, 3};

TEST(SimulateBroken, SwappedSends) {
  const auto swap_sends = [](std::vector<StageSchedule>& s) {
    std::swap(find(s[0], ActionKind::send_forward, 0)->microbatch,
              find(s[0], ActionKind::send_forward, 1)->microbatch);
  };
  expect_found(kGpipe, swap_sends, "runs before its output is computed");
  const auto swap_late_sends = [](std::vector<StageSchedule>& s) {
    const Action first = *find(s[0], ActionKind::send_forward, 0);
    s[0].actions.erase(find(s[0], ActionKind::send_forward, 0));
    s[0].actions.insert(find(s[0], ActionKind::send_forward, 1) + 1, first);
  };
  expect_found(kGpipe, swap_late_sends,
               "expects microbatch 0 of chunk 0, but microbatch 1 of chunk 0 arrives");
}

TEST(SimulateBroken, WrongChunk) {
  // The number of sends and the microbatch are right, but not the chunk.
  const ScheduleShape shape = {ScheduleKind::interleaved, 2, 2, 2};
  const auto other_chunk = [](std::vector<StageSchedule>& s) {
    auto receive = find(s[1], ActionKind::receive_forward, 0);
    receive->chunk = 1;
  };
  expect_found(shape, other_chunk, "expects microbatch 0 of chunk 2, but microbatch 0 of chunk 0 arrives");
}

TEST(SimulateBroken, MissingSendIsADeadlock) {
  const auto drop = [](std::vector<StageSchedule>& s) {
    s[0].actions.erase(find(s[0], ActionKind::send_forward, 2));
  };
  expect_found(kGpipe, drop, "stage 1 at receive_forward of microbatch 2 on chunk 0");
}

TEST(SimulateBroken, SendWithoutReceive) {
  const auto drop = [](std::vector<StageSchedule>& s) {
    s[0].actions.erase(find(s[0], ActionKind::receive_backward, 2));
    s[0].actions.erase(find(s[0], ActionKind::backward, 2));
  };
  expect_found(kGpipe, drop, "3 forward, 2 backward");
  const auto extra = [](std::vector<StageSchedule>& s) {
    s[0].actions.push_back(*find(s[0], ActionKind::send_forward, 2));
  };
  expect_found(kGpipe, extra, "1 messages are never received");
}

TEST(SimulateBroken, OrderAndRepetition) {
  const auto early = [](std::vector<StageSchedule>& s) {
    const auto at = find(s[1], ActionKind::receive_forward, 1);
    std::swap(*at, *(at + 1));
  };
  expect_found(kGpipe, early, "forward of microbatch 1 on chunk 0 runs before its input arrives");
  const auto twice = [](std::vector<StageSchedule>& s) {
    s[1].actions.push_back(*find(s[1], ActionKind::backward, 1));
  };
  expect_found(kGpipe, twice, "backward of microbatch 1 on chunk 0 runs twice");
  const ScheduleShape zero = {ScheduleKind::zero_bubble, 2, 1, 3};
  const auto no_wgrad = [](std::vector<StageSchedule>& s) {
    s[1].actions.erase(find(s[1], ActionKind::wgrad, 1));
  };
  expect_found(zero, no_wgrad, "3 backward, 2 wgrad");
}

TEST(SimulateBroken, OneBufferIsNotAlwaysEnough) {
  // Stage 0 runs GPipe and stage 1 runs 1F1B: sends and receives match, and with unlimited buffers the schedule ends.
  // With one buffer stage 0 cannot send its last activations, and stage 1 cannot send its second gradient.
  const ScheduleShape shape = {ScheduleKind::one_f_one_b, 2, 1, 4};
  const auto mix = [](std::vector<StageSchedule>& s) {
    s[0] = make_schedule({ScheduleKind::gpipe, 2, 1, 4}).at(0);
  };
  auto schedule = make_schedule(shape);
  mix(schedule);
  EXPECT_NO_THROW(simulate(schedule, shape));
  expect_found(shape, mix,
               "stage 0 at send_forward of microbatch 3 on chunk 0, stage 1 at send_backward of microbatch 1",
               1);
}

}  // namespace
}  // namespace te::parallel
