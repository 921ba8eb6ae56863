// Checks, dispatch and CPU reference of quantization and FP8 transposition.
#include "kernels/quantize/quantize.h"

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/column_sum_cpu.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels {

namespace {

void check_quantize(const Quantize& args) {
  check_high_precision("quantize", "x", args.x);
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  check_fp8_output("quantize", args.out, rows, cols);
  TE_CHECK(args.out || args.dbias, "quantize: out or dbias is required");
  if (args.dbias) check_column_sums("quantize", args.dbias, args.scratch, rows, cols);
}

void quantize_cpu(const Context& context, const Quantize& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  visit_high_precision(args.x.dtype, [&](auto zero) {
    const auto* x = args.x.as<decltype(zero)>();
    const auto value = [x, cols](int64_t r, int64_t c) { return to_float(x[r * cols + c]); };
    write_fp8_output_cpu(context, args.out, rows, cols, value);
    if (args.dbias) add_column_sums_cpu(rows, cols, args.dbias, value);
  });
}

}  // namespace

int64_t quantize_scratch_elements(int64_t rows, int64_t cols) {
  return (rows + kColumnSumRows - 1) / kColumnSumRows * cols;
}

void quantize(const Context& context, const Quantize& args) {
  check_quantize(args);
  TE_DISPATCH_CUDA(context, quantize, args);
  quantize_cpu(context, args);
}

bool quantize_current_scaling([[maybe_unused]] const Context& context, const QuantizeCurrentScaling& args) {
  check_high_precision("quantize_current_scaling", "x", args.x);
  TE_CHECK(is_fp8(args.out.dtype) && args.out.numel() == args.x.numel() && args.amax && args.scale &&
               args.scale_inv,
           "quantize_current_scaling: out must be FP8 {}, and amax, scale and scale_inv are required",
           args.x.shape.str());
#ifdef TE_WITH_CUDA
  if (context.is_cuda()) return cuda::quantize_current_scaling(context, args);
#endif
  return false;
}

void transpose_fp8(const Context& context, const Tensor& x, const Tensor& out) {
  TE_CHECK(x && is_fp8(x.dtype), "transpose_fp8: x must be FP8");
  const int64_t rows = x.rows(), cols = x.cols();
  check_tensor("transpose_fp8", "out", out, x.dtype, {cols, rows});
  TE_DISPATCH_CUDA(context, transpose_fp8, x, out);
  const uint8_t* from = x.as<uint8_t>();
  uint8_t* to = out.as<uint8_t>();
  constexpr int64_t kBlock = 64;
#pragma omp parallel for
  for (int64_t begin = 0; begin < cols; begin += kBlock)
    for (int64_t r0 = 0; r0 < rows; r0 += kBlock)
      for (int64_t c = begin; c < std::min(cols, begin + kBlock); ++c)
        for (int64_t r = r0; r < std::min(rows, r0 + kBlock); ++r) to[c * rows + r] = from[r * cols + c];
}

}  // namespace te::kernels
