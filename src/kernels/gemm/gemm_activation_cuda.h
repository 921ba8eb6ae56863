// Fused kernels of gemm_activation.h; callers have checked the arguments and, except for a few rows, that the GPU has
// the Hopper kernels (core/device_caps.h).
#pragma once

#include "kernels/gemm/gemm_activation.h"

namespace te::kernels::cuda {

/// Whether the kernels support this dtype, shape, alignment and number of SMs.
bool is_fused(const Context& context, const GemmActivationForward& args);
bool is_fused(const Context& context, const GemmActivationBackward& args);
bool is_fused_fp8(const Context& context, const GemmActivationForward& args);
bool fits_few_rows(const GemmActivationForward& args);

/// The functions return true after launching work that writes all outputs, or false without launching anything if the
/// kernel does not support the arguments.
bool gemm_activation_forward(const Context& context, const GemmActivationForward& args);
/// For a few rows (gemm_few_rows.cu).
bool gemm_activation_few_rows(const Context& context, const GemmActivationForward& args);
/// For FP8 operands (gemm_activation_fp8.cu).
bool gemm_activation_fp8(const Context& context, const GemmActivationForward& args);
bool gemm_activation_backward(const Context& context, const GemmActivationBackward& args);

}  // namespace te::kernels::cuda
