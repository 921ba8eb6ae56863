// CPU activations: activation_math.h with the standard library's exponential.
#pragma once

#include <cmath>

#include "kernels/activation/activation_math.h"

namespace te::kernels {

inline float sigmoid_cpu(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

/// Factor s of activation_math.h.
template <ActivationKind kind>
float activation_factor_cpu(float x) {
  if constexpr (has_sigmoid(kind))
    return sigmoid_cpu(activation_argument<kind>(x));
  else
    return plain_factor<kind>(x);
}

/// The activation's value. `up` is unused unless the kind is gated, `clamp` unless it is clamped.
template <ActivationKind kind>
float activation_cpu(float x, float up, float clamp) {
  const float in = gate_within<kind>(x, clamp);
  return activation_value<kind>(in, up_within<kind>(up, clamp), activation_factor_cpu<kind>(in));
}

}  // namespace te::kernels
