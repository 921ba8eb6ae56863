// Gradient of the experts' activation (expert_activation.h), shared by the kernels that store and that quantize it.
// They add dy times the activation to the sum for the probability with fmaf, so that the sums have equal bits.
#pragma once

#include "kernels/activation/activation_device.cuh"

namespace te::kernels::cuda {

/// Gradients of one value; returns the activation, without the probability.
template <ActivationKind kind, class T>
__device__ __forceinline__ float gradient(float in, float up, float dy, float prob, float clamp, float& d_in,
                                          float& d_up) {
  const float within = gate_within<kind>(in, clamp), s = activation_factor<kind, T>(within);
  if constexpr (is_gated(kind)) {
    const GatedGradient grad = gated_gradient<kind>(in, up, s, dy * prob, clamp);
    d_in = grad.gate, d_up = grad.up;
    return activation_value<kind>(within, up_within<kind>(up, clamp), s);
  } else {
    d_in = plain_gradient<kind>(in, s, dy * prob);
    return activation_value<kind>(within, 0.0f, s);
  }
}

}  // namespace te::kernels::cuda
