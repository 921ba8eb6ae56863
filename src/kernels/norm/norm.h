// RMSNorm (Zhang and Sennrich, arXiv 1910.07467) and LayerNorm (Ba et al., arXiv 1607.06450), with the
// residual add before them and the FP8 cast after them in the same pass.
//   rms    y = x * rstd * gamma,                 rstd = 1 / sqrt(mean(x^2) + eps)
//   rms_zero_centered  the same with 1 + gamma in gamma's place (Gemma)
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
  Tensor x;      ///< [rows, hidden]
  Tensor delta;  ///< optional [rows, hidden]: `sum` = x + delta, rounded to the dtype, is what is normalized
  Tensor sum;    ///< out, required with delta; may be x itself
  Tensor gamma;  ///< [hidden], dtype of x
  Tensor beta;   ///< [hidden], layer only
  Tensor mean;   ///< out [rows] fp32, layer only
  Tensor rstd;   ///< out [rows] fp32
  Tensor y;      ///< out [rows, hidden] dtype of x; may be empty when y_fp8 wants data
  Fp8Output y_fp8;  ///< optional
};
void norm_forward(const Context& context, const NormForward& args);

struct NormBackward {
  NormKind kind = NormKind::rms;
  Tensor dy;  ///< [rows, hidden]
  Tensor x;   ///< what was normalized (`sum` where there was a delta)
  Tensor gamma;
  Tensor mean;  ///< layer only
  Tensor rstd;
  Tensor dresidual;  ///< optional [rows, hidden]: the residual stream's gradient, added before dx is rounded
  Tensor dx;         ///< out [rows, hidden]; may be dresidual itself or dy itself
  Tensor dgamma;     ///< fp32 or bf16 (rounded once) [hidden], += ; FP32 sums over rows in a fixed order
  Tensor dbeta;      ///< likewise, dtype of dgamma, layer only
  /// Optional [hidden], dtype of dgamma: += column sums of dx as it is stored, likewise in FP32 and a fixed order (on
  /// the CPU that of bias_gradient()). dx is often the dy of a linear layer, and these are the gradient of its bias.
  Tensor dbias;
  Fp8Output dx_fp8;  ///< optional: dx besides, cast from what is stored
  Tensor scratch;    ///< fp32, at least norm_backward_scratch_elements(hidden)
};
void norm_backward(const Context& context, const NormBackward& args);
int64_t norm_backward_scratch_elements(int64_t hidden);

}  // namespace te::kernels
