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
//
// Interleaved zero bubble: the same with v chunks per stage (parallel.virtual_stages)
// 6. Forwards and Bs come in the order of interleaved 1F1B, p microbatches on a chunk and then on the next; W follows s
//    Bs later, as in 3., whatever the chunks: a W is always of the B that has waited longest. All of the above holds
//    with a chunk's pass as the unit of time.
// 7. Warm-up: (v - 1) p + p - 1 - s forwards. Interleaved 1F1B needs one more for each stage behind s, since a gradient
//    comes back a whole backward pass later from each; here B takes half of that, and the forward that is missing
//    would only have filled the place of a W.
// 8. With F = B = W = 1 of a chunk, and m a multiple of p, the last stage again works without a gap:
//        makespan = 3 v m + p - 1,   bubble share = (p - 1) / (3 v m + p - 1),
//    a v-th of zero_bubble's bubble and, since the last stage cannot start before p - 1 forwards of a chunk, as little
//    as a step that ends on all stages together can have.
// 9. Memory: (v - 1) p + p - s chunks up to their B and s that wait for W: p v chunks on every stage, the p
//    microbatches of zero_bubble and of 1F1B's first stage. Interleaved 1F1B has up to p - 1 chunks more. The chunks
//    of a stage reach their peaks at different times, so they share slots (schedule.h); operands of W: s + 1 chunks.
// 10. Between the last stage and the first, where the ring closes, messages wait. The last stage runs its k-th forward
//    2 p + 1 passes before the first stage takes up the same microbatch on its next chunk, and makes one every three
//    passes: up to 2 p / 3 of them, rounded up, are on their way. So it is with the first stage's gradients for the
//    last. With room for fewer the stages wait, or even for each other. The longer warm-up of interleaved 1F1B takes
//    them up sooner, at the price of its p - 1 chunks more.
#include <algorithm>

#include "parallel/schedule/orders.h"

namespace te::parallel {

std::vector<Step> zero_bubble_order(const ScheduleShape& shape, int stage) {
  const int passes = shape.microbatches * shape.chunks;
  const int warmup = std::min(passes, (shape.chunks - 1) * shape.stages + shape.stages - 1 - stage);
  const int delay = stage;
  std::vector<Step> order;
  const auto add = [&](ActionKind kind, int i) { order.push_back(interleaved_pass(shape, kind, i)); };
  for (int i = 0; i < warmup; ++i) add(ActionKind::forward, i);
  for (int i = 0; i < passes; ++i) {
    if (i + warmup < passes) add(ActionKind::forward, i + warmup);
    add(ActionKind::backward, i);
    if (i >= delay) add(ActionKind::wgrad, i - delay);
  }
  for (int i = std::max(0, passes - delay); i < passes; ++i) add(ActionKind::wgrad, i);
  return order;
}

}  // namespace te::parallel
