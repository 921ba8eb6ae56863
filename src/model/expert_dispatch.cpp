#include "model/expert_dispatch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/profile.h"
#include "kernels/moe/dispatch.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/send_fp8.h"
#include "parallel/watchdog.h"

namespace te::model {

using parallel::RowRange;
using parallel::RowRanges;

ExpertDispatch::ExpertDispatch(std::string name, ExpertRanks& ranks, const Dimensions& dims, int64_t experts,
                               int64_t topk, int64_t alignment, bool numbers)
    : name_(std::move(name)),
      ranks_(ranks),
      dims_(dims),
      experts_(experts),
      topk_(topk),
      alignment_(alignment),
      numbers_(numbers) {
  const auto balanced = static_cast<double>(sent_rows());
  const int64_t all = dims_.tokens * std::min(topk_, own_experts()) * ranks_.size();
  capacity_ = std::clamp<int64_t>(std::llround(std::ceil(ranks_.dispatch_factor() * balanced)), 1, all);
}

int64_t ExpertDispatch::rows() const {
  return kernels::dispatch_rows_capacity(capacity_, own_experts(), alignment_);
}

// --- memory ------------------------------------------------------------------------------------------------

void ExpertDispatch::plan_routing(MemoryPlan& plan, Routing& routing) const {
  plan.add(routing.counts, name_ + ".dispatch.counts", MemoryKind::activations, DType::i32,
           {ranks_.size(), experts_ + 1});
  routing.host.resize(static_cast<size_t>(ranks_.size() * (experts_ + 1)));
}

void ExpertDispatch::plan_scratch(MemoryPlan& plan, bool fp8_x, bool fp8_dy) {
  fp8_x_ = fp8_x, fp8_dy_ = fp8_dy;
  const auto add = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                       Lifetime lifetime) {
    plan.add(slot, name_ + ".dispatch." + name, MemoryKind::scratch, dtype, shape, {tag, lifetime});
  };
  const Lifetime backward = live(Step::fc1_backward), both = live(Step::fc1, Step::fc2) | backward;
  const int64_t sent = sent_rows(), hidden = dims_.hidden;
  add(sent_, Buffer::sent, "sent", dims_.dtype, {sent, hidden}, both);
  add(received_, Buffer::received, "received", dims_.dtype, {capacity_, hidden}, both);
  if (!fp8_x || !fp8_dy) {
    const DType dtype = fp8_dy ? DType::u8 : dims_.dtype;
    add(sent_gradients_, Buffer::sent_gradients, "sent_gradients", dtype, {sent, hidden},
        fp8_dy ? backward : live(Step::fc2_backward, Step::fc1_backward));
    add(received_gradients_, Buffer::received_gradients, "received_gradients", dtype, {capacity_, hidden},
        backward);
  }
  add(sent_probs_, Buffer::sent_probs, "sent_probs", DType::f32, {sent, 1}, both);
  add(received_probs_, Buffer::received_probs, "received_probs", DType::f32, {capacity_, 1}, both);
  add(sent_d_probs_, Buffer::sent_d_probs, "sent_d_probs", DType::f32, {sent, 1}, backward);
  add(received_d_probs_, Buffer::received_d_probs, "received_d_probs", DType::f32, {capacity_, 1}, backward);
  if (numbers_) {
    add(sent_numbers_, Buffer::sent_numbers, "sent_numbers", DType::i32, {sent, 1}, both);
    add(received_numbers_, Buffer::received_numbers, "received_numbers", DType::i32, {capacity_, 1}, both);
  }
  const Lifetime order = live(Step::fc2) | backward;
  add(offsets_, Buffer::offsets, "offsets", DType::i32, {own_experts() + 1}, order);
  add(segments_, Buffer::segments, "segments", DType::i32, {experts_, 3}, order);
  add(source_, Buffer::source, "source", DType::i32, {rows()}, order);
  add(row_of_, Buffer::row_of, "row_of", DType::i32, {capacity_}, order);
  if (!fp8_x && !fp8_dy) return;
  add(ranges_, Buffer::ranges, "ranges", DType::i32, {experts_, 4}, both);
  add(scale_messages_, Buffer::scale_messages, "scale_messages", DType::f32,
      {ranks_.size(), experts_ + own_experts()}, both);
  add(amax_, Buffer::amax, "amax", DType::f32, {experts_}, both);
  add(scales_, Buffer::scales, "scales", DType::f32, {experts_}, both);
  add(sent_counts_, Buffer::sent_counts, "sent_counts", DType::i64, {2, ranks_.size(), experts_, 2}, both);
}

