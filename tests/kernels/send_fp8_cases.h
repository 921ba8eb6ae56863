// Rows of experts that several ranks send as FP8, on either backend: all ranks in one process, whose exchanges are
// copies on the host.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "kernels/moe/send_fp8.h"
#include "moe_quantize_cases.h"

namespace te::kernels {

struct SendCase {
  MoeCase order;  ///< of each rank
  int64_t ranks, capacity, cols;
  ExpertScaling scaling = ExpertScaling::corrected;
  DType dtype = DType::bf16, format = DType::e4m3;
  bool counted = false, second = false, rowwise = true, columnwise = true;
};
inline const SendCase kSendCases[] = {{{33, 8, 2, 16}, 2, 200, 48},      {{50, 12, 3, 32}, 4, 40, 33},
                                      {{40, 6, 1, 16, true}, 2, 24, 80}, {{129, 64, 8, 16}, 4, 2000, 272},
                                      {{7, 4, 2, 128}, 2, 1000, 520},    {{1, 4, 1, 16}, 4, 1, 16}};

/// The tokens of one rank and what it sends.
struct SendingRank {
  using T = testing::TestTensor;
  MoeOrder order;
  T x, ranges, amax, scales, sent, counts;
  SendingRank(const Context& context, const SendCase& c, uint64_t seed, float factor)
      : order(context, c.order),
        x(context, c.dtype, {c.order.tokens, c.cols}),
        ranges(context, DType::i32, {c.order.experts, 4}),
        amax(context, DType::f32, {c.order.experts}),
        scales(context, DType::f32, {c.order.experts}),
        sent(context, c.format, {2 * order.rows(), c.cols}),
        counts(context, DType::i64, {c.order.experts, 2}) {
    std::vector<int32_t> chosen = expert_choices(c.order);
    if (!c.order.one_expert)  // ranks have different loads
      for (int32_t& expert : chosen)
        expert = (expert + static_cast<int32_t>(seed)) % static_cast<int32_t>(c.order.experts);
    order.experts.fill_ints(chosen);
    expert_rows(context, {.experts = order.experts,
                          .alignment = 1,
                          .offsets = order.offsets,
                          .row_of = order.row_of,
                          .source = order.source});
    std::vector<float> values = testing::normal_values(c.order.tokens * c.cols, 5 + seed);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] *= factor * std::ldexp(1.0f, static_cast<int>(i / static_cast<size_t>(c.cols) % 9) - 4);
    if (seed == 1) values[values.size() / 2] = std::nanf("");
    x.fill(values);
  }
};

/// The rows [first, first + count) of a tensor with rows of `bytes` bytes.
inline void append_rows(std::vector<uint8_t>& to, const std::vector<uint8_t>& from, int64_t bytes,
                        int64_t first, int64_t count) {
  to.insert(to.end(), from.begin() + first * bytes, from.begin() + (first + count) * bytes);
}

