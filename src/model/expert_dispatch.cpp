#include "model/expert_dispatch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/profile.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/send_fp8.h"
#include "parallel/watchdog.h"

namespace te::model {

using parallel::RowRange;
using parallel::RowRanges;

double expected_token_share(int64_t experts, int64_t topk, int64_t ranks) {
  const int64_t others = experts - experts / ranks;
  double none = 1.0;  // of the selected experts is on the rank
  for (int64_t i = 0; i < topk; ++i)
    none *= static_cast<double>(std::max<int64_t>(others - i, 0)) / static_cast<double>(experts - i);
  return 1.0 - none;
}

// A rank gets topk / ranks selections of a token, with a byte per value, or the token at most once: on average
// expected_token_share() times, which is nearly one where topk / ranks is two or more. At that number all tokens of x
// and dy also fit into the memory that is planned for FP8 rows, unless the memory is less than that of a balanced load.
bool sends_fp8_selections(int64_t topk, int64_t ranks, DType dtype, double factor) {
  return topk < ranks * static_cast<int64_t>(dtype_size(dtype)) || factor < 1.0;
}

ExpertDispatch::ExpertDispatch(std::string name, ExpertRanks& ranks, const Dimensions& dims, int64_t experts,
                               int64_t topk, int64_t alignment, bool numbers)
    : name_(std::move(name)),
      ranks_(ranks),
      dims_(dims),
      experts_(experts),
      topk_(topk),
      alignment_(alignment),
      numbers_(numbers),
      fp8_selections_(sends_fp8_selections(topk, ranks.size(), dims.dtype, ranks.dispatch_factor())) {
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
           {ranks_.size(), fields()});
  routing.host.resize(static_cast<size_t>(ranks_.size() * fields()));
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
  const int64_t ranks = ranks_.size(), tokens = dims_.tokens;
  const Lifetime lists = live(Step::fc1, Step::fc2) | live(Step::fc2_backward, Step::fc1_backward);
  add(token_ranks_, Buffer::token_ranks, "token_ranks", DType::i32, {tokens, ranks},
      live(Step::fc1) | live(Step::fc2_backward));
  add(token_row_of_, Buffer::token_row_of, "token_row_of", DType::i32, {tokens, ranks}, lists);
  add(token_source_, Buffer::token_source, "token_source", DType::i32, {tokens * ranks, 1}, lists);
  add(sent_slots_, Buffer::sent_slots, "sent_slots", DType::i32, {sent, 1}, lists);
  add(received_slots_, Buffer::received_slots, "received_slots", DType::i32, {capacity_, 1}, both);
  add(received_source_, Buffer::received_source, "received_source", DType::i32, {rows()}, order);
  add(received_rows_, Buffer::received_rows, "received_rows", DType::i32,
      {std::min(capacity_, tokens * ranks), slots()}, order);
  if (!fp8_x && !fp8_dy) return;
  add(ranges_, Buffer::ranges, "ranges", DType::i32, {experts_, 4}, both);
  add(scale_messages_, Buffer::scale_messages, "scale_messages", DType::f32,
      {ranks_.size(), experts_ + own_experts()}, both);
  add(amax_, Buffer::amax, "amax", DType::f32, {experts_}, both);
  add(scales_, Buffer::scales, "scales", DType::f32, {experts_}, both);
  add(sent_counts_, Buffer::sent_counts, "sent_counts", DType::i64, {2, ranks_.size(), experts_, 2}, both);
}

// --- sizes of messages, on the host ------------------------------------------------------------------------

RowRange ExpertDispatch::rows_for(const Routing& routing, int from, int64_t first, int64_t experts) const {
  const int32_t* const offsets = &routing.host[static_cast<size_t>(from * fields() + first)];
  return {offsets[0], int64_t{offsets[experts]} - offsets[0]};
}

int64_t ExpertDispatch::count_rows_for(const Routing& routing, int64_t first, int64_t experts) const {
  int64_t rows = 0;
  for (int from = 0; from < ranks_.size(); ++from) rows += rows_for(routing, from, first, experts).count;
  return rows;
}

