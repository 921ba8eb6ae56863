// SwiGLU (Shazeer, arXiv 2002.05202), GELU (Hendrycks and Gimpel, arXiv 1606.08415) and related activations, which can
// also quantize their result to FP8 in the same pass.
//   swiglu          x [rows, 2 ffn] = gate | up,  y = gate * sigmoid(gate) * up
//   geglu           the same shapes,             y = gelu(gate) * up, GELU in its tanh form (arXiv 2002.05202; Gemma)
//   swiglu_clamped  swiglu of min(gate, clamp) and of up between -clamp and clamp
//   gelu            x [rows, ffn],                y = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
//   gelu_exact                                    y = 0.5 x (1 + erf(x / sqrt(2)))
//   relu                                          y = max(x, 0)
//   relu2                                         y = max(x, 0)^2 (So et al., arXiv 2109.08668)
//   silu                                          y = x * sigmoid(x)
// Computed in FP32; results rounded to the tensors' dtype (fp32, bf16 or fp16).
//
// The clamp matches gpt-oss and Megatron-LM (activation_func_clamp_value). The gate has no lower bound, because its
// sigmoid is then zero. A clamped value gets no gradient; a value exactly on the bound does. NaN stays NaN.
#pragma once

#include "core/choices.h"
#include "core/device.h"
#include "core/tensor.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

using te::ActivationKind;

/// x holds the gate and up projections next to each other.
constexpr bool is_gated(ActivationKind kind) {
  return kind == ActivationKind::swiglu || kind == ActivationKind::swiglu_clamped ||
         kind == ActivationKind::geglu;
}

struct ActivationForward {
  ActivationKind kind = ActivationKind::swiglu;
  Tensor x;         ///< [rows, 2 ffn] of a gated kind, or [rows, ffn]
  Tensor y;         ///< output [rows, ffn]; may be empty when y_fp8 wants data
  Fp8Output y_fp8;  ///< optional
  float clamp = 0;  ///< bound of swiglu_clamped, above 0; unused by other kinds
};
void activation_forward(const Context& context, const ActivationForward& args);

struct ActivationBackward {
  ActivationKind kind = ActivationKind::swiglu;
  Tensor x;          ///< as in the forward pass
  Tensor dy;         ///< [rows, ffn]
  Tensor dx;         ///< output, shape of x; may be empty when dx_fp8 wants data; may be x itself
  Fp8Output dx_fp8;  ///< optional
  /// Optional fp32 or bf16 (rounded once) [cols of x]: the column sums of dx (after its rounding) are added to it in
  /// FP32.
  Tensor dbias;
  Tensor scratch;   ///< fp32, quantize_scratch_elements(rows, cols of x); required when dbias is given
  float clamp = 0;  ///< as in the forward pass
};
void activation_backward(const Context& context, const ActivationBackward& args);

}  // namespace te::kernels
