// GPipe: all forward passes, then all backward passes (Huang et al., arXiv 1811.06965).
//
// 1. A model cut into p stages keeps only one stage busy if one batch walks through it. So the batch is cut
//    into m microbatches that follow each other: while stage 1 works on microbatch 0, stage 0 has 1.
// 2. Stage s gets its first microbatch after s forward passes of others and waits that long. On the way back
//    the same happens in the other direction: stage s waits s backward passes at the end and, in the middle,
//    for p - 1 - s passes of each kind downstream of it. Whatever the stage, the waits add up to
//    (p - 1) forwards + (p - 1) backwards: the bubble. Work is m of each, so
//        bubble share = (p - 1) / (m + p - 1).
// 3. Every microbatch's saved activations wait for the turn of the tide: m slots on every stage. That is the
//    price of the simplest order, and what 1F1B improves.
// 4. The paper runs the backward passes last microbatch first; here they run in order, which has the same
//    bubble and memory and sums gradients in the order of every other schedule.
#include "parallel/schedule/orders.h"

namespace te::parallel {

std::vector<Step> gpipe_order(const ScheduleShape& shape, int /*stage*/) {
  std::vector<Step> order;
  for (int i = 0; i < shape.microbatches; ++i) order.push_back({ActionKind::forward, i, 0});
  for (int i = 0; i < shape.microbatches; ++i) order.push_back({ActionKind::backward, i, 0});
  return order;
}

}  // namespace te::parallel
