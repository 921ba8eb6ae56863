// The four schedules, reduced to what tells them apart: the order in which a stage computes. Messages and
// slots follow from that order and are added in one place (schedule.cpp).
#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace te::parallel {

/// forward, backward or wgrad of a microbatch on a chunk.
struct Step {
  ActionKind kind;
  int microbatch;
  int chunk;
};

std::vector<Step> gpipe_order(const ScheduleShape& shape, int stage);
std::vector<Step> one_f_one_b_order(const ScheduleShape& shape, int stage);
std::vector<Step> interleaved_order(const ScheduleShape& shape, int stage);
std::vector<Step> zero_bubble_order(const ScheduleShape& shape, int stage);

/// The i-th forward or backward pass of a stage by the order of interleaved 1F1B; with one chunk and any number of
/// microbatches, of 1F1B. A wgrad is that of the i-th backward pass.
Step interleaved_pass(const ScheduleShape& shape, ActionKind kind, int i);

/// Forward passes before the first backward pass of the interleaved schedule.
int interleaved_warmup(const ScheduleShape& shape, int stage);

}  // namespace te::parallel
