// Formulas of the activations, shared by both backends. Every kind computes y = x * s (times up for gated kinds). The
// caller passes the factor s, because each backend has its own exponential: sigmoid(activation_argument(x)) for most
// kinds, the normal distribution's CDF at x for the exact GELU, 0 or 1 for ReLU, and max(x, 0) for squared ReLU.
// Multiply-adds are written as fmaf, so that no compiler chooses where to fuse and the separate and fused kernels give
// bitwise equal results.
//
// The tanh form of GELU is expressed with the sigmoid: 0.5 (1 + tanh(u)) = sigmoid(2 u).
#pragma once

#include <cmath>

#include "core/random.h"
#include "kernels/activation/activation.h"

namespace te::kernels {

constexpr float kGeluLinear = 1.5957691216057308f;   ///< 2 sqrt(2 / pi)
constexpr float kGeluCubic = 0.071354816272600025f;  ///< 0.044715 * 2 sqrt(2 / pi)

constexpr float kInverseSqrt2 = 0.70710678118654752f;
constexpr float kInverseSqrt2Pi = 0.39894228040143268f;

/// Argument of the sigmoid: 2 sqrt(2 / pi) (x + 0.044715 x^3) for GELU and the gate of GeGLU, x itself for SwiGLU and
/// SiLU.
template <ActivationKind kind>
TE_HOST_DEVICE float activation_argument(float x) {
  constexpr bool gelu = kind == ActivationKind::gelu || kind == ActivationKind::geglu;
  return gelu ? x * fmaf(kGeluCubic, x * x, kGeluLinear) : x;
}

constexpr bool has_sigmoid(ActivationKind kind) {
  return kind != ActivationKind::relu && kind != ActivationKind::relu2 && kind != ActivationKind::gelu_exact;
}

/// Factor s of the kinds without a sigmoid.
template <ActivationKind kind>
TE_HOST_DEVICE float plain_factor(float x) {
  static_assert(!has_sigmoid(kind));
  if constexpr (kind == ActivationKind::relu) return x > 0.0f ? 1.0f : 0.0f;
  if constexpr (kind == ActivationKind::relu2) return x > 0.0f ? x : 0.0f;
  return 0.5f * erfcf(-x * kInverseSqrt2);
}

/// Gate and up as the formulas use them: clamped for swiglu_clamped, unchanged otherwise. The comparisons keep NaN as
/// NaN.
template <ActivationKind kind>
TE_HOST_DEVICE float gate_within(float gate, float clamp) {
  return kind == ActivationKind::swiglu_clamped && gate > clamp ? clamp : gate;
}
template <ActivationKind kind>
TE_HOST_DEVICE float up_within(float up, float clamp) {
  if constexpr (kind != ActivationKind::swiglu_clamped) return up;
  return up > clamp ? clamp : up < -clamp ? -clamp : up;
}

/// The activation's value y; `up` is unused unless the kind is gated.
template <ActivationKind kind>
TE_HOST_DEVICE float activation_value(float x, float up, float s) {
  return is_gated(kind) ? x * s * up : x * s;
}

/// Gradient of GELU: dy * d y / d x.
TE_HOST_DEVICE float gelu_gradient(float x, float s, float dy) {
  const float slope = fmaf(3.0f * kGeluCubic, x * x, kGeluLinear);
  return dy * fmaf(x * (s * (1.0f - s)), slope, s);
}

/// Gradient of a kind without a gate: dy * d y / d x.
template <ActivationKind kind>
TE_HOST_DEVICE float plain_gradient(float x, float s, float dy) {
  static_assert(!is_gated(kind));
  if constexpr (kind == ActivationKind::gelu) return gelu_gradient(x, s, dy);
  if constexpr (kind == ActivationKind::gelu_exact)
    return dy * fmaf(x * kInverseSqrt2Pi, expf(-0.5f * x * x), s);
  if constexpr (kind == ActivationKind::silu) return dy * fmaf(x, s * (1.0f - s), s);
  if constexpr (kind == ActivationKind::relu2) return dy * (2.0f * s);
  return dy * s;
}

/// Gradient of SwiGLU's gate: dy * d y / d gate.
TE_HOST_DEVICE float swiglu_gate_gradient(float gate, float up, float s, float dy) {
  return dy * up * (s * fmaf(gate, 1.0f - s, 1.0f));
}

/// Gradient of SwiGLU's up projection: dy * d y / d up.
TE_HOST_DEVICE float swiglu_up_gradient(float gate, float s, float dy) {
  return dy * (gate * s);
}

/// Both gradients of a gated kind for unclamped inputs; a clamped value gets no gradient. `s` is the factor for
/// gate_within().
struct GatedGradient {
  float gate, up;
};
template <ActivationKind kind>
TE_HOST_DEVICE GatedGradient gated_gradient(float gate, float up, float s, float dy, float clamp) {
  const float g = gate_within<kind>(gate, clamp), u = up_within<kind>(up, clamp);
  if constexpr (kind == ActivationKind::geglu) return {gelu_gradient(g, s, dy * u), dy * (g * s)};
  GatedGradient d{swiglu_gate_gradient(g, u, s, dy), swiglu_up_gradient(g, s, dy)};
  if constexpr (kind == ActivationKind::swiglu_clamped) {
    if (gate > clamp) d.gate = 0.0f;
    if (up > clamp || up < -clamp) d.up = 0.0f;
  }
  return d;
}

/// Calls fn.operator()<kind>() for a kind that is known only at run time.
template <class Fn>
void visit_activation(ActivationKind kind, Fn&& fn) {
  switch (kind) {
    case ActivationKind::swiglu:
      return fn.template operator()<ActivationKind::swiglu>();
    case ActivationKind::swiglu_clamped:
      return fn.template operator()<ActivationKind::swiglu_clamped>();
    case ActivationKind::gelu:
      return fn.template operator()<ActivationKind::gelu>();
    case ActivationKind::gelu_exact:
      return fn.template operator()<ActivationKind::gelu_exact>();
    case ActivationKind::relu:
      return fn.template operator()<ActivationKind::relu>();
    case ActivationKind::silu:
      return fn.template operator()<ActivationKind::silu>();
    case ActivationKind::geglu:
      return fn.template operator()<ActivationKind::geglu>();
    case ActivationKind::relu2:
      return fn.template operator()<ActivationKind::relu2>();
    case ActivationKind::automatic:
      break;
  }
}

}  // namespace te::kernels
