// Checks of GEMMs with an activation, and their unfused computation in two steps: for cases that no kernel fuses, and
// as the reference on the CPU.
#include "kernels/gemm/gemm_activation.h"

#include <initializer_list>
#include <utility>

#include "core/device_caps.h"
#include "kernels/common/checks.h"
#include "kernels/gemm/gemm_activation_cuda.h"

namespace te::kernels {
namespace {

using NamedTensor = std::pair<const char*, Tensor>;

void check_no_overlap(const char* op, const NamedTensor& written, std::initializer_list<NamedTensor> others) {
  for (const auto& [name, tensor] : others)
    TE_CHECK(!overlap(written.second, tensor), "{}: {} and {} must not overlap in memory", op, written.first,
             name);
}

/// Number of columns of the activation's input.
int64_t input_cols(ActivationKind kind, int64_t ffn) {
  return is_gated(kind) ? 2 * ffn : ffn;
}

void check_args(const char* op, const GemmActivationForward& args) {
  const bool fp8 = is_fp8(args.a.dtype());
  const DType dtype = fp8 ? args.out.dtype : args.a.dtype();
  if (!fp8) check_high_precision(op, "a", args.a.values);
  if (!fp8) check_dtype(op, "b", args.b.values, dtype);
  check_dtype(op, "out", args.out, dtype);
  const int64_t m = args.a.rows(), n = args.b.rows(), ffn = is_gated(args.kind) ? n / 2 : n;
  check_shape(op, "b", args.b.values, {input_cols(args.kind, ffn), args.a.cols()});
  check_shape(op, "out", args.out, {m, n});
  TE_CHECK(args.y || args.y_fp8.wants_data(), "{}: y, or y_fp8 with data, is required", op);
  TE_CHECK(fp8 || !args.y_fp8, "{}: a result in FP8 requires FP8 operands, not {}", op, dtype_name(dtype));
  if (args.y) check_dtype(op, "y", args.y, dtype);
  if (args.y) check_shape(op, "y", args.y, {m, ffn});
  if (args.bias) check_tensor(op, "bias", args.bias, dtype, {n});
  const NamedTensor a{"a", args.a.values}, b{"b", args.b.values}, bias{"bias", args.bias}, y{"y", args.y},
      rowwise{"y_fp8.rowwise", args.y_fp8.rowwise}, columnwise{"y_fp8.columnwise", args.y_fp8.columnwise};
  check_no_overlap(op, {"out", args.out}, {a, b, bias, y, rowwise, columnwise});
  for (const NamedTensor& written : {y, rowwise, columnwise}) check_no_overlap(op, written, {a, b, bias});
}

void check_args(const char* op, const GemmActivationBackward& args) {
  check_high_precision(op, "a", args.a);
  for (const auto& [name, tensor] : {NamedTensor{"b", args.b}, NamedTensor{"x", args.x},
                                     NamedTensor{"dx", args.dx}, NamedTensor{"d_y", args.d_y}})
    check_dtype(op, name, tensor, args.a.dtype);
  const int64_t m = args.a.rows(), ffn = args.b.cols(), n = input_cols(args.kind, ffn);
  check_shape(op, "b", args.b, {args.a.cols(), ffn});
  check_shape(op, "x", args.x, {m, n});
  check_shape(op, "dx", args.dx, {m, n});
  check_shape(op, "d_y", args.d_y, {m, ffn});
  if (args.dbias) check_column_sums(op, args.dbias, args.scratch, m, n);
  if (args.y) check_tensor(op, "y", args.y, args.a.dtype, {m, ffn});
  const NamedTensor a{"a", args.a}, b{"b", args.b}, x{"x", args.x}, d_y{"d_y", args.d_y}, y{"y", args.y};
  check_no_overlap(op, {"dx", args.dx}, {a, b, x, d_y, y});
  check_no_overlap(op, d_y, {a, b, x, y});
  check_no_overlap(op, y, {a, b, x});
}

Gemm gemm_of(const GemmActivationForward& args) {
  return {.a = args.a,
          .b = args.b,
          .out = args.out,
          .trans_b = true,
          .bias = args.bias,
          .fast_accumulation = args.fast_accumulation};
}
Gemm gemm_of(const GemmActivationBackward& args) {
  return {.a = args.a, .b = args.b, .out = args.d_y};
}

}  // namespace

void gemm_activation_forward(const Context& context, const GemmActivationForward& args) {
  check_args("gemm_activation_forward", args);
  TE_BEGIN_OP(context, "gemm_activation_forward", args);
#ifdef TE_WITH_CUDA
  if (context.is_cuda() && cuda::gemm_activation_few_rows(context, args)) return;
#endif
#ifdef TE_WITH_SM90A
  if (device_caps(context).hopper_kernels && cuda::gemm_activation_forward(context, args)) return;
#endif
  gemm(context, gemm_of(args));
  activation_forward(
      context, {.kind = args.kind, .x = args.out, .y = args.y, .y_fp8 = args.y_fp8, .clamp = args.clamp});
}

void gemm_activation_backward(const Context& context, const GemmActivationBackward& args) {
  check_args("gemm_activation_backward", args);
  TE_BEGIN_OP(context, "gemm_activation_backward", args);
#ifdef TE_WITH_SM90A
  if (device_caps(context).hopper_kernels && cuda::gemm_activation_backward(context, args)) return;
#endif
  if (args.y) activation_forward(context, {.kind = args.kind, .x = args.x, .y = args.y, .clamp = args.clamp});
  gemm(context, gemm_of(args));
  activation_backward(context, {.kind = args.kind,
                                .x = args.x,
                                .dy = args.d_y,
                                .dx = args.dx,
                                .dbias = args.dbias,
                                .scratch = args.scratch,
                                .clamp = args.clamp});
}

GemmKernels gemm_kernels(const Context& context, const GemmActivationForward& args) {
#ifdef TE_WITH_CUDA
  if (context.is_cuda() && cuda::fits_few_rows(args)) return GemmKernels::few_rows;
#endif
#ifdef TE_WITH_SM90A
  if (device_caps(context).hopper_kernels && cuda::is_fused(context, args)) return GemmKernels::hopper;
#endif
  return gemm_kernels(context, gemm_of(args));
}

GemmKernels gemm_kernels(const Context& context, const GemmActivationBackward& args) {
#ifdef TE_WITH_SM90A
  if (device_caps(context).hopper_kernels && cuda::is_fused(context, args)) return GemmKernels::hopper;
#endif
  return gemm_kernels(context, gemm_of(args));
}

}  // namespace te::kernels
