// 1F1B: one forward, one backward (PipeDream-Flush, Narayanan et al., arXiv 2006.09503).
//
// 1. GPipe saves activations of all m microbatches because no backward pass starts before the last forward pass.
//    However, the last stage can run the backward pass of microbatch 0 directly after its forward pass, and then the
//    earlier stages can, one after the other.
// 2. Warmup: stage s runs p - 1 - s forward passes, one for every later stage. That many microbatches are in flight
//    when the first gradient arrives.
// 3. Steady state: one forward, then one backward, so that each new microbatch replaces a finished one. Stage s has at
//    most min(m, p - s) microbatches in flight: p on the first stage, one on the last, for any m.
// 4. Cooldown: no forward passes are left; the backward passes of the warmup's microbatches follow.
// 5. The idle time is that of GPipe, at other positions: filling and draining the pipeline cost p - 1 passes of each
//    kind, so
//        bubble fraction = (p - 1) / (m + p - 1).
//    The advantage is memory. For a smaller bubble use more microbatches, interleaved or zero_bubble.
#include <algorithm>

#include "parallel/schedule/orders.h"

namespace te::parallel {

std::vector<Step> one_f_one_b_order(const ScheduleShape& shape, int stage) {
  const int warmup = std::min(shape.microbatches, shape.stages - 1 - stage);
  std::vector<Step> order;
  for (int i = 0; i < warmup; ++i) order.push_back({ActionKind::forward, i, 0});
  for (int i = 0; i < shape.microbatches; ++i) {
    const int ahead = i + warmup;
    if (ahead < shape.microbatches) order.push_back({ActionKind::forward, ahead, 0});
    order.push_back({ActionKind::backward, i, 0});
  }
  return order;
}

}  // namespace te::parallel