/// The operands of all ranks in all rounds of three steps of different magnitudes: quantized by the senders, or after
/// they have been received.
inline std::vector<ExpertResult> sent_operands(const Context& context, const SendCase& c, bool by_senders) {
  using T = testing::TestTensor;
  const int64_t experts = c.order.experts, own = experts / c.ranks;
  const int64_t rows = dispatch_rows_capacity(c.capacity, own, c.order.alignment);
  T counts(context, DType::i32, {c.ranks, experts + 1}), offsets(context, DType::i32, {own + 1}),
      segments(context, DType::i32, {own * c.ranks, 3}), source(context, DType::i32, {rows}),
      row_of(context, DType::i32, {c.capacity}), received(context, c.format, {2 * c.capacity, c.cols}),
      values(context, c.dtype, {c.capacity, c.cols}), all_amax(context, DType::f32, {experts}),
      gathered(context, DType::f32, {c.ranks, experts + own}), own_scales(context, DType::f32, {own}),
      all_counts(context, DType::i64, {c.ranks, experts, 2});
  std::deque<ExpertStorage> storages;
  for (int64_t rank = 0; rank < c.ranks; ++rank) storages.emplace_back(context, c.format, rows, c.cols, own);
  std::vector<ExpertResult> results;
  for (const float factor : {1.0f, 40.0f, 0.1f}) {
    std::deque<SendingRank> senders;
    std::vector<int32_t> first_rows;
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      senders.emplace_back(context, c, static_cast<uint64_t>(rank), factor);
      for (const int32_t row : ints_of(senders.back().order.offsets)) first_rows.push_back(row);
    }
    counts.fill_ints(first_rows);
    const auto first_row = [&](int64_t rank, int64_t expert) {
      return first_rows[static_cast<size_t>(rank * (experts + 1) + expert)];
    };
    int64_t largest = 1;
    for (int64_t to = 0; to < c.ranks; ++to) {
      int64_t all = 0;
      for (int64_t from = 0; from < c.ranks; ++from)
        all += first_row(from, (to + 1) * own) - first_row(from, to * own);
      largest = std::max(largest, all);
    }
    for (int64_t round = 0; round * c.capacity < largest; ++round) {
      const auto output = [&](int64_t rank) {
        Fp8Output out = storages[static_cast<size_t>(rank)].output(c.scaling, c.rowwise, c.columnwise);
        if (!c.counted) out.counters = nullptr;
        return out;
      };
      // 1. Amaxes, and the scales of the experts.
      std::vector<uint8_t> messages;
      for (int64_t rank = 0; rank < c.ranks; ++rank) {
        SendingRank& sender = senders[static_cast<size_t>(rank)];
        sent_ranges(context, {.counts = counts,
                              .rank = rank,
                              .round = round,
                              .capacity = c.capacity,
                              .ranges = sender.ranges});
        context.zero(sender.amax), context.zero(sender.counts);
        sent_amax(
            context,
            {.x = sender.x, .row_of = sender.order.row_of, .ranges = sender.ranges, .amax = sender.amax});
        context.copy(own_scales, {const_cast<float*>(output(rank).scale), DType::f32, {own}});
        for (const T* tensor : {&sender.amax, &own_scales})
          for (const uint8_t byte : tensor->raw()) messages.push_back(byte);
      }
      // 2. Scales, on every rank.
      gathered.fill_raw(messages.data());
      for (int64_t rank = 0; rank < c.ranks && by_senders; ++rank)
        finalize_expert_scales(context, {.gathered = gathered,
                                         .rank = rank,
                                         .out = output(rank),
                                         .amax = all_amax,
                                         .scale = senders[static_cast<size_t>(rank)].scales});
      // 3. Values.
      std::vector<uint8_t> sent_counts;
      for (SendingRank& sender : senders) {
        if (!by_senders) break;
        quantize_sent(context, {.x = sender.x,
                                .source = sender.order.source,
                                .topk = c.order.topk,
                                .ranges = sender.ranges,
                                .scale = sender.scales,
                                .rows = sender.sent,
                                .pitch = 2,
                                .second = c.second,
                                .counts = c.counted ? sender.counts.get() : Tensor{}});
        for (const uint8_t byte : sender.counts.raw()) sent_counts.push_back(byte);
      }
      // 4. What each rank receives.
      for (int64_t rank = 0; rank < c.ranks; ++rank) {
        std::vector<uint8_t> fp8, high_precision;
        const auto width = c.cols * static_cast<int64_t>(dtype_size(c.dtype));
        for (SendingRank& sender : senders) {
          const std::vector<int32_t> ranges = ints_of(sender.ranges), tokens = ints_of(sender.order.source);
          const int32_t* const range = &ranges[static_cast<size_t>(4 * rank * own)];
          if (by_senders)
            append_rows(fp8, sender.sent.raw(), c.cols, 2 * range[2] + (c.second ? range[3] : 0), range[3]);
          const std::vector<uint8_t> x = sender.x.raw();
          for (int32_t row = range[2]; row < range[2] + range[3]; ++row)
            append_rows(high_precision, x, width, tokens[static_cast<size_t>(row)] / c.order.topk, 1);
        }
        dispatch_rows(context, {.counts = counts,
                                .first_expert = rank * own,
                                .round = round,
                                .alignment = c.order.alignment,
                                .offsets = offsets,
                                .segments = segments,
                                .source = source,
                                .row_of = row_of});
        const Fp8Output out = output(rank);
        if (by_senders) {
          fp8.resize(received.get().bytes(), 0xff), received.fill_raw(fp8.data());
          order_received(context, {.x = received,
                                   .source = source,
                                   .offsets = offsets,
                                   .rowwise = out.rowwise,
                                   .columnwise = out.columnwise});
          all_counts.fill_raw(sent_counts.data());
          if (c.counted)
            count_sent(context, {.counts = all_counts,
                                 .offsets = offsets,
                                 .first_expert = rank * own,
                                 .cols = c.cols,
                                 .counters = out.counters});
        } else {
          high_precision.resize(values.get().bytes()), values.fill_raw(high_precision.data());
          quantize_experts(context,
                           {.x = values, .offsets = offsets, .experts = own, .source = source, .out = out});
        }
        results.push_back(storages[static_cast<size_t>(rank)].read());
      }
    }
  }
  return results;
}

}  // namespace te::kernels
