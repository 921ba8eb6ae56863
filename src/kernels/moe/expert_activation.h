// Activation of the experts, multiplied by the router's probability:
//   y[r] = prob(r) * activation(x[r])
// Probabilities are applied before the second GEMM, which is linear, so the combination is a plain sum and the backward
// pass needs no output of the experts (Megatron-LM and SonicMoE, arXiv 2512.14080, do the same). Computed in FP32 and
// rounded once. Padding rows are zero. The result can be quantized in the same pass (quantize_experts.h, or
// quantize_groups.h with scales of vectors), with the same bytes, scales and state; its values are then undefined.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/activation/activation.h"
#include "kernels/quantize/fp8_output.h"
#include "kernels/quantize/quantize_groups.h"

namespace te::kernels {

struct ExpertActivation {
  ActivationKind kind = ActivationKind::swiglu;
  Tensor x;       ///< [rows, 2 ffn] of a gated kind, or [rows, ffn]
  Tensor source;  ///< i32 [rows] of expert_rows(): index in probs, or -1
  Tensor probs;   ///< fp32 [T, topk]
  Tensor y;       ///< out [rows, ffn], dtype of x
  float clamp = 0;
  Fp8Output y_fp8;      ///< optional, QuantizeExperts::out
  Tensor offsets;       ///< with y_fp8: i32 [experts + 1]
  int64_t experts = 1;  ///< with y_fp8
  /// Optional instead of y_fp8: the outputs of quantize_groups() for y, with ScaleLayout::vectors.
  QuantizeGroups y_groups;
};
void expert_activation(const Context& context, const ExpertActivation& args);

struct ExpertActivationBackward {
  ActivationKind kind = ActivationKind::swiglu;
  Tensor x, source, probs;  ///< of the forward pass
  Tensor dy;                ///< [rows, ffn]
  Tensor dx;                ///< out, shape of x; may be x
  Tensor d_probs;           ///< out fp32 [T, topk]: sum of dy * activation(x); sums in a fixed order
  float clamp = 0;
  Fp8Output dx_fp8;  ///< optional, with offsets and experts as above
  Tensor offsets;
  int64_t experts = 1;
  QuantizeGroups dx_groups;  ///< as above
};
void expert_activation_backward(const Context& context, const ExpertActivationBackward& args);

}  // namespace te::kernels
