// GPipe: all forward passes, then all backward passes (Huang et al., arXiv 1811.06965).
//
// 1. With p stages and only one batch, one stage at a time is busy. Therefore the batch is divided into m microbatches
//    that follow each other: while stage 1 computes microbatch 0, stage 0 computes microbatch 1.
// 2. Stage s waits for s forward passes of earlier stages at the beginning, and for s backward passes at the end. In
//    the middle it waits for p - 1 - s forward and backward passes of later stages. For every stage the idle time (the
//    bubble) adds up to (p - 1) forwards + (p - 1) backwards. The work is m of each, so
//        bubble fraction = (p - 1) / (m + p - 1).
// 3. The saved activations of all microbatches are kept until the backward passes: m slots on every stage. 1F1B needs
//    fewer.
// 4. The paper runs the backward passes in reverse order of the microbatches. Here they run in order, which has the
//    same bubble and memory, and sums gradients in the same order as every other schedule.
#include "parallel/schedule/orders.h"

namespace te::parallel {

std::vector<Step> gpipe_order(const ScheduleShape& shape, int /*stage*/) {
  std::vector<Step> order;
  for (int i = 0; i < shape.microbatches; ++i) order.push_back({ActionKind::forward, i, 0});
  for (int i = 0; i < shape.microbatches; ++i) order.push_back({ActionKind::backward, i, 0});
  return order;
}

}  // namespace te::parallel
