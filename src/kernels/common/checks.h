// Argument checks shared by the ops. Messages name the op, the tensor and the rule.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/common/profiled_op.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

/// The tensor must be present and fp32, bf16 or fp16.
void check_high_precision(const char* op, const char* name, const Tensor& tensor);
/// The tensor must be present and fp32 or bf16, like main gradients, Adam moments and inputs of quantization.
void check_grad(const char* op, const char* name, const Tensor& tensor);
void check_dtype(const char* op, const char* name, const Tensor& tensor, DType dtype);
void check_shape(const char* op, const char* name, const Tensor& tensor, Shape shape);
void check_tensor(const char* op, const char* name, const Tensor& tensor, DType dtype, Shape shape);
/// rowwise must be [rows, cols] and columnwise [cols, rows] in one FP8 format; data requires a scale.
void check_fp8_output(const char* op, const Fp8Output& out, int64_t rows, int64_t cols);
/// Checks dbias, to which the column sums of a [rows, cols] tensor are added, and the scratch for partial sums
/// (quantize.h).
void check_column_sums(const char* op, const Tensor& dbias, const Tensor& scratch, int64_t rows,
                       int64_t cols);

/// Whether two tensors share memory; an empty tensor shares none.
bool overlap(const Tensor& a, const Tensor& b);

/// Reports a CUDA context in a CPU-only build, which is an internal error.
[[noreturn]] void no_cuda(const char* op);

}  // namespace te::kernels

/// In a CUDA build, returns the result of the CUDA version of a query (such as a workspace size) for a CUDA context.
/// The CPU result follows the macro.
#ifdef TE_WITH_CUDA
#define TE_ASK_CUDA(context, op, ...) \
  if ((context).is_cuda()) return cuda::op(context, __VA_ARGS__)
#else
#define TE_ASK_CUDA(context, op, ...) \
  if ((context).is_cuda()) ::te::kernels::no_cuda(#op)
#endif

/// Begins an op: until the end of the function it is reported to a profiler, if there is one. If the context only
/// traces, the op also ends here.
#define TE_BEGIN_OP(context, name, ...)                                      \
  const ::te::kernels::ProfiledOp te_profiled((context), name, __VA_ARGS__); \
  if (!(context).executes()) return

/// Begins an op, and in a CUDA build dispatches to the CUDA launcher `cuda::op(context, args)` for a CUDA context. The
/// CPU reference follows the macro.
#define TE_DISPATCH_CUDA(context, op, ...) \
  TE_BEGIN_OP(context, #op, __VA_ARGS__);  \
  TE_ASK_CUDA(context, op, __VA_ARGS__)
