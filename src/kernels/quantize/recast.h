// The two launches of a cast that may have to be made again (fp8_output.h, Fp8Recast), as their kernels are given them.
#pragma once

#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

/// What the first cast writes: its amax and counts are its own until it is known whether it stays.
inline Fp8Output first_cast(const Fp8Output& out) {
  if (out.recast.state == nullptr) return out;
  Fp8Output first = out;
  first.amax = &out.recast.state->amax;
  first.counters = out.counters != nullptr ? &out.recast.state->counters : nullptr;
  first.recast = {};
  return first;
}

/// The end of a cast: what the second launch decides from, and what is left to settle then.
struct Fp8Settlement {
  Fp8CastState* state = nullptr;  ///< null: no second launch
  const float* scale = nullptr;   ///< of the first cast
  float fp8_max = 0.0f;
  float margin_factor = 1.0f;
  float* amax = nullptr;            ///< raised by the tensor's own; or null
  Fp8Counters* counters = nullptr;  ///< get the first cast's counts if that stays; or null
};

inline Fp8Settlement settlement_of(const Fp8Output& out) {
  const DType format = out.rowwise ? out.rowwise.dtype : out.columnwise.dtype;
  return {out.recast.state, out.scale, fp8_max(format), out.recast.margin_factor, out.amax, out.counters};
}

}  // namespace te::kernels
