// RMSNorm (Zhang and Sennrich, arXiv 1910.07467) and LayerNorm (Ba et al., arXiv 1607.06450), optionally fused with the
// preceding residual add and the quantization of the result to FP8.
//   rms    y = x * rstd * gamma,                 rstd = 1 / sqrt(mean(x^2) + eps)
//   rms_zero_centered  the same with 1 + gamma instead of gamma (Gemma)
//   layer  y = (x - mean) * rstd * gamma + beta, rstd = 1 / sqrt(var(x) + eps), var biased
// Statistics and sums are FP32; x and y are rounded to the tensors' dtype (fp32, bf16 or fp16).
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

enum class NormKind : uint8_t { rms, layer, rms_zero_centered };

struct NormForward {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  Tensor x;         ///< [rows, hidden]
  Tensor delta;     ///< optional [rows, hidden]: `sum` = x + delta, rounded to the dtype, is normalized
  Tensor sum;       ///< output, required with delta; may be x itself
  Tensor gamma;     ///< [hidden], dtype of x
  Tensor beta;      ///< [hidden], layer only
  Tensor mean;      ///< output [rows] fp32, layer only
  Tensor rstd;      ///< output [rows] fp32
  Tensor y;         ///< output [rows, hidden], dtype of x; may be empty when y_fp8 wants data
  Fp8Output y_fp8;  ///< optional
};
void norm_forward(const Context& context, const NormForward& args);

struct NormBackward {
  NormKind kind = NormKind::rms;
  Tensor dy;  ///< [rows, hidden]
  Tensor x;   ///< input of the norm (`sum` with delta)
  Tensor gamma;
  Tensor mean;  ///< layer only
  Tensor rstd;
  Tensor dresidual;  ///< optional [rows, hidden]: gradient of the residual stream, added before dx is rounded
  Tensor dx;         ///< output [rows, hidden]; may be dresidual or dy itself
  /// Optional. fp32 or bf16 (rounded once) [hidden], accumulated; FP32 sums over rows in a fixed order.
  Tensor dgamma;
  Tensor dbeta;  ///< likewise, dtype of dgamma, layer only
  /// Optional [hidden], dtype of dgamma: column sums of dx (after rounding) are added, also in FP32 and in a fixed
  /// order (on the CPU that of bias_gradient()). dx is often the dy of a linear layer, whose bias gradient these sums
  /// are.
  Tensor dbias;
  Fp8Output dx_fp8;  ///< optional: dx also quantized to FP8, from its rounded values
  Tensor scratch;    ///< fp32 [at least norm_backward_scratch_elements(hidden)]
};
void norm_backward(const Context& context, const NormBackward& args);
/// The dtype of the gradients and sums that are requested.
DType grad_dtype(const NormBackward& args);
int64_t norm_backward_scratch_elements(int64_t hidden);

}  // namespace te::kernels
