// Fused kernels of gemm_activation.h; callers have checked the arguments.
#pragma once

#include "kernels/gemm/gemm_activation.h"

namespace te::kernels::cuda {

/// The functions return true after launching work that writes all outputs. They return false without launching anything
/// if the kernel does not support this dtype, shape, alignment or device.
bool gemm_activation_forward(const Context& context, const GemmActivationForward& args);
/// For a few rows (gemm_few_rows.cu).
bool gemm_activation_few_rows(const Context& context, const GemmActivationForward& args);
/// For FP8 operands (gemm_activation_fp8.cu).
bool gemm_activation_fp8(const Context& context, const GemmActivationForward& args);
bool gemm_activation_backward(const Context& context, const GemmActivationBackward& args);

}  // namespace te::kernels::cuda
