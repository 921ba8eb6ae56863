// Formulas for scales from amax values, shared by both backends (IEEE operations, so bitwise equal).
#pragma once

#include <cfloat>
#include <cmath>

#include "core/random.h"

namespace te::kernels {

/// fp8_max * margin_factor / amax, at most FLT_MAX; `otherwise` if amax is not finite or not positive. If the rounded
/// quotient is so large that amax * scale exceeds fp8_max * margin_factor, the next smaller number, so that the amax
/// itself does not count as saturated.
TE_HOST_DEVICE float scale_of(float amax, float fp8_max, float margin_factor, float otherwise) {
  if (!(amax > 0.0f && amax <= FLT_MAX)) return otherwise;
  const float largest = fp8_max * margin_factor, scale = largest / amax;
  if (scale > FLT_MAX) return FLT_MAX;
  return amax * scale > largest ? nextafterf(scale, 0.0f) : scale;
}

/// For a tensor that was quantized with a predetermined scale (kernels/quantize/fp8_output.h, Fp8Requantize): the scale
/// for requantization, or 0 if no finite value is beyond fp8_max. amax is that of all values; if it is NaN or infinite,
/// the result is 0.
TE_HOST_DEVICE float requantize_scale(float amax, float scale, float fp8_max, float margin_factor) {
  return amax <= FLT_MAX && amax * scale > fp8_max ? scale_of(amax, fp8_max, margin_factor, scale) : 0.0f;
}

/// Scale of a group from its own amax; 1 if that is not finite or not positive. With power_of_two it is rounded down to
/// a power of two, at most 2^126, so that its inverse is a normal number.
TE_HOST_DEVICE float group_scale(float amax, float fp8_max, float margin_factor, bool power_of_two) {
  const float scale = scale_of(amax, fp8_max, margin_factor, 1.0f);
  if (!power_of_two) return scale;
  int exponent = 0;
  frexpf(scale, &exponent);  // scale = [0.5, 1) * 2^exponent
  return ldexpf(1.0f, exponent - 1 < 126 ? exponent - 1 : 126);
}

}  // namespace te::kernels
