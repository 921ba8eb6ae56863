// The activations' formulas, one text for both backends. They take sigmoid(activation_argument(x)) from the
// caller, because each backend has its own exponential. Multiply-adds are spelled out, so that no compiler
// chooses where to fuse and the plain and the fused kernels give the same bits.
//
// GELU's tanh form is written with the sigmoid: 0.5 (1 + tanh(u)) = sigmoid(2 u).
#pragma once

#include <cmath>

#include "core/random.h"
#include "kernels/activation/activation.h"

namespace te::kernels {

constexpr float kGeluLinear = 1.5957691216057308f;   ///< 2 sqrt(2 / pi)
constexpr float kGeluCubic = 0.071354816272600025f;  ///< 0.044715 * 2 sqrt(2 / pi)

/// What the sigmoid is taken of: 2 sqrt(2 / pi) (x + 0.044715 x^3) for GELU, the gate itself for SwiGLU.
template <ActivationKind kind>
TE_HOST_DEVICE float activation_argument(float x) {
  return kind == ActivationKind::gelu ? x * fmaf(kGeluCubic, x * x, kGeluLinear) : x;
}

/// y of GELU (`up` unused) or SwiGLU; `s` is the sigmoid.
template <ActivationKind kind>
TE_HOST_DEVICE float activation_value(float x, float up, float s) {
  return kind == ActivationKind::gelu ? x * s : x * s * up;
}

/// d y / d x of GELU, times dy.
TE_HOST_DEVICE float gelu_gradient(float x, float s, float dy) {
  const float slope = fmaf(3.0f * kGeluCubic, x * x, kGeluLinear);
  return dy * fmaf(x * (s * (1.0f - s)), slope, s);
}

/// d y / d gate of SwiGLU, times dy.
TE_HOST_DEVICE float swiglu_gate_gradient(float gate, float up, float s, float dy) {
  return dy * up * (s * fmaf(gate, 1.0f - s, 1.0f));
}

/// d y / d up of SwiGLU, times dy.
TE_HOST_DEVICE float swiglu_up_gradient(float gate, float s, float dy) {
  return dy * (gate * s);
}

}  // namespace te::kernels