RowRanges ExpertDispatch::ranges_to(const Routing& routing, int to, int round) const {
  const int64_t begin = round * capacity_, end = begin + capacity_;
  RowRanges ranges(static_cast<size_t>(ranks_.size()));
  int64_t position = 0;  // in the order of the receiver's rows
  for (int64_t expert = to * own_experts(); expert < (to + 1) * own_experts(); ++expert)
    for (int from = 0; from < ranks_.size(); ++from) {
      const RowRange all = rows_for(routing, from, expert);
      const int64_t skipped = std::clamp<int64_t>(begin - position, 0, all.count),
                    last = std::clamp<int64_t>(end - position, 0, all.count);
      RowRange& range = ranges[static_cast<size_t>(from)];
      if (range.count == 0) range.first = all.first + skipped;
      range.count += last - skipped;
      position += all.count;
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

ExpertDispatch::Exchange ExpertDispatch::token_exchange(const Routing& routing) const {
  const auto count = [&](int from, int to) {
    return first_token(routing, from, to + 1) - first_token(routing, from, to);
  };
  Exchange exchange;
  int64_t first = 0;
  for (int peer = 0; peer < ranks_.size(); ++peer) {
    exchange.sent.push_back({first_token(routing, ranks_.rank(), peer), count(ranks_.rank(), peer)});
    exchange.received.push_back({first, count(peer, ranks_.rank())});
    first += exchange.received.back().count;
  }
  return exchange;
}

int64_t ExpertDispatch::rows_in(const Routing& routing, int round) const {
  const int64_t begin = round * capacity_, end = begin + capacity_;
  int64_t rows = 0, position = 0;
  for (int64_t expert = ranks_.rank() * own_experts(); expert < (ranks_.rank() + 1) * own_experts();
       ++expert) {
    const int64_t next = position + count_rows_for(routing, expert);
    rows += std::clamp(next, begin, end) - std::clamp(position, begin, end);
    rows = (rows + alignment_ - 1) / alignment_ * alignment_;
    position = next;
  }
  return std::max(rows, alignment_);
}

int64_t ExpertDispatch::received_tokens(const Routing& routing, int to) const {
  int64_t tokens = 0;
  for (int from = 0; from < ranks_.size(); ++from)
    tokens += first_token(routing, from, to + 1) - first_token(routing, from, to);
  return tokens;
}

int ExpertDispatch::count_rounds(const Routing& routing) const {
  int64_t max_rows = 1;
  for (int to = 0; to < ranks_.size(); ++to)
    max_rows = std::max(max_rows, count_rows_for(routing, to * own_experts(), own_experts()));
  return static_cast<int>((max_rows + capacity_ - 1) / capacity_);
}

// --- dispatch ----------------------------------------------------------------------------------------------

Tensor ExpertDispatch::own_offsets(const Routing& routing) const {
  const Tensor own = routing.counts.slice_rows(ranks_.rank(), 1).view({fields(), 1});
  return own.slice_rows(0, experts_ + 1).view({experts_ + 1});
}

Tensor ExpertDispatch::own_token_offsets(const Routing& routing) const {
  const Tensor own = routing.counts.slice_rows(ranks_.rank(), 1).view({fields(), 1});
  return own.slice_rows(experts_ + 1, ranks_.size() + 1).view({ranks_.size() + 1});
}

void ExpertDispatch::order_tokens(const Context& context, const Tensor& row_of, const Tensor& offsets,
                                  const Routing& routing) const {
  const Tensor token_offsets = own_token_offsets(routing);
  kernels::token_ranks(context, {.row_of = row_of, .offsets = offsets, .ranks = token_ranks_});
  kernels::expert_rows(
      context,
      {.experts = token_ranks_, .offsets = token_offsets, .row_of = token_row_of_, .source = token_source_});
  kernels::token_slots(context, {.row_of = row_of,
                                 .offsets = offsets,
                                 .token_row_of = token_row_of_,
                                 .token_offsets = token_offsets,
                                 .slots = sent_slots_});
}

void ExpertDispatch::count(const Context& context, const Tensor& offsets, Routing& routing) const {
  ExpertRanks::Stream& stream = ranks_.stream(context);
  if (stream.counts.bytes() < routing.counts.bytes())
    stream.counts = HostBuffer(context, routing.counts.bytes());
  context.copy(own_offsets(routing), offsets);
  stream.ready.record(context);
  stream.ready.wait(stream.context);
  ranks_.group().all_gather(stream.context, routing.counts.slice_rows(ranks_.rank(), 1), routing.counts);
  stream.context.copy_to_host(stream.counts.as<void>(), routing.counts);
  routing.rounds = 0;
}

void ExpertDispatch::pack(const Context& context, const Tensor& probs, const Tensor& numbers,
                          const Tensor& source) const {
  kernels::gather_values(context, {.x = probs, .index = source, .out = sent_probs_});
  if (numbers_) kernels::gather_values(context, {.x = numbers, .index = source, .out = sent_numbers_});
  ranks_.stream(context).ready.record(context);
}

void ExpertDispatch::pack_gradients(const Context& context, const Routing& routing, const Tensor& dy,
                                    const Tensor& source) const {
  if (!fp8_dy_) copy_rows(context, routing, true, dy, source);
}

void ExpertDispatch::wait_for_counts(const Context& context, Routing& routing) const {
  if (routing.rounds > 0) return;
  ExpertRanks::Stream& stream = ranks_.stream(context);
  {
    const parallel::Watchdog::Guard guard(stream.context, "the numbers of tokens per expert");
    stream.context.synchronize();
  }
  const auto share = expected_token_share(experts_, topk_, ranks_.size());
  const auto tokens = static_cast<int64_t>(share * static_cast<double>(dims_.tokens));
  for (size_t i = 0; i < routing.host.size(); ++i) {
    const int64_t field = static_cast<int64_t>(i) % fields(), rank = field - (experts_ + 1);
    const int64_t balanced = rank < 0 ? field * sent_rows() / experts_ : rank * tokens;  // in a trace
    routing.host[i] = context.executes() ? stream.counts.as<int32_t>()[i] : static_cast<int32_t>(balanced);
  }
  routing.rounds = count_rounds(routing);
}

ExpertDispatch::RowMemory ExpertDispatch::row_memory(const Routing& routing, bool dy) const {
  if (!dy) return {sent_, received_};
  if (fp8_x_ && fp8_dy_) {
    const int64_t sent = sent_tokens(routing, ranks_.rank()),
                  received = received_tokens(routing, ranks_.rank());
    return {sent_.slice_rows(sent, sent_rows() - sent), received_.slice_rows(received, capacity_ - received)};
  }
  const auto rows = [&](const Tensor& memory) {
    const int64_t bytes = dims_.hidden * static_cast<int64_t>(dtype_size(dims_.dtype));
    return Tensor{memory.data, dims_.dtype, {static_cast<int64_t>(memory.bytes()) / bytes, dims_.hidden}};
  };
  return {rows(sent_gradients_), rows(received_gradients_)};
}

// Copies tokens of x, or dy, to the sent rows.
void ExpertDispatch::copy_rows(const Context& context, const Routing& routing, bool dy, const Tensor& x,
                               const Tensor& source) const {
  const bool tokens = sends_tokens(routing, dy);
  const int64_t count = tokens ? sent_tokens(routing, ranks_.rank()) : sent_rows();
  kernels::permute(context, {.x = x,
                             .source = tokens ? token_source_.slice_rows(0, count) : source,
                             .topk = tokens ? ranks_.size() : topk_,
                             .rows = row_memory(routing, dy).sent.slice_rows(0, count)});
}

// Sends x or dy. `rows`: of selections.
void ExpertDispatch::send(const Context& context, const Routing& routing, int round, const Exchange& rows,
                          const Sent& sent, bool dy) const {
  ExpertRanks::Stream& stream = ranks_.stream(context);
  const SentTokens& tokens_of = dy ? sent.dy : sent.x;
  const bool fp8 = dy ? fp8_dy_ : fp8_x_, tokens = sends_tokens(routing, dy);
  if (fp8 && !tokens) return send_fp8(stream.context, rows, sent, dy);
  if (round == 0 && (!dy || fp8))  // otherwise by pack_gradients()
    copy_rows(stream.context, routing, dy, tokens_of.values, sent.source);
  if (round == 0 && !dy) {  // x may be overwritten in the next step
    stream.copied.record(stream.context);
    stream.copied.wait(context);
  }
  const RowMemory memory = row_memory(routing, dy);
  const Exchange there = tokens ? token_exchange(routing) : rows;
  ranks_.group().all_to_all(stream.context, memory.sent, there.sent, memory.received, there.received);
}

// `ready` has been recorded after the last write of what belongs to selections, and of the tokens.
void ExpertDispatch::launch(const Context& context, const Routing& routing, int round,
                            const Sent& sent) const {
  const ProfileLabel label(name_ + ".dispatch");
  ExpertRanks::Stream& stream = ranks_.stream(context);
  const Exchange rows = exchange(routing, round);
  stream.ready.wait(stream.context);
  const auto send_values = [&](const Tensor& from, const Tensor& to) {
    ranks_.group().all_to_all(stream.context, from, rows.sent, to, rows.received);
  };
  if (fp8_x_ || fp8_dy_)
    kernels::sent_ranges(stream.context, {.counts = routing.counts,
                                          .rank = ranks_.rank(),
                                          .round = round,
                                          .capacity = capacity_,
                                          .ranges = ranges_});
  send(context, routing, round, rows, sent, false);
  send_values(sent_probs_, received_probs_);
  if (numbers_) send_values(sent_numbers_, received_numbers_);
  if (routing.rounds == 1) send_values(sent_slots_, received_slots_);
  if (sent.gradients()) send(context, routing, round, rows, sent, true);
  stream.done.record(stream.context);
}

ExpertDispatch::Received ExpertDispatch::received(const Context& context, const Routing& routing,
                                                  const Sent& sent, bool dy) const {
  const SentTokens& tokens = dy ? sent.dy : sent.x;
  if (sends_tokens(routing, dy)) {
    const int64_t count = std::max<int64_t>(received_tokens(routing, ranks_.rank()), 1);
    return {row_memory(routing, dy).received.slice_rows(0, count), received_source_, slots()};
  }
  if (!(dy ? fp8_dy_ : fp8_x_)) return {row_memory(routing, dy).received, source_};
  const Fp8Memory memory = fp8_memory(dy, tokens.operand.rowwise.dtype);
  count_fp8(context, tokens, dy);
  return {memory.received.slice_rows(memory.first_received, capacity_), source_};
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
  kernels::DispatchRows order{.counts = routing.counts,
                              .first_expert = ranks_.rank() * own_experts(),
                              .round = round,
                              .alignment = alignment_,
                              .offsets = offsets_,
                              .segments = segments_,
                              .source = source_,
                              .row_of = row_of_};
  if (routing.rounds == 1)
    order.slots = received_slots_, order.token_source = received_source_, order.token_rows = received_rows_;
  kernels::dispatch_rows(context, order);
  Rows rows{offsets_, source_, received_probs_, {}, {}, received_numbers_};
  rows.x = received(context, routing, sent, false);
  if (sent.gradients()) rows.dy = received(context, routing, sent, true);
  const int64_t count = rows_in(routing, round);
  for (Tensor* const source : {&rows.source, &rows.x.source, &rows.dy.source})
    if (*source) source->shape = {count};
  return rows;
}

// --- combine -----------------------------------------------------------------------------------------------

void ExpertDispatch::send_back(const Context& context, const Routing& routing, int round, const Tensor& rows,
                               bool gradients) const {
  const ProfileLabel label(name_ + ".combine");
  ExpertRanks::Stream& stream = ranks_.stream(context);
  const Exchange selections = exchange(routing, round);
  const bool tokens = routing.rounds == 1;
  if (tokens) {
    const int64_t count = received_tokens(routing, ranks_.rank());
    kernels::unpermute(
        context,
        {.rows = rows, .row_of = received_rows_.slice_rows(0, count), .y = received_.slice_rows(0, count)});
  } else {
    kernels::permute(context, {.x = rows, .source = row_of_, .rows = received_});
  }
  stream.ready.record(context);
  stream.ready.wait(stream.context);
  const auto send = [&](const Exchange& there, const Tensor& received, const Tensor& sent) {
    ranks_.group().all_to_all(stream.context, received, there.received, sent, there.sent);
  };
  send(tokens ? token_exchange(routing) : selections, received_, sent_);
  if (gradients) send(selections, received_d_probs_, sent_d_probs_);
  stream.done.record(stream.context);
  stream.done.wait(context);
}

ExpertDispatch::Returned ExpertDispatch::returned(const Routing& routing, const Tensor& row_of) const {
  if (routing.rounds > 1) return {sent_, row_of};
  const int64_t count = std::max<int64_t>(sent_tokens(routing, ranks_.rank()), 1);
  return {sent_.slice_rows(0, count), token_row_of_};
}

void ExpertDispatch::returned_d_probs(const Context& context, const Tensor& row_of,
                                      const Tensor& d_probs) const {
  kernels::gather_values(context, {.x = sent_d_probs_, .index = row_of, .out = d_probs});
}

}  // namespace te::model
