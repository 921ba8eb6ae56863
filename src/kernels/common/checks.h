// Argument checks shared by the ops. Each names the op, the tensor and the rule.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/common/profiled_op.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

/// The tensor is present and fp32, bf16 or fp16.
void check_high_precision(const char* op, const char* name, const Tensor& tensor);
/// ... and fp32 or bf16, as main gradients and moments are, and what is cast to FP8.
void check_grad(const char* op, const char* name, const Tensor& tensor);
void check_dtype(const char* op, const char* name, const Tensor& tensor, DType dtype);
void check_shape(const char* op, const char* name, const Tensor& tensor, Shape shape);
/// rowwise is [rows, cols], columnwise [cols, rows], one FP8 format, a scale present when data is wanted.
void check_fp8_output(const char* op, const Fp8Output& out, int64_t rows, int64_t cols);
/// dbias, which column sums of a [rows, cols] tensor are added to, and the scratch of their partial sums (quantize.h).
void check_column_sums(const char* op, const Tensor& dbias, const Tensor& scratch, int64_t rows,
                       int64_t cols);

/// Whether two tensors share memory; one that is absent shares none.
bool overlap(const Tensor& a, const Tensor& b);

/// A CPU build meets a CUDA context only through a bug: says so.
[[noreturn]] void no_cuda(const char* op);

}  // namespace te::kernels

/// Hands a question (a workspace's size) to its CUDA version in a CUDA build; the CPU's answer follows it.
#ifdef TE_WITH_CUDA
#define TE_ASK_CUDA(context, op, ...) \
  if ((context).is_cuda()) return cuda::op(context, __VA_ARGS__)
#else
#define TE_ASK_CUDA(context, op, ...) \
  if ((context).is_cuda()) ::te::kernels::no_cuda(#op)
#endif

/// Dispatches to the CUDA launcher `cuda::op(context, args)` in a CUDA build; the CPU reference follows it.
/// To the end of the function the op is under the eyes of a profiler, if there is one, which may want it told only.
#define TE_DISPATCH_CUDA(context, op, ...)                                  \
  const ::te::kernels::ProfiledOp te_profiled((context), #op, __VA_ARGS__); \
  if (te_profiled.traced_only()) return;                                    \
  TE_ASK_CUDA(context, op, __VA_ARGS__)
