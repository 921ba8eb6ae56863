// Soft cap of logits (Gemma 2, arXiv 2408.00118), shared by both backends: x becomes cap tanh(x / cap); cap 0 is none.
#pragma once

#include <cmath>

#include "core/random.h"

namespace te::kernels {

TE_HOST_DEVICE float soft_cap(float x, float cap) {
  return cap == 0.0f ? x : cap * tanhf(x / cap);
}

/// Derivative of soft_cap() where its value is `capped`. Exactly 1 without a cap.
TE_HOST_DEVICE float soft_cap_slope(float capped, float cap) {
  return cap == 0.0f ? 1.0f : 1.0f - (capped / cap) * (capped / cap);
}

}  // namespace te::kernels
