// Checks, dispatch and CPU reference of the quantization of experts' operands: each expert as a tensor of its own.
#include "kernels/moe/quantize_experts.h"

#include <algorithm>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/common/row_blocks.h"
#include "kernels/moe/moe_cuda.h"

namespace te::kernels {
namespace {

void check_rows_of_experts(const char* op, const Tensor& x, const Tensor& offsets, int64_t experts) {
  check_grad(op, "x", x);
  TE_CHECK(experts > 0, "{}: {} experts", op, experts);
  TE_CHECK(offsets || x.rows() % experts == 0, "{}: {} rows have no equal part per expert", op, x.rows());
  if (!offsets) return;
  check_tensor(op, "offsets", offsets, DType::i32, {experts + 1});
}

struct RowRange {
  int64_t first, count;
};
RowRange rows_of_expert(const Tensor& x, const Tensor& offsets, int64_t experts, int64_t expert) {
  const int64_t equal = x.rows() / experts;
  if (!offsets) return {expert * equal, equal};
  const auto* const first = offsets.as<int32_t>() + expert;
  return {first[0], first[1] - first[0]};
}

template <class T>
T* at(T* of_first, int64_t expert) {
  return of_first == nullptr ? nullptr : of_first + expert;
}

/// Columnwise values of a tensor.
struct Columns {
  uint8_t* values;
  int64_t cols, rows;
  bool row_blocks;
  uint8_t& at(int64_t c, int64_t r) const {
    return values[row_blocks ? row_block_index(c, r, cols, rows) : c * rows + r];
  }
};

/// From the values of some rows, [count, cols].
void transpose_rows(const uint8_t* from, RowRange rows, const Columns& to) {
#pragma omp parallel for
  for (int64_t c = 0; c < to.cols; ++c)
    for (int64_t r = 0; r < rows.count; ++r) to.at(c, rows.first + r) = from[r * to.cols + c];
}

void quantize_experts_cpu(const Context& context, const QuantizeExperts& args) {
  const int64_t cols = args.x.cols(), all_rows = args.source ? args.source.numel() : args.x.rows();
  const bool data = args.out.wants_data();
  const DType format = args.out.rowwise ? args.out.rowwise.dtype : args.out.columnwise.dtype;
  std::vector<uint8_t> buffer;
  for (int64_t e = 0; e < args.experts; ++e) {
    const RowRange rows = rows_of_expert(args.x, args.offsets, args.experts, e);
    Fp8Output out = output_of_expert(args.out, e);
    if (data && !args.out.rowwise)
      buffer.resize(static_cast<size_t>(std::max<int64_t>(rows.count, 1) * cols));
    uint8_t* const bytes =
        args.out.rowwise ? args.out.rowwise.as<uint8_t>() + rows.first * cols : buffer.data();
    if (data) out.rowwise = {bytes, format, {rows.count, cols}};
    visit_high_precision(args.x.dtype, [&](auto zero) {
      const auto* const x = args.x.as<decltype(zero)>();
      const auto* const source = args.source.as<int32_t>();
      write_fp8_output_cpu(context, out, rows.count, cols, [&](int64_t r, int64_t c) {
        const int64_t row = rows.first + r;
        if (source == nullptr) return to_float(x[row * cols + c]);
        return source[row] < 0 ? 0.0f : to_float(x[source[row] / args.topk * cols + c]);
      });
    });
    if (args.out.columnwise)
      transpose_rows(bytes, rows,
                     {args.out.columnwise.as<uint8_t>(), cols, all_rows, static_cast<bool>(args.offsets)});
  }
}

void count_quantized_experts_cpu(const CountQuantizedExperts& args) {
  const int64_t cols = args.x.cols(), all_rows = args.source ? args.source.numel() : args.x.rows();
  const uint8_t* const rowwise = args.rowwise.as<uint8_t>();
  const Columns columns{args.columnwise.as<uint8_t>(), cols, all_rows, static_cast<bool>(args.offsets)};
  for (int64_t e = 0; e < args.experts; ++e) {
    const RowRange rows = rows_of_expert(args.x, args.offsets, args.experts, e);
    unsigned long long flushed = 0;
    float amax = 0.0f;
    visit_high_precision(args.x.dtype, [&](auto zero) {
      const auto* const x = args.x.as<decltype(zero)>();
      for (int64_t r = rows.first; r < rows.first + rows.count; ++r)
        for (int64_t c = 0; c < cols; ++c) {
          const int64_t from = args.source ? args.source.as<int32_t>()[r] : r * args.topk;
          const float value = from < 0 ? 0.0f : to_float(x[from / args.topk * cols + c]);
          amax = amax_of(amax, value);
          const uint8_t q = rowwise != nullptr ? rowwise[r * cols + c] : columns.at(c, r);
          flushed += value != 0.0f && (q & 0x7f) == 0 ? 1 : 0;
        }
    });
    args.counters[e].flushed += flushed;
    args.counters[e].total += static_cast<unsigned long long>(rows.count * cols);
    if (args.amax != nullptr) args.amax[e] = amax_of(args.amax[e], amax);
  }
}

}  // namespace

Fp8Output output_of_expert(const Fp8Output& all, int64_t e) {
  Fp8Output out = all;
  out.rowwise = out.columnwise = {};
  out.scale = at(all.scale, e), out.scale_inv = at(all.scale_inv, e);
  out.amax = at(all.amax, e), out.counters = at(all.counters, e);
  Fp8Requantize& own = out.requantize;
  own.state = at(own.state, e), own.num_quantizations = at(own.num_quantizations, e);
  own.current_scale = at(own.current_scale, e), own.current_amax = at(own.current_amax, e);
  own.used_scale = at(own.used_scale, e), own.predicted_scales = at(own.predicted_scales, 2 * e);
  return out;
}

void quantize_experts(const Context& context, const QuantizeExperts& args) {
  const char* op = "quantize_experts";
  check_rows_of_experts(op, args.x, args.offsets, args.experts);
  TE_CHECK(!args.source || (args.offsets && args.topk > 0), "{}: source needs offsets and topk", op);
  if (args.source) check_dtype(op, "source", args.source, DType::i32);
  check_fp8_output(op, args.out, args.source ? args.source.numel() : args.x.rows(), args.x.cols());
  TE_CHECK(args.out, "{}: out is required", op);
  TE_CHECK(!args.out.requantize.all_reduce_amax, "{}: experts are not sharded", op);
  TE_DISPATCH_CUDA(context, quantize_experts, args);
  quantize_experts_cpu(context, args);
}

void count_quantized_experts(const Context& context, const CountQuantizedExperts& args) {
  const char* op = "count_quantized_experts";
  check_rows_of_experts(op, args.x, args.offsets, args.experts);
  TE_CHECK(!args.source || (args.offsets && args.topk > 0), "{}: source needs offsets and topk", op);
  if (args.source) check_dtype(op, "source", args.source, DType::i32);
  TE_CHECK((args.rowwise || args.columnwise) && args.counters != nullptr,
           "{}: quantized values and counters are required", op);
  TE_DISPATCH_CUDA(context, count_quantized_experts, args);
  count_quantized_experts_cpu(args);
}

}  // namespace te::kernels
