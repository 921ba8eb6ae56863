// Checks, dispatch and CPU reference of rows that are quantized before they are sent.
#include "kernels/moe/send_fp8.h"

#include <algorithm>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/common/row_blocks.h"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/quantize_experts.h"
#include "kernels/moe/sent_scaling.h"

namespace te::kernels {
namespace {

constexpr int64_t kRangeFields = 4;

struct Range {
  int32_t first, end, rank_first, rank_rows;
};
static_assert(sizeof(Range) == kRangeFields * sizeof(int32_t));

void check_ranges(const char* op, const Tensor& ranges) {
  check_tensor(op, "ranges", ranges, DType::i32, {ranges.rows(), kRangeFields});
}

// A rank's rows have the positions of dispatch_rows().
void sent_ranges_cpu(const SentRanges& a, int64_t ranks) {
  const int64_t stride = a.counts.cols(), own = a.ranges.rows() / ranks;
  const int64_t begin = a.round * a.capacity, end = begin + a.capacity;
  for (int64_t to = 0; to < ranks; ++to) {
    auto* const ranges = a.ranges.as<Range>() + to * own;
    int32_t rank_first = 0, rank_rows = 0;
    int64_t position = 0;
    for (int64_t e = 0; e < own; ++e)
      for (int64_t from = 0; from < ranks; ++from) {
        const int32_t* const first = a.counts.as<int32_t>() + from * stride + to * own + e;
        const int64_t count = int64_t{first[1]} - first[0];
        const auto at = [&](int64_t limit) {
          return first[0] + static_cast<int32_t>(std::clamp<int64_t>(limit - position, 0, count));
        };
        if (from == a.rank) {
          ranges[e].first = at(begin), ranges[e].end = at(end);
          if (rank_rows == 0) rank_first = ranges[e].first;
          rank_rows += ranges[e].end - ranges[e].first;
        }
        position += count;
      }
    for (int64_t e = 0; e < own; ++e) ranges[e].rank_first = rank_first, ranges[e].rank_rows = rank_rows;
  }
}

void sent_amax_cpu(const SentAmax& a) {
  const int64_t experts = a.ranges.rows(), cols = a.x.cols(), topk = a.row_of.cols();
  std::vector<float> amax(static_cast<size_t>(a.x.rows()), 0.0f);
  visit_grad(a.x.dtype, [&](auto zero) {
    const auto* const x = a.x.as<decltype(zero)>();
#pragma omp parallel for
    for (int64_t t = 0; t < a.x.rows(); ++t)
      for (int64_t c = 0; c < cols; ++c)
        amax[static_cast<size_t>(t)] = amax_of(amax[static_cast<size_t>(t)], to_float(x[t * cols + c]));
  });
  for (int64_t i = 0; i < a.row_of.numel(); ++i)
    for (int64_t e = 0; e < experts; ++e) {
      const Range& range = a.ranges.as<Range>()[e];
      const int32_t row = a.row_of.as<int32_t>()[i];
      float& of_expert = a.amax.as<float>()[e];
      if (row >= range.first && row < range.end)
        of_expert = amax_of(of_expert, amax[static_cast<size_t>(i / topk)]);
    }
}

void finalize_expert_scales_cpu(const FinalizeExpertScales& a, int64_t ranks) {
  const SentScaling scaling(a.out);
  const int64_t experts = a.scale.numel(), own = experts / ranks;
  const auto gathered = [&](int64_t rank, int64_t field) {
    return a.gathered.as<float>()[rank * a.gathered.cols() + field];
  };
  for (int64_t e = 0; e < experts; ++e) {
    float amax = 0.0f;
    for (int64_t rank = 0; rank < ranks; ++rank) amax = amax_of(amax, gathered(rank, e));
    a.scale.as<float>()[e] = scaling.scale(amax, gathered(e / own, experts + e % own));
    if (e / own != a.rank) continue;
    Fp8Output out = output_of_expert(a.out, e % own);
    out.rowwise = a.out.rowwise ? a.out.rowwise : a.out.columnwise;  // for the format
    if (out.scale_inv != nullptr) *out.scale_inv = 1.0f / a.scale.as<float>()[e];
    if (out.requantize.state != nullptr) {
      *out.requantize.amax() = amax;
      (void)fp8_detail::finalize_scale(finalization_of(out));
    } else if (out.amax != nullptr) {
      *out.amax = amax_of(*out.amax, amax);
    }
  }
}

template <class T, class Q>
void quantize_sent_cpu(const QuantizeSent& a) {
  const int64_t cols = a.x.cols();
  std::vector<float> values(static_cast<size_t>(cols));
  for (int64_t e = 0; e < a.ranges.rows(); ++e) {
    const Range& range = a.ranges.as<Range>()[e];
    const float scale = a.scale.as<float>()[e];
    const int64_t shift =
        (a.pitch - 1) * int64_t{range.rank_first} + (a.second ? int64_t{range.rank_rows} : 0);
    unsigned long long saturated = 0, flushed = 0;
    for (int64_t row = range.first; row < range.end; ++row) {
      const T* const x = a.x.as<T>() + a.source.as<int32_t>()[row] / a.topk * cols;
      Q* const q = a.rows.as<Q>() + (row + shift) * cols;
      for (int64_t c = 0; c < cols; ++c) values[static_cast<size_t>(c)] = to_float(x[c]);
      fp8_detail::quantize_row(values.data(), scale, q, cols);
      if (a.counts) fp8_detail::count_row(values.data(), scale, q, cols, saturated, flushed);
    }
    if (!a.counts) continue;
    a.counts.as<int64_t>()[2 * e] += static_cast<int64_t>(saturated);
    a.counts.as<int64_t>()[2 * e + 1] += static_cast<int64_t>(flushed);
  }
}

void order_received_cpu(const OrderReceived& a) {
  const int64_t rows = a.source.numel(), cols = a.x.cols();
  const int64_t end = a.offsets.as<int32_t>()[a.offsets.numel() - 1];
  const auto* const x = a.x.as<uint8_t>();
  auto *const rowwise = a.rowwise.as<uint8_t>(), *const columnwise = a.columnwise.as<uint8_t>();
#pragma omp parallel for
  for (int64_t r = 0; r < end; ++r) {
    const int32_t from = a.source.as<int32_t>()[r];
    for (int64_t c = 0; c < cols; ++c) {
      const uint8_t byte = from < 0 ? uint8_t{0} : x[from * cols + c];
      if (rowwise != nullptr) rowwise[r * cols + c] = byte;
      if (columnwise != nullptr) columnwise[row_block_index(c, r, cols, rows)] = byte;
    }
  }
}

}  // namespace

void sent_ranges(const Context& context, const SentRanges& a) {
  const char* op = "sent_ranges";
  check_dtype(op, "counts", a.counts, DType::i32);
  check_ranges(op, a.ranges);
  const int64_t ranks = a.counts.rows(), experts = a.ranges.rows();
  const int64_t fields = a.counts.cols();  // also without numbers of tokens
  TE_CHECK(ranks > 0 && (fields == experts + 1 || fields == experts + ranks + 2) && experts % ranks == 0,
           "{}: {} experts of {} ranks, counts {}", op, experts, ranks, a.counts.shape.str());
  TE_CHECK(a.rank >= 0 && a.rank < ranks && a.round >= 0 && a.capacity > 0,
           "{}: rank {}, round {}, capacity {}", op, a.rank, a.round, a.capacity);
  TE_DISPATCH_CUDA(context, sent_ranges, a);
  sent_ranges_cpu(a, ranks);
}

void sent_amax(const Context& context, const SentAmax& a) {
  const char* op = "sent_amax";
  check_grad(op, "x", a.x);
  check_ranges(op, a.ranges);
  check_tensor(op, "row_of", a.row_of, DType::i32, {a.x.rows(), a.row_of.cols()});
  check_tensor(op, "amax", a.amax, DType::f32, {a.ranges.rows()});
  TE_DISPATCH_CUDA(context, sent_amax, a);
  sent_amax_cpu(a);
}

void finalize_expert_scales(const Context& context, const FinalizeExpertScales& a) {
  const char* op = "finalize_expert_scales";
  const int64_t experts = a.scale.numel(), ranks = a.gathered.rows();
  TE_CHECK(ranks > 0 && experts % ranks == 0 && a.rank >= 0 && a.rank < ranks,
           "{}: rank {} of {} with {} experts", op, a.rank, ranks, experts);
  check_tensor(op, "gathered", a.gathered, DType::f32, {ranks, experts + experts / ranks});
  check_tensor(op, "amax", a.amax, DType::f32, {experts});
  check_dtype(op, "scale", a.scale, DType::f32);
  TE_CHECK(a.out.wants_data() && !a.out.requantize.all_reduce_amax, "{}: out must be that of experts", op);
  TE_DISPATCH_CUDA(context, finalize_expert_scales, a);
  finalize_expert_scales_cpu(a, ranks);
}

void quantize_sent(const Context& context, const QuantizeSent& a) {
  const char* op = "quantize_sent";
  check_grad(op, "x", a.x);
  check_ranges(op, a.ranges);
  check_dtype(op, "source", a.source, DType::i32);
  check_tensor(op, "scale", a.scale, DType::f32, {a.ranges.rows()});
  TE_CHECK(is_fp8(a.rows.dtype) && a.rows.cols() == a.x.cols(), "{}: rows {} must be FP8 with {} columns", op,
           a.rows.shape.str(), a.x.cols());
  TE_CHECK(a.topk > 0 && a.pitch >= (a.second ? 2 : 1) && a.rows.rows() >= a.pitch * a.source.numel(),
           "{}: topk {}, pitch {} of {} rows in {}", op, a.topk, a.pitch, a.source.numel(), a.rows.rows());
  if (a.counts) check_tensor(op, "counts", a.counts, DType::i64, {a.ranges.rows(), 2});
  TE_DISPATCH_CUDA(context, quantize_sent, a);
  visit_grad(a.x.dtype, [&](auto x) {
    visit_fp8(a.rows.dtype, [&](auto q) { quantize_sent_cpu<decltype(x), decltype(q)>(a); });
  });
}

void order_received(const Context& context, const OrderReceived& a) {
  const char* op = "order_received";
  check_dtype(op, "source", a.source, DType::i32);
  check_dtype(op, "offsets", a.offsets, DType::i32);
  TE_CHECK(a.offsets && is_fp8(a.x.dtype) && (a.rowwise || a.columnwise),
           "{}: needs offsets, FP8 values and a result", op);
  const int64_t rows = a.source.numel(), cols = a.x.cols();
  if (a.rowwise) check_tensor(op, "rowwise", a.rowwise, a.x.dtype, {rows, cols});
  if (a.columnwise) check_tensor(op, "columnwise", a.columnwise, a.x.dtype, {cols, rows});
  TE_DISPATCH_CUDA(context, order_received, a);
  order_received_cpu(a);
}

void count_sent(const Context& context, const CountSent& a) {
  const char* op = "count_sent";
  const int64_t experts = a.offsets.numel() - 1;
  check_dtype(op, "offsets", a.offsets, DType::i32);
  check_tensor(op, "counts", a.counts, DType::i64, {a.counts.dim(0), a.counts.dim(1), 2});
  TE_CHECK(a.first_expert >= 0 && a.first_expert + experts <= a.counts.dim(1) && a.counters != nullptr,
           "{}: experts {}+{} of {}", op, a.first_expert, experts, a.counts.dim(1));
  TE_DISPATCH_CUDA(context, count_sent, a);
  const auto* const offsets = a.offsets.as<int32_t>();
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t rank = 0; rank < a.counts.dim(0); ++rank) {
      const int64_t* const counts =
          a.counts.as<int64_t>() + 2 * (rank * a.counts.dim(1) + a.first_expert + e);
      a.counters[e].saturated += static_cast<unsigned long long>(counts[0]);
      a.counters[e].flushed += static_cast<unsigned long long>(counts[1]);
    }
    a.counters[e].total += static_cast<unsigned long long>((offsets[e + 1] - offsets[e]) * a.cols);
  }
}

}  // namespace te::kernels
