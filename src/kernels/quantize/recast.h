// The two launches of a cast that finds or corrects its scale (fp8_output.h, Fp8Recast), as their kernels are given
// them.
#pragma once

#include "kernels/quantize/fp8_output.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels {

/// What the first launch writes: its amax and counts are its own until it is known whether it stays. Where the scale is
/// the tensor's own, the amax alone.
inline Fp8Output first_cast(const Fp8Output& out) {
  if (out.recast.state == nullptr) return out;
  Fp8Output first;
  if (out.recast.own_scale == nullptr) {
    first = out;
    first.counters = out.counters != nullptr ? &out.recast.state->counters : nullptr;
    first.recast = {};
  }
  first.amax = out.recast.amax();
  return first;
}

/// The end of a cast: what the second launch decides from, and what is left to settle then.
struct Fp8Settlement {
  Fp8CastState* state = nullptr;      ///< null: no second launch
  const float* found_amax = nullptr;  ///< by the first launch
  float* next_amax = nullptr;         ///< of the state's next cast, made zero
  const float* scale = nullptr;       ///< of the first launch
  float fp8_max = 0.0f;
  float margin_factor = 1.0f;
  float *own_scale = nullptr, *own_amax = nullptr, *used_scale = nullptr;  ///< as in Fp8Recast
  float* amax = nullptr;            ///< raised by the tensor's own; or null
  Fp8Counters* counters = nullptr;  ///< get the first launch's counts if that stays; or null
};

/// The state's next cast has the next turn: of each cast it is called once, on the host, for the second launch.
inline Fp8Settlement settlement_of(const Fp8Output& out) {
  const Fp8Recast& cast = out.recast;
  if (cast.state == nullptr) return {};
  const DType format = out.rowwise ? out.rowwise.dtype : out.columnwise.dtype;
  float* const found = cast.amax();
  ++*cast.turn;
  return {cast.state,     found,         cast.amax(),     out.scale, fp8_max(format), cast.margin_factor,
          cast.own_scale, cast.own_amax, cast.used_scale, out.amax,  out.counters};
}

/// The scale with which the second launch casts, or 0: nothing is left to do. `first`: *s.scale.
TE_HOST_DEVICE float second_scale(const Fp8Settlement& s, float amax, float first) {
  if (s.own_scale != nullptr) return scale_of(amax, s.fp8_max, s.margin_factor, 1.0f);
  return recast_scale(amax, first, s.fp8_max, s.margin_factor);
}

/// What the second launch leaves in the state and elsewhere, but for s.amax; by one thread. `scale`: second_scale().
TE_HOST_DEVICE void settle_state(const Fp8Settlement& s, float amax, float first, float scale) {
  Fp8CastState& state = *s.state;
  *s.next_amax = 0.0f;
  state.scale = scale > 0.0f ? scale : first;
  if (s.used_scale != nullptr) *s.used_scale = state.scale;
  if (s.own_scale != nullptr) {
    *s.own_scale = scale;
    if (s.own_amax != nullptr) *s.own_amax = amax;
    return;
  }
  if (scale > 0.0f) ++state.again;
  if (s.counters == nullptr) return;
  ++state.casts;
  if (scale > 0.0f) {
    ++state.recasts;
  } else {  // nobody else adds to the counters now
    s.counters->saturated += state.counters.saturated;
    s.counters->flushed += state.counters.flushed;
    s.counters->total += state.counters.total;
  }
  state.counters = {0, 0, 0};
}

}  // namespace te::kernels
