// The fused kernel of gemm_activation.h; the arguments have been checked.
#pragma once

#include "kernels/gemm/gemm_activation.h"

namespace te::kernels::cuda {

/// True: launched, and all outputs will be written. False: nothing was, because the kernel is not made for this dtype,
/// shape, alignment or device.
bool gemm_activation_forward(const Context& context, const GemmActivationForward& args);
/// The same for a few rows (gemm_few_rows.cu).
bool gemm_activation_few_rows(const Context& context, const GemmActivationForward& args);
/// And of FP8 operands (gemm_activation_fp8.cu).
bool gemm_activation_fp8(const Context& context, const GemmActivationForward& args);
bool gemm_activation_backward(const Context& context, const GemmActivationBackward& args);

}  // namespace te::kernels::cuda