// --- sizes of messages, on the host ------------------------------------------------------------------------

RowRanges ExpertDispatch::ranges_to(const Routing& routing, int to, int round) const {
  const int64_t begin = round * capacity_, end = begin + capacity_;
  RowRanges ranges(static_cast<size_t>(ranks_.size()));
  int64_t position = 0;  // in the order of the receiver's rows
  for (int64_t expert = to * own_experts(); expert < (to + 1) * own_experts(); ++expert)
    for (int from = 0; from < ranks_.size(); ++from) {
      const int32_t* const first = &routing.host[static_cast<size_t>(from * (experts_ + 1) + expert)];
      const int64_t count = int64_t{first[1]} - first[0];
      const int64_t skipped = std::clamp<int64_t>(begin - position, 0, count),
                    last = std::clamp<int64_t>(end - position, 0, count);
      RowRange& range = ranges[static_cast<size_t>(from)];
      if (range.count == 0) range.first = first[0] + skipped;
      range.count += last - skipped;
      position += count;
    }
  return ranges;
}

ExpertDispatch::Exchange ExpertDispatch::exchange(const Routing& routing, int round) const {
  Exchange exchange;
  int64_t first = 0;
  for (const RowRange& range : ranges_to(routing, ranks_.rank(), round)) {
    exchange.received.push_back({first, range.count});
    first += range.count;
  }
  for (int to = 0; to < ranks_.size(); ++to)
    exchange.sent.push_back(ranges_to(routing, to, round)[static_cast<size_t>(ranks_.rank())]);
  return exchange;
}

int ExpertDispatch::count_rounds(const Routing& routing) const {
  int64_t max_rows = 1;
  for (int to = 0; to < ranks_.size(); ++to) {
    int64_t rows = 0;
    for (int from = 0; from < ranks_.size(); ++from) {
      const int32_t* const first = &routing.host[static_cast<size_t>(from * (experts_ + 1))];
      rows += int64_t{first[(to + 1) * own_experts()]} - first[to * own_experts()];
    }
    max_rows = std::max(max_rows, rows);
  }
  return static_cast<int>((max_rows + capacity_ - 1) / capacity_);
}

// --- dispatch ----------------------------------------------------------------------------------------------

void ExpertDispatch::count(const Context& context, const Tensor& offsets, Routing& routing) const {
  ExpertRanks::Stream& stream = ranks_.stream(context);
  if (stream.counts.bytes() < routing.counts.bytes())
    stream.counts = HostBuffer(context, routing.counts.bytes());
  stream.ready.record(context);
  stream.ready.wait(stream.context);
  ranks_.group().all_gather(stream.context, offsets, routing.counts);
  stream.context.copy_to_host(stream.counts.as<void>(), routing.counts);
  routing.rounds = 0;
}

void ExpertDispatch::pack(const Context& context, const Tensor& x, const Tensor& probs, const Tensor& numbers,
                          const Tensor& source) const {
  if (!fp8_x_) kernels::permute(context, {.x = x, .source = source, .topk = topk_, .rows = sent_});
  kernels::gather_values(context, {.x = probs, .index = source, .out = sent_probs_});
  if (numbers_) kernels::gather_values(context, {.x = numbers, .index = source, .out = sent_numbers_});
  ranks_.stream(context).ready.record(context);
}

void ExpertDispatch::pack_gradients(const Context& context, const Tensor& dy, const Tensor& source) const {
  if (!fp8_dy_)
    kernels::permute(context, {.x = dy, .source = source, .topk = topk_, .rows = sent_gradients_});
}

