// The activations' formulas, one text for both backends. All are y = x s (times up), and they take the factor s from
// the caller, because each backend has its own exponential: sigmoid(activation_argument(x)), for the exact GELU the
// normal distribution's integral up to x, for ReLU 0 or 1. Multiply-adds are spelled out, so that no compiler chooses
// where to fuse and the plain and the fused kernels give the same bits.
//
// GELU's tanh form is written with the sigmoid: 0.5 (1 + tanh(u)) = sigmoid(2 u).
#pragma once

#include <cmath>

#include "core/random.h"
#include "kernels/activation/activation.h"

namespace te::kernels {

constexpr float kGeluLinear = 1.5957691216057308f;   ///< 2 sqrt(2 / pi)
constexpr float kGeluCubic = 0.071354816272600025f;  ///< 0.044715 * 2 sqrt(2 / pi)

constexpr float kInverseSqrt2 = 0.70710678118654752f;
constexpr float kInverseSqrt2Pi = 0.39894228040143268f;

/// What the sigmoid is taken of: 2 sqrt(2 / pi) (x + 0.044715 x^3) for GELU and GeGLU's gate, x itself for SwiGLU's and
/// SiLU.
template <ActivationKind kind>
TE_HOST_DEVICE float activation_argument(float x) {
  constexpr bool gelu = kind == ActivationKind::gelu || kind == ActivationKind::geglu;
  return gelu ? x * fmaf(kGeluCubic, x * x, kGeluLinear) : x;
}

/// s of the kinds without a sigmoid.
template <ActivationKind kind>
TE_HOST_DEVICE float plain_factor(float x) {
  static_assert(kind == ActivationKind::relu || kind == ActivationKind::gelu_exact);
  return kind == ActivationKind::relu ? (x > 0.0f ? 1.0f : 0.0f) : 0.5f * erfcf(-x * kInverseSqrt2);
}
constexpr bool has_sigmoid(ActivationKind kind) {
  return kind != ActivationKind::relu && kind != ActivationKind::gelu_exact;
}

/// What the formulas take of gate and up: for the clamped kind what is left of them, else they themselves. Written so
/// that NaN stays NaN.
template <ActivationKind kind>
TE_HOST_DEVICE float gate_within(float gate, float clamp) {
  return kind == ActivationKind::swiglu_clamped && gate > clamp ? clamp : gate;
}
template <ActivationKind kind>
TE_HOST_DEVICE float up_within(float up, float clamp) {
  if constexpr (kind != ActivationKind::swiglu_clamped) return up;
  return up > clamp ? clamp : up < -clamp ? -clamp : up;
}

/// y (`up` unused where the kind is not gated).
template <ActivationKind kind>
TE_HOST_DEVICE float activation_value(float x, float up, float s) {
  return is_gated(kind) ? x * s * up : x * s;
}

/// d y / d x of GELU, times dy.
TE_HOST_DEVICE float gelu_gradient(float x, float s, float dy) {
  const float slope = fmaf(3.0f * kGeluCubic, x * x, kGeluLinear);
  return dy * fmaf(x * (s * (1.0f - s)), slope, s);
}

/// d y / d x of a kind without gate, times dy.
template <ActivationKind kind>
TE_HOST_DEVICE float plain_gradient(float x, float s, float dy) {
  static_assert(!is_gated(kind));
  if constexpr (kind == ActivationKind::gelu) return gelu_gradient(x, s, dy);
  if constexpr (kind == ActivationKind::gelu_exact)
    return dy * fmaf(x * kInverseSqrt2Pi, expf(-0.5f * x * x), s);
  if constexpr (kind == ActivationKind::silu) return dy * fmaf(x, s * (1.0f - s), s);
  return dy * s;
}

/// d y / d gate of SwiGLU, times dy.
TE_HOST_DEVICE float swiglu_gate_gradient(float gate, float up, float s, float dy) {
  return dy * up * (s * fmaf(gate, 1.0f - s, 1.0f));
}

/// d y / d up of SwiGLU, times dy.
TE_HOST_DEVICE float swiglu_up_gradient(float gate, float s, float dy) {
  return dy * (gate * s);
}

/// Both, of a gated kind and values before the clamp: what it has cut off gets none. `s` is that of gate_within().
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

/// Calls fn.operator()<kind>() of a kind known at run time.
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
  }
}

}  // namespace te::kernels
