// The order of a stage's computations in each of the four schedules. schedule.cpp derives sends, receives and slots
// from this order.
#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace te::parallel {

/// forward, backward or wgrad of a microbatch on a chunk of the stage.
struct Step {
  ActionKind kind;
  int microbatch;
  int chunk;
};

std::vector<Step> gpipe_order(const ScheduleShape& shape, int stage);
std::vector<Step> one_f_one_b_order(const ScheduleShape& shape, int stage);
std::vector<Step> interleaved_order(const ScheduleShape& shape, int stage);
std::vector<Step> zero_bubble_order(const ScheduleShape& shape, int stage);

/// The i-th forward or backward pass of a stage in the order of interleaved 1F1B; with one chunk, in the order of 1F1B
/// with any number of microbatches. For wgrad: the wgrad of the i-th backward pass.
Step interleaved_pass(const ScheduleShape& shape, ActionKind kind, int i);

/// Forward passes before the first backward pass of the interleaved schedule.
int interleaved_warmup(const ScheduleShape& shape, int stage);

}  // namespace te::parallel
