// Zero bubble, variant H1 (Qi et al., arXiv 2401.10241): wgrad is separate from dgrad and fills idle time.
//
// 1. A backward pass computes two kinds of gradients: of its input (dgrad, B), which the previous stage waits for, and
//    of its weights (wgrad, W), which only the optimizer needs. 1F1B computes both together, so every stage makes the
//    previous one wait for a wgrad. Here they are separate: the result of B is sent immediately, and W runs when the
//    stage would otherwise be idle.
// 2. F and B have the order of 1F1B: p - 1 - s forwards, then F B F B ... on stage s.
// 3. W of a microbatch runs s Bs later: B of microbatch k is followed by W of k - s. So the last stage starts with
//    F B F B without Ws between them. The first stage gets its first B late and cannot delay other stages, so W
//    directly follows B. The deferred Ws run at the end, where 1F1B would be idle: stage s has s + 1 Ws left when its
//    last B is sent, and the s earlier stages still have to run theirs.
// 4. With F = B = W = 1 and m >= p, stages are idle only at the beginning and, the first stages, before their first B.
//    The last stage starts after p - 1 forwards and then works without a gap. So
//        makespan = 3 m + p - 1,   bubble fraction = (p - 1) / (3 m + p - 1),
//    a third of 1F1B's bubble of 3 (p - 1); in general the bubble is (p - 1) (F + B - W). With m < p there are too few
//    Ws to fill the idle time: stage 0 waits for its first B until 2 p - 1 and then needs 2 m more:
//        makespan = 2 m + 2 p - 1.
// 5. Memory: a microbatch occupies its slot from F to W. Stage s has p - s microbatches before their B, as in 1F1B, and
//    s that wait for W: min(m, p) slots on every stage, as on the first stage of 1F1B, which has the most there. In
//    addition, W needs the gradients of the linear layers' outputs: min(m, s + 1) wgrad slots on stage s.
//
// Interleaved zero bubble, with v chunks per stage (parallel.virtual_stages)
// 6. F and B have the order of interleaved 1F1B: p microbatches on a chunk, then on the next chunk. W runs s Bs later,
//    as in 3., independent of the chunks: it always belongs to the B that has waited longest. 1. to 5. apply with a
//    chunk's pass as the unit of time.
// 7. Warmup: (v - 1) p + p - 1 - s forwards. Interleaved 1F1B needs one more for each later stage, because each delays
//    the gradient by a complete backward pass. Here B takes half of that time, and W fills the rest.
// 8. With F = B = W = 1 of a chunk, and m a multiple of p, the last stage again works without a gap:
//        makespan = 3 v m + p - 1,   bubble fraction = (p - 1) / (3 v m + p - 1),
//    that is 1 / v of zero_bubble's bubble. The last stage cannot start before p - 1 forwards of a chunk, so this is
//    the minimum for a step that ends on all stages at the same time.
// 9. Memory: (v - 1) p + p - s chunks before their B and s that wait for W: p v chunks on every stage, equal to the p
//    microbatches of zero_bubble and of 1F1B's first stage. Interleaved 1F1B has up to p - 1 more chunks. The chunks of
//    a stage reach their peaks at different times, so they share slots (schedule.h). Operands of W: s + 1 chunks.
// 10. Tensors from the last stage to the first wait in their channel. The last stage runs its k-th forward 2 p + 1
//    passes before the first stage starts the same microbatch on its next chunk, and it runs one every three passes: up
//    to 2 p / 3 tensors, rounded up, are in flight. The same applies to the first stage's gradients for the last. With
//    less capacity the stages wait, possibly in a deadlock. With the longer warmup of interleaved 1F1B they are
//    received earlier, at the cost of p - 1 more chunks.
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