void ExpertDispatch::wait_for_counts(const Context& context, Routing& routing) const {
  if (routing.rounds > 0) return;
  ExpertRanks::Stream& stream = ranks_.stream(context);
  {
    const parallel::Watchdog::Guard guard(stream.context, "the numbers of tokens per expert");
    stream.context.synchronize();
  }
  const int64_t stride = experts_ + 1;
  for (size_t i = 0; i < routing.host.size(); ++i)  // a trace has a balanced load
    routing.host[i] = context.executes()
                          ? stream.counts.as<int32_t>()[i]
                          : static_cast<int32_t>(static_cast<int64_t>(i) % stride * sent_rows() / experts_);
  routing.rounds = count_rounds(routing);
}

// `ready` has been recorded after the last write of the sent rows, or of the tokens.
void ExpertDispatch::launch(const Context& context, const Routing& routing, int round,
                            const Sent& sent) const {
  const ProfileLabel label(name_ + ".dispatch");
  ExpertRanks::Stream& stream = ranks_.stream(context);
  const Exchange rows = exchange(routing, round);
  stream.ready.wait(stream.context);
  const auto send = [&](const Tensor& from, const Tensor& to) {
    ranks_.group().all_to_all(stream.context, from, rows.sent, to, rows.received);
  };
  if (fp8_x_ || fp8_dy_)
    kernels::sent_ranges(stream.context, {.counts = routing.counts,
                                          .rank = ranks_.rank(),
                                          .round = round,
                                          .capacity = capacity_,
                                          .ranges = ranges_});
  fp8_x_ ? send_fp8(stream.context, rows, sent, false) : send(sent_, received_);
  send(sent_probs_, received_probs_);
  if (numbers_) send(sent_numbers_, received_numbers_);
  if (sent.gradients())
    fp8_dy_ ? send_fp8(stream.context, rows, sent, true) : send(sent_gradients_, received_gradients_);
  stream.done.record(stream.context);
}

ExpertDispatch::Rows ExpertDispatch::receive(const Context& context, const Routing& routing, int round,
                                             const Sent& sent) const {
  ExpertRanks::Stream& stream = ranks_.stream(context);
  if (round > 0) {
    stream.ready.record(context);
    launch(context, routing, round, sent);
  }
  stream.done.wait(context);
  const ProfileLabel label(name_ + ".dispatch");
  kernels::dispatch_rows(context, {.counts = routing.counts,
                                   .first_expert = ranks_.rank() * own_experts(),
                                   .round = round,
                                   .alignment = alignment_,
                                   .offsets = offsets_,
                                   .segments = segments_,
                                   .source = source_,
                                   .row_of = row_of_});
  Rows rows{offsets_, source_, received_probs_, received_, received_gradients_, received_numbers_};
  const auto received = [&](const SentTokens& tokens, bool dy) {
    const Fp8Memory memory = fp8_memory(dy, tokens.operand.rowwise.dtype);
    count_fp8(context, tokens, dy);
    return memory.received.slice_rows(memory.first_received, capacity_);
  };
  if (fp8_x_) rows.received = received(sent.x, false);
  if (fp8_dy_ && sent.gradients()) rows.gradients = received(sent.dy, true);
  return rows;
}

// --- rows that are sent as FP8 -----------------------------------------------------------------------------

// A rank's rows, sent in a round to the experts of another, are in the place that their results will return to, so that
// later rounds find their places free: x first, then dy.
ExpertDispatch::Fp8Memory ExpertDispatch::fp8_memory(bool dy, DType format) const {
  const auto as_fp8 = [&](const Tensor& rows) {
    return Tensor{rows.data, format, {static_cast<int64_t>(rows.bytes()) / dims_.hidden, dims_.hidden}};
  };
  if (dy && !fp8_x_)
    return {.sent = as_fp8(sent_gradients_), .received = as_fp8(received_gradients_), .pitch = 1};
  return {.sent = as_fp8(sent_),
          .received = as_fp8(received_),
          .pitch = static_cast<int64_t>(dtype_size(dims_.dtype)),
          .second = dy,
          .first_received = dy ? capacity_ : 0};
}

