// Interleaved 1F1B: several model chunks per stage (Narayanan et al., arXiv 2104.04473, section 2.2).
//
// 1. The bubble of 1F1B is the time to fill and drain p stages: p - 1 passes of a stage. Here every stage has v short
//    chunks of the model instead of a long one (stage s has the global chunks s, s + p, s + 2 p, ...), and a microbatch
//    passes the stages v times. Filling then costs p - 1 passes of a chunk, 1 / v of the time, with the same work:
//        bubble fraction = (p - 1) / (v m + p - 1).
//    The cost is v times as many sends, and more activations in flight.
// 2. Order of the forward passes, the same on every stage: p microbatches on chunk 0, the same p on chunk 1, and so on
//    to chunk v - 1, then the next p microbatches. With p microbatches there is no idle time between chunks: when stage
//    0 has sent the p-th microbatch, the first has arrived from stage p - 1 and is ready for the next chunk. Therefore
//    the number of microbatches must be a multiple of the number of stages.
// 3. Order of the backward passes: the same with the chunks from last to first.
// 4. Warmup: the first backward pass of the pipeline is that of microbatch 0 on the last global chunk. Stage p - 1 runs
//    (v - 1) p forwards before it: the first group on all chunks but the last. Each earlier stage runs two more than
//    the next one, because forward reaches it one pass earlier and backward one pass later: 2 (p - 1 - s) + (v - 1) p
//    in all. Then one forward and one backward alternate; then the remaining backward passes follow.
// 5. Memory: including the forward of the first pair, stage s has the activations of
//        min(v m, 2 (p - 1 - s) + (v - 1) p + 1)
//    chunks, each 1 / v of a stage's: on stage 0 that is 1 + (p - 1) / (p v) times the activations of 1F1B. Slots
//    belong to chunks because chunks may differ in layers. The chunks reach their peaks at different times, so their
//    slots add up to more than that number. No chunk has more than min(m, 2 p) slots.
#include <algorithm>

#include "parallel/schedule/orders.h"

namespace te::parallel {

Step interleaved_pass(const ScheduleShape& shape, ActionKind kind, int i) {
  const int group_size = shape.stages * shape.chunks;
  const int group = i / group_size;
  const int position = i % group_size / shape.stages;
  const int chunk = kind == ActionKind::forward ? position : shape.chunks - 1 - position;
  return {kind, group * shape.stages + i % shape.stages, chunk};
}

int interleaved_warmup(const ScheduleShape& shape, int stage) {
  const int wanted = 2 * (shape.stages - 1 - stage) + (shape.chunks - 1) * shape.stages;
  return std::min(shape.microbatches * shape.chunks, wanted);
}

std::vector<Step> interleaved_order(const ScheduleShape& shape, int stage) {
  const int passes = shape.microbatches * shape.chunks;
  const int warmup = interleaved_warmup(shape, stage);
  std::vector<Step> order;
  for (int i = 0; i < warmup; ++i) order.push_back(interleaved_pass(shape, ActionKind::forward, i));
  for (int i = 0; i < passes; ++i) {
    const int ahead = i + warmup;
    if (ahead < passes) order.push_back(interleaved_pass(shape, ActionKind::forward, ahead));
    order.push_back(interleaved_pass(shape, ActionKind::backward, i));
  }
  return order;
}

}  // namespace te::parallel
