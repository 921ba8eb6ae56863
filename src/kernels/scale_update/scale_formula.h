// The formula from amax to scale, one text for both backends (IEEE products and divisions: the same bits).
#pragma once

#include <cfloat>
#include <cmath>

#include "core/random.h"

namespace te::kernels {

/// fp8_max * margin_factor / amax, at most FLT_MAX; `otherwise` when amax is not finite or not positive.
TE_HOST_DEVICE float scale_of(float amax, float fp8_max, float margin_factor, float otherwise) {
  if (!(amax > 0.0f && amax <= FLT_MAX)) return otherwise;
  const float scale = fp8_max * margin_factor / amax;
  return scale > FLT_MAX ? FLT_MAX : scale;
}

}  // namespace te::kernels