void ExpertDispatch::send_fp8(const Context& stream, const Exchange& rows, const Sent& sent, bool dy) const {
  const SentTokens& tokens = dy ? sent.dy : sent.x;
  const kernels::Fp8Output& operand = tokens.operand;
  const Fp8Memory memory = fp8_memory(dy, operand.rowwise.dtype);
  parallel::Communicator& group = ranks_.group();
  // 1. The amaxes of this rank's rows and the scales of its experts, to all ranks.
  const Tensor message = scale_messages_.slice_rows(ranks_.rank(), 1).view({experts_ + own_experts(), 1});
  const Tensor amax = message.slice_rows(0, experts_).view({experts_});
  stream.zero(amax);
  if (operand.amax != nullptr || operand.requantize.state != nullptr)
    kernels::sent_amax(stream, {.x = tokens.values, .row_of = sent.row_of, .ranges = ranges_, .amax = amax});
  stream.copy(message.slice_rows(experts_, own_experts()),
              {const_cast<float*>(operand.scale), DType::f32, {own_experts(), 1}});
  group.all_gather(stream, message, scale_messages_);
  // 2. The scales of all experts.
  kernels::finalize_expert_scales(
      stream,
      {.gathered = scale_messages_, .rank = ranks_.rank(), .out = operand, .amax = amax_, .scale = scales_});
  // 3. The values.
  const bool counts = operand.counters != nullptr;
  const Tensor all_counts = sent_counts_of(dy);
  const Tensor own_counts = all_counts.slice_rows(ranks_.rank() * experts_, experts_);
  if (counts) stream.zero(own_counts);
  kernels::quantize_sent(stream, {.x = tokens.values,
                                  .source = sent.source,
                                  .topk = topk_,
                                  .ranges = ranges_,
                                  .scale = scales_,
                                  .rows = memory.sent,
                                  .pitch = memory.pitch,
                                  .second = memory.second,
                                  .counts = counts ? own_counts : Tensor{}});
  if (counts) {
    const auto bytes = [](const Tensor& t) {
      return Tensor{t.data, DType::u8, {static_cast<int64_t>(t.bytes())}};
    };
    group.all_gather(stream, bytes(own_counts), bytes(all_counts));
  }
  Exchange places = rows;
  for (RowRange& range : places.sent)
    range.first = memory.pitch * range.first + (memory.second ? range.count : 0);
  for (RowRange& range : places.received) range.first += memory.first_received;
  group.all_to_all(stream, memory.sent, places.sent, memory.received, places.received);
}

/// i64 [ranks * experts, 2].
Tensor ExpertDispatch::sent_counts_of(bool dy) const {
  const int64_t rows = ranks_.size() * experts_;
  return Tensor(sent_counts_).view({2 * rows, 2}).slice_rows(dy ? rows : 0, rows);
}

void ExpertDispatch::count_fp8(const Context& context, const SentTokens& tokens, bool dy) const {
  if (tokens.operand.counters == nullptr) return;
  kernels::count_sent(context, {.counts = sent_counts_of(dy).view({ranks_.size(), experts_, 2}),
                                .offsets = offsets_,
                                .first_expert = ranks_.rank() * own_experts(),
                                .cols = dims_.hidden,
                                .counters = tokens.operand.counters});
}

// --- combine -----------------------------------------------------------------------------------------------

void ExpertDispatch::send_back(const Context& context, const Routing& routing, int round, const Tensor& rows,
                               bool gradients) const {
  const ProfileLabel label(name_ + ".combine");
  ExpertRanks::Stream& stream = ranks_.stream(context);
  const Exchange there = exchange(routing, round);
  kernels::permute(context, {.x = rows, .source = row_of_, .rows = received_});
  stream.ready.record(context);
  stream.ready.wait(stream.context);
  const auto send = [&](const Tensor& received, const Tensor& sent) {
    ranks_.group().all_to_all(stream.context, received, there.received, sent, there.sent);
  };
  send(received_, sent_);
  if (gradients) send(received_d_probs_, sent_d_probs_);
  stream.done.record(stream.context);
  stream.done.wait(context);
}

void ExpertDispatch::returned_d_probs(const Context& context, const Tensor& row_of,
                                      const Tensor& d_probs) const {
  kernels::gather_values(context, {.x = sent_d_probs_, .index = row_of, .out = d_probs});
}

}  // namespace te::model
