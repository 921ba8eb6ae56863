// 1F1B: one forward, one backward (PipeDream-Flush, Narayanan et al., arXiv 2006.09503).
//
// 1. GPipe saves activations of all m microbatches because no backward pass starts before the last forward.
//    But the last stage can run backward of microbatch 0 as soon as it has run its forward, and then every
//    stage before it can, one after the other.
// 2. Warm-up: stage s runs p - 1 - s forward passes, one for every stage behind it: that many microbatches
//    are on their way when the first gradient comes back.
// 3. Steady: one forward, then one backward, so that each new microbatch replaces a finished one. Stage s
//    never holds more than min(m, p - s) microbatches: p on the first stage, one on the last, however large
//    m is.
// 4. Cool-down: the forward passes are used up and the warm-up's microbatches come back.
// 5. The waits are GPipe's in another order: filling and draining still cost p - 1 of each pass, so
//        bubble share = (p - 1) / (m + p - 1).
//    The gain is memory; a smaller bubble comes from more microbatches, from interleaved or from zero_bubble.
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
