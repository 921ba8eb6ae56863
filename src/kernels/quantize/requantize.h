// Arguments of the two launches of a quantization that computes or corrects its scale (fp8_output.h, Fp8Requantize).
#pragma once

#include "kernels/quantize/fp8_output.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels {

/// Scale of the first launch; null if it does not quantize.
inline const float* first_scale(const Fp8Output& out) {
  if (out.requantize.current_scale == nullptr) return out.scale;
  return out.requantize.predicted_scales != nullptr ? out.requantize.predicted_scale() : nullptr;
}

/// Output of the first launch, with the state's own amax and counters until it is known whether the result is kept.
/// With current scaling and without a prediction, the first launch only finds the amax.
inline Fp8Output first_quantization(const Fp8Output& out) {
  if (out.requantize.state == nullptr) return out;
  Fp8Output first;
  if (first_scale(out) != nullptr) {
    first = out;
    first.scale = first_scale(out);
    first.counters = out.counters != nullptr ? &out.requantize.state->counters : nullptr;
    first.requantize = {};
  }
  first.amax = out.requantize.amax();
  return first;
}

/// Inputs of the second launch's decision, and the results that it writes then.
struct Fp8ScaleFinalization {
  Fp8TensorState* state = nullptr;        ///< null: no second launch
  const float* found_amax = nullptr;      ///< of the first launch
  float* next_amax = nullptr;             ///< of the state's next quantization; zeroed
  float* next_predicted_scale = nullptr;  ///< of the state's next quantization; null: no prediction
  const float* scale = nullptr;           ///< of the first launch; null: it did not quantize
  float fp8_max = 0.0f;
  float margin_factor = 1.0f;
  float *current_scale = nullptr, *current_amax = nullptr, *used_scale = nullptr;  ///< as in Fp8Requantize
  float* amax = nullptr;            ///< updated with the tensor's amax; may be null
  Fp8Counters* counters = nullptr;  ///< receive the first launch's counts if its result is kept; may be null
};

/// Arguments of the second launch. Call it exactly once per quantization, on the host, because it advances
/// num_quantizations.
inline Fp8ScaleFinalization finalization_of(const Fp8Output& out) {
  const Fp8Requantize& requantize = out.requantize;
  if (requantize.state == nullptr) return {};
  const DType format = out.rowwise ? out.rowwise.dtype : out.columnwise.dtype;
  Fp8ScaleFinalization s{.state = requantize.state,
                         .found_amax = requantize.amax(),
                         .scale = first_scale(out),
                         .fp8_max = fp8_max(format),
                         .margin_factor = requantize.margin_factor,
                         .current_scale = requantize.current_scale,
                         .current_amax = requantize.current_amax,
                         .used_scale = requantize.used_scale,
                         .amax = out.amax,
                         .counters = out.counters};
  ++*requantize.num_quantizations;
  s.next_amax = requantize.amax();
  if (requantize.predicted_scales != nullptr) s.next_predicted_scale = requantize.predicted_scale();
  return s;
}

/// Scale with which the second launch quantizes, or 0 if nothing is left to do. `first`: *s.scale, or 0.
TE_HOST_DEVICE float second_scale(const Fp8ScaleFinalization& s, float amax, float first) {
  if (s.current_scale == nullptr) return requantize_scale(amax, first, s.fp8_max, s.margin_factor);
  const float scale = group_scale(amax, s.fp8_max, s.margin_factor, s.next_predicted_scale != nullptr);
  return scale == first ? 0.0f : scale;
}

/// Writes the state and other results of the second launch, except s.amax; called by one thread. `scale`:
/// second_scale().
TE_HOST_DEVICE void finalize_state(const Fp8ScaleFinalization& s, float amax, float first, float scale) {
  Fp8TensorState& state = *s.state;
  *s.next_amax = 0.0f;
  state.scale = scale > 0.0f ? scale : first;
  if (s.used_scale != nullptr) *s.used_scale = state.scale;
  if (s.current_scale != nullptr) *s.current_scale = state.scale;
  if (s.current_amax != nullptr) *s.current_amax = amax;
  if (s.next_predicted_scale != nullptr) *s.next_predicted_scale = state.scale;
  if (s.scale == nullptr) return;  // the first launch did not quantize
  if (scale > 0.0f) ++state.requantized;
  if (s.counters == nullptr) return;
  ++state.quantized;
  if (scale > 0.0f) {
    ++state.counted_requantized;
  } else {  // no other thread updates the counters now
    s.counters->saturated += state.counters.saturated;
    s.counters->flushed += state.counters.flushed;
    s.counters->total += state.counters.total;
  }
  state.counters = {0, 0, 0};
}

}  // namespace te::kernels
