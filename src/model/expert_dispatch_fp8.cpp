// Rows that experts' ranks exchange as FP8 (model/expert_dispatch.h).
#include "kernels/moe/send_fp8.h"
#include "model/expert_dispatch.h"

namespace te::model {

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
  for (parallel::RowRange& range : places.sent)
    range.first = memory.pitch * range.first + (memory.second ? range.count : 0);
  for (parallel::RowRange& range : places.received) range.first += memory.first_received;
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

}  // namespace te::model
