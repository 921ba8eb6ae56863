// The formula from amax to scale, one text for both backends (IEEE products and divisions: the same bits).
#pragma once

#include <cfloat>
#include <cmath>

#include "core/random.h"

namespace te::kernels {

/// fp8_max * margin_factor / amax, at most FLT_MAX; `otherwise` when amax is not finite or not positive. Where the
/// division rounds up so far that amax * scale would pass fp8_max * margin_factor, the next smaller number: the amax
/// itself must not count as saturated.
TE_HOST_DEVICE float scale_of(float amax, float fp8_max, float margin_factor, float otherwise) {
  if (!(amax > 0.0f && amax <= FLT_MAX)) return otherwise;
  const float largest = fp8_max * margin_factor, scale = largest / amax;
  if (scale > FLT_MAX) return FLT_MAX;
  return amax * scale > largest ? nextafterf(scale, 0.0f) : scale;
}

/// A cast with `scale` that was found before the values (kernels/quantize/fp8_output.h, Fp8Requantize): the scale to
/// cast again with, or 0 where no finite value is beyond fp8_max. amax: over all of them; NaN and infinities change
/// nothing.
TE_HOST_DEVICE float requantize_scale(float amax, float scale, float fp8_max, float margin_factor) {
  return amax <= FLT_MAX && amax * scale > fp8_max ? scale_of(amax, fp8_max, margin_factor, scale) : 0.0f;
}

/// The scale of a group of values by its own amax: 1 where that is not finite or not positive; as a power of two if
/// asked for, rounded down, and at most 2^126, so that its inverse is a normal number.
TE_HOST_DEVICE float group_scale(float amax, float fp8_max, float margin_factor, bool power_of_two) {
  const float scale = scale_of(amax, fp8_max, margin_factor, 1.0f);
  if (!power_of_two) return scale;
  int exponent = 0;
  frexpf(scale, &exponent);  // scale = [0.5, 1) * 2^exponent
  return ldexpf(1.0f, exponent - 1 < 126 ? exponent - 1 : 126);
}

}  // namespace te::kernels
