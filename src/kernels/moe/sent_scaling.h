// The scale of an expert's rows on every rank, as finalize_state() writes it on the expert's rank (requantize.h).
#pragma once

#include "kernels/quantize/requantize.h"

namespace te::kernels {

struct SentScaling {
  bool given, current, power_of_two;
  float fp8_max, margin_factor;

  explicit SentScaling(const Fp8Output& out)
      : given(out.requantize.state == nullptr),
        current(out.requantize.current_scale != nullptr),
        power_of_two(out.requantize.predicted_scales != nullptr),
        fp8_max(te::fp8_max(out.rowwise ? out.rowwise.dtype : out.columnwise.dtype)),
        margin_factor(out.requantize.margin_factor) {}

  /// `first`: Fp8Output::scale.
  TE_HOST_DEVICE float scale(float amax, float first) const {
    if (given) return first;
    if (current) return group_scale(amax, fp8_max, margin_factor, power_of_two);
    const float corrected = requantize_scale(amax, first, fp8_max, margin_factor);
    return corrected > 0.0f ? corrected : first;
  }
};

}  // namespace te::kernels
