// The activations on the CPU: activation_math.h with the standard library's exponential.
#pragma once

#include <cmath>

#include "kernels/activation/activation_math.h"

namespace te::kernels {

inline float sigmoid_cpu(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

/// y of GELU (`up` unused) or SwiGLU.
template <ActivationKind kind>
float activation_cpu(float x, float up) {
  return activation_value<kind>(x, up, sigmoid_cpu(activation_argument<kind>(x)));
}

}  // namespace te::kernels
