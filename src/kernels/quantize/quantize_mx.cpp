// Checks, dispatch and CPU reference of quantization to MXFP8.
#include "kernels/quantize/quantize_mx.h"

#include <algorithm>
#include <cstring>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/quantize/mx_formula.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels {
namespace {

void check_args(const QuantizeMx& args) {
  check_grad("quantize_mx", "x", args.x);
  TE_CHECK(is_fp8(args.format), "quantize_mx: {} is not FP8", dtype_name(args.format));
  TE_CHECK(args.rowwise || args.columnwise, "quantize_mx: rowwise or columnwise output is required");
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const auto check = [&](const char* name, const Matrix& output, Shape shape) {
    if (!output) return;
    const bool native = output.layout == ScaleLayout::mx;
    TE_CHECK(native || output.layout == ScaleLayout::none, "quantize_mx: {} has scales of another layout",
             name);
    check_tensor("quantize_mx", name, output.values, native ? args.format : args.x.dtype, shape);
    if (!native) return;
    check_tensor("quantize_mx", "scales", output.scales, scale_dtype(output.layout),
                 scale_shape(output.layout, shape[0], shape[1]));
  };
  check("rowwise", args.rowwise, {rows, cols});
  check("columnwise", args.columnwise, {cols, rows});
}

/// Quantizes one output of type T, whose value (r, c) before quantization is value(r, c).
template <class T, class Value>
void write_output(const QuantizeMx& args, const Matrix& output, Fp8Counters* counters, Value&& value) {
  const int64_t rows = output.rows(), cols = output.cols();
  const SmallFloat format = small_float(args.format);
  auto* const scales = output.layout == ScaleLayout::mx ? output.scales.as<uint8_t>() : nullptr;
  const int64_t groups = (cols + kMxGroup - 1) / kMxGroup;
  if (scales != nullptr) std::memset(scales, 0, output.scales.bytes());
  unsigned long long saturated = 0, flushed = 0;
#pragma omp parallel for reduction(+ : saturated, flushed)
  for (int64_t r = 0; r < rows; ++r) {
    T* const out = output.values.as<T>() + r * cols;
    for (int64_t first = 0; first < cols; first += kMxGroup) {
      const int64_t end = std::min(cols, first + kMxGroup);
      uint32_t amax = 0;
      for (int64_t c = first; c < end; ++c) amax = std::max(amax, magnitude_without_nan(value(r, c)));
      const uint32_t code = mx_scale_code(amax, format, args.margin);
      if (scales != nullptr) scales[mx_scale_index(r, first / kMxGroup, groups)] = static_cast<uint8_t>(code);
      for (int64_t c = first; c < end; ++c) {
        const MxValue result = mx_value(value(r, c), code, format);
        out[c] = from_float<T>(scales != nullptr ? result.code : result.value);
        saturated += result.saturated ? 1u : 0u;
        flushed += result.flushed ? 1u : 0u;
      }
    }
  }
  if (counters == nullptr) return;
  counters->saturated += saturated;
  counters->flushed += flushed;
  counters->total += static_cast<unsigned long long>(rows * cols);
}

void quantize_mx_cpu(const Context& context, const QuantizeMx& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  visit_grad(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* x = args.x.as<T>();
    const auto by_rows = [x, cols](int64_t r, int64_t c) { return to_float(x[r * cols + c]); };
    const auto by_columns = [x, cols](int64_t r, int64_t c) { return to_float(x[c * cols + r]); };
    const auto write = [&](const Matrix& output, Fp8Counters* counters, auto&& value) {
      const auto as = [&](auto to) { write_output<decltype(to)>(args, output, counters, value); };
      if (output && !visit_high_precision(output.dtype(), as)) visit_fp8(output.dtype(), as);
    };
    write(args.rowwise, args.counters, by_rows);
    write(args.columnwise, args.rowwise ? nullptr : args.counters, by_columns);
    write_fp8_output_cpu(context, {.amax = args.amax}, rows, cols, by_rows);
  });
}

}  // namespace

void quantize_mx(const Context& context, const QuantizeMx& args) {
  check_args(args);
  TE_DISPATCH_CUDA(context, quantize_mx, args);
  quantize_mx_cpu(context, args);
}

}  // namespace te::kernels
