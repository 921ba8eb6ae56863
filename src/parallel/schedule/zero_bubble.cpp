// Zero bubble, the variant H1 (Qi et al., arXiv 2401.10241): wgrad is split from dgrad and fills the gaps.
//
// 1. A backward pass computes two gradients: that of its input (dgrad, B), which the stage before waits
//    for, and those of its weights (wgrad, W), which nobody waits for before the optimizer. 1F1B computes
//    both at once, so each stage on the way back makes the one before wait for a wgrad that it does not
//    need. Split them: B is sent at once, and W runs whenever the stage has nothing better to do.
// 2. Forwards and Bs come in the order of 1F1B: p - 1 - s forwards, then F B F B ... on stage s.
// 3. W of a microbatch follows s Bs later: after B of microbatch k comes W of k - s. The last stage thus
//    starts by answering at once, F B F B, with nothing between them; the first stage has its first B late
//    and cannot get ahead of anyone, so its W follows directly. What was put off is done at the end, where
//    1F1B would be idle: stage s has s + 1 Ws left when its last B is sent, while that B still has s stages
//    to go.
// 4. With F = B = W = 1 and m >= p no stage waits anywhere but at its beginning and, the first ones, before
//    their first B: the last stage starts after p - 1 forwards and then works without a gap. So
//        makespan = 3 m + p - 1,   bubble share = (p - 1) / (3 m + p - 1),
//    a third of 1F1B's bubble of 3 (p - 1); in general (p - 1) (F + B - W). With m < p there is too little W
//    to fill the wait: stage 0 waits for its first B until 2 p - 1 and then needs 2 m more:
//        makespan = 2 m + 2 p - 1.
// 5. Memory: a microbatch stays in its slot from F to W. Stage s has p - s of them up to their B, as in 1F1B,
//    and s that wait for W: min(m, p) slots on every stage, which is what 1F1B has on its largest, the first.
//    Besides, wgrad needs the gradients of the linears' outputs: min(m, s + 1) wgrad slots on stage s.
// 6. One chunk per stage: the pieces of several chunks would need an order of their own.
#include <algorithm>

#include "parallel/schedule/orders.h"

namespace te::parallel {

std::vector<Step> zero_bubble_order(const ScheduleShape& shape, int stage) {
  const int delay = stage;
  std::vector<Step> order;
  for (const Step& step : one_f_one_b_order(shape, stage)) {
    order.push_back(step);
    if (step.kind == ActionKind::backward && step.microbatch >= delay) {
      order.push_back({ActionKind::wgrad, step.microbatch - delay, 0});
    }
  }
  for (int i = std::max(0, shape.microbatches - delay); i < shape.microbatches; ++i) {
    order.push_back({ActionKind::wgrad, i, 0});
  }
  return order;
}

}  // namespace te::parallel
