// Checks, dispatch and CPU reference of quantization with group scales. The reference processes each layout as a matrix
// of its own, by rows or rows of blocks.
#include "kernels/quantize/quantize_groups.h"

#include <algorithm>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/common/row_blocks.h"
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels {
namespace {

constexpr int64_t kMultiple = 16;

void check_output(const char* name, const Matrix& output, int64_t rows, int64_t cols) {
  if (!output) return;
  TE_CHECK(is_fp8(output.dtype()), "quantize_groups: {} is {}, must be FP8", name,
           dtype_name(output.dtype()));
  check_shape("quantize_groups", name, output.values, {rows, cols});
  TE_CHECK(output.layout != ScaleLayout::none && output.layout != ScaleLayout::tensor,
           "quantize_groups: {} must have a scale layout of rows, vectors or blocks", name);
  TE_CHECK(output.scale_stride == 0, "quantize_groups: {} must not be a slice", name);
  check_tensor("quantize_groups", "scales", output.scales, DType::f32,
               scale_shape(output.layout, rows, cols));
}

/// Rows of values that are scaled together: a single row, or a row of blocks.
struct RowGroup {
  const Matrix& output;
  const QuantizeGroups& args;
  const float* x;  ///< [count, cols]
  int64_t first, count;

  /// Address of the scale for the columns from `col` on.
  float* scale_at(int64_t col) const {
    float* scales = output.scales.as<float>();
    const int64_t block = col / kScaleBlock;
    if (output.layout == ScaleLayout::rows) return scales + first;
    if (output.layout == ScaleLayout::vectors) return scales + block * output.rows() + first;
    return scales + first / kScaleBlock * output.scales.cols() + block;
  }

  template <class T>
  void write(T* q, unsigned long long& saturated, unsigned long long& flushed) const {
    const int64_t cols = output.cols(), width = output.layout == ScaleLayout::rows ? cols : kScaleBlock;
    const float margin = std::ldexp(1.0f, -args.margin);
    for (int64_t col = 0; col < cols; col += width) {
      const int64_t n = std::min(width, cols - col);
      uint32_t amax = 0;
      for (int64_t r = 0; r < count; ++r)
        amax = std::max(amax, fp8_detail::row_amax_bits(x + r * cols + col, n));
      const float scale =
          group_scale(std::bit_cast<float>(amax), fp8_max(output.dtype()), margin, args.power_of_two);
      *scale_at(col) = 1.0f / scale;
      for (int64_t r = 0; r < count; ++r) {
        const int64_t at = r * cols + col;
        fp8_detail::quantize_row(x + at, scale, q + at, n);
        fp8_detail::count_row(x + at, scale, q + at, n, saturated, flushed);
      }
    }
  }
};

/// Quantizes one output; `value(row, col)` uses the output's rows and columns. Returns the bits of the amax.
template <class Value>
uint32_t write_output(const QuantizeGroups& args, const Matrix& output, bool row_blocks,
                      Fp8Counters* counters, Value&& value) {
  const int64_t rows = output.rows(), cols = output.cols();
  const int64_t height = output.layout == ScaleLayout::blocks ? kScaleBlock : 1;
  unsigned long long saturated = 0, flushed = 0;
  uint32_t largest = 0;
#pragma omp parallel reduction(+ : saturated, flushed) reduction(max : largest)
  {
    std::vector<float> x(static_cast<size_t>(height * cols));
    std::vector<uint8_t> bytes(static_cast<size_t>(row_blocks ? height * cols : 0));
#pragma omp for
    for (int64_t first = 0; first < rows; first += height) {
      const int64_t count = std::min(height, rows - first);
      for (int64_t r = 0; r < count; ++r)
        for (int64_t c = 0; c < cols; ++c) x[r * cols + c] = value(first + r, c);
      largest = std::max(largest, fp8_detail::row_amax_bits(x.data(), count * cols));
      const RowGroup group{output, args, x.data(), first, count};
      auto* const values = output.values.as<uint8_t>();
      visit_fp8(output.dtype(), [&](auto zero) {
        using T = decltype(zero);
        group.write(reinterpret_cast<T*>(row_blocks ? bytes.data() : values + first * cols), saturated,
                    flushed);
      });
      for (int64_t r = 0; row_blocks && r < count; ++r)
        for (int64_t c = 0; c < cols; ++c)
          values[row_block_index(first + r, c, rows, cols)] = bytes[static_cast<size_t>(r * cols + c)];
    }
  }
  if (counters != nullptr) {
    counters->saturated += saturated;
    counters->flushed += flushed;
    counters->total += static_cast<unsigned long long>(rows * cols);
  }
  return largest;
}

void quantize_groups_cpu(const QuantizeGroups& args) {
  const int64_t cols = args.x.cols();
  visit_high_precision(args.x.dtype, [&](auto zero) {
    const auto* x = args.x.as<decltype(zero)>();
    const auto* source = args.source.as<int32_t>();
    const auto value = [&](int64_t r, int64_t c) {
      if (source == nullptr) return to_float(x[r * cols + c]);
      return source[r] < 0 ? 0.0f : to_float(x[source[r] / args.topk * cols + c]);
    };
    uint32_t amax = 0;
    if (args.rowwise) amax = write_output(args, args.rowwise, false, args.counters, value);
    if (args.columnwise)
      amax = write_output(args, args.columnwise, args.row_blocks, args.rowwise ? nullptr : args.counters,
                          [&](int64_t r, int64_t c) { return value(c, r); });
    if (args.amax != nullptr) *args.amax = amax_of(*args.amax, std::bit_cast<float>(amax));
  });
}

}  // namespace

void check_quantize_groups(const QuantizeGroups& args) {
  check_grad("quantize_groups", "x", args.x);
  if (args.source) check_dtype("quantize_groups", "source", args.source, DType::i32);
  const int64_t rows = quantized_rows(args), cols = args.x.cols();
  TE_CHECK(rows % kMultiple == 0 && cols % kMultiple == 0,
           "quantize_groups: {} rows of {} columns, must be multiples of 16", rows, cols);
  TE_CHECK(args.wants_data(), "quantize_groups: rowwise or columnwise output is required");
  check_output("rowwise", args.rowwise, rows, cols);
  check_output("columnwise", args.columnwise, cols, rows);
  const Matrix& some = args.rowwise ? args.rowwise : args.columnwise;
  TE_CHECK(!args.source || (some.layout == ScaleLayout::vectors && args.topk > 0),
           "quantize_groups: rows of tokens need scales of vectors and topk");
  if (args.rowwise && args.columnwise)
    TE_CHECK(args.rowwise.layout == args.columnwise.layout && args.rowwise.dtype() == args.columnwise.dtype(),
             "quantize_groups: rowwise and columnwise outputs differ in scale layout or format");
}

void quantize_groups(const Context& context, const QuantizeGroups& args) {
  check_quantize_groups(args);
  TE_DISPATCH_CUDA(context, quantize_groups, args);
  quantize_groups_cpu(args);
}

}  // namespace te::kernels
