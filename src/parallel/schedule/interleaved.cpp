// Interleaved 1F1B: several model chunks per stage (Narayanan et al., arXiv 2104.04473, section 2.2).
//
// 1. The bubble of 1F1B is the time to fill and drain p stages: p - 1 passes of a whole stage. Give every
//    stage v short pieces of the model in place of one long one (stage s owns pieces s, s + p, s + 2 p, ...)
//    and a microbatch walks through the stages v times. Filling now costs p - 1 passes of a piece, a v-th of
//    before, while the work stays the same:
//        bubble share = (p - 1) / (v m + p - 1).
//    The price is v times as many messages, and more activations in flight.
// 2. Order of the forward passes, the same on every stage: p microbatches on chunk 0, the same p on chunk 1,
//    and so on to chunk v - 1, then the next p microbatches. p is exactly what keeps the ring closed: when
//    stage 0 has sent the p-th microbatch off, the first has come around from stage p - 1 and is ready for
//    the next chunk. Hence the rule that the microbatches are a multiple of the stages.
// 3. Order of the backward passes: the same with the chunks from last to first.
// 4. Warm-up: the first backward pass of the pipeline is that of microbatch 0 on the last piece. Stage p - 1
//    runs (v - 1) p forwards first: the first group on all chunks but the last. Each stage before it runs
//    two more than the one behind it, one because forward reaches it a pass earlier and one because backward
//    reaches it a pass later: 2 (p - 1 - s) + (v - 1) p in all. Then one forward, one backward; then the
//    backward passes that remain.
// 5. Memory: with the forward of the first pair, stage s holds the activations of
//        min(v m, 2 (p - 1 - s) + (v - 1) p + 1)
//    pieces, each a v-th of a stage's: on stage 0 that is 1 + (p - 1) / (p v) times what 1F1B holds. Slots
//    belong to chunks, since pieces may differ in layers, and the chunks do not all reach their peak at the
//    same time: their slots add up to more than that number. No chunk has more than min(m, 2 p).
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
