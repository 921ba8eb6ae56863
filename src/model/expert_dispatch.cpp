#include "model/expert_dispatch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/profile.h"
#include "kernels/moe/dispatch.h"
#include "kernels/moe/permute.h"
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

void ExpertDispatch::plan_scratch(MemoryPlan& plan) {
  const auto add = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                       Lifetime lifetime) {
    plan.add(slot, name_ + ".dispatch." + name, MemoryKind::scratch, dtype, shape, {tag, lifetime});
  };
  const Lifetime backward = live(Step::fc1_backward), both = live(Step::fc1, Step::fc2) | backward;
  const int64_t sent = sent_rows(), hidden = dims_.hidden;
  add(sent_, Buffer::sent, "sent", dims_.dtype, {sent, hidden}, both);
  add(received_, Buffer::received, "received", dims_.dtype, {capacity_, hidden}, both);
  add(sent_gradients_, Buffer::sent_gradients, "sent_gradients", dims_.dtype, {sent, hidden},
      live(Step::fc2_backward, Step::fc1_backward));
  add(received_gradients_, Buffer::received_gradients, "received_gradients", dims_.dtype, {capacity_, hidden},
      backward);
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
  kernels::permute(context, {.x = x, .source = source, .topk = topk_, .rows = sent_});
  kernels::gather_values(context, {.x = probs, .index = source, .out = sent_probs_});
  if (numbers_) kernels::gather_values(context, {.x = numbers, .index = source, .out = sent_numbers_});
  ranks_.stream(context).ready.record(context);
}

void ExpertDispatch::pack_gradients(const Context& context, const Tensor& dy, const Tensor& source) const {
  kernels::permute(context, {.x = dy, .source = source, .topk = topk_, .rows = sent_gradients_});
}

void ExpertDispatch::start(const Context& context, Routing& routing, bool gradients) const {
  if (routing.rounds == 0) {
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
  launch(context, routing, 0, gradients);
}

// `ready` has been recorded after the last write of the sent rows.
void ExpertDispatch::launch(const Context& context, const Routing& routing, int round, bool gradients) const {
  const ProfileLabel label(name_ + ".dispatch");
  ExpertRanks::Stream& stream = ranks_.stream(context);
  const Exchange rows = exchange(routing, round);
  stream.ready.wait(stream.context);
  const auto send = [&](const Tensor& sent, const Tensor& received) {
    ranks_.group().all_to_all(stream.context, sent, rows.sent, received, rows.received);
  };
  send(sent_, received_);
  send(sent_probs_, received_probs_);
  if (numbers_) send(sent_numbers_, received_numbers_);
  if (gradients) send(sent_gradients_, received_gradients_);
  stream.done.record(stream.context);
}

ExpertDispatch::Rows ExpertDispatch::receive(const Context& context, const Routing& routing, int round,
                                             bool gradients) const {
  ExpertRanks::Stream& stream = ranks_.stream(context);
  if (round > 0) {
    stream.ready.record(context);
    launch(context, routing, round, gradients);
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
  return {offsets_, source_, received_probs_, received_, received_gradients_, received_numbers_};
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
  send(received_, returned(gradients));
  if (gradients) send(received_d_probs_, sent_d_probs_);
  stream.done.record(stream.context);
  stream.done.wait(context);
}

void ExpertDispatch::returned_d_probs(const Context& context, const Tensor& row_of,
                                      const Tensor& d_probs) const {
  kernels::gather_values(context, {.x = sent_d_probs_, .index = row_of, .out = d_probs});
}

}  // namespace te::model
