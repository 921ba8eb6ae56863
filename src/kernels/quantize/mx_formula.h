// A value of an MX group, shared by both backends (quantize_mx.h).
#pragma once

#include "kernels/quantize/small_float.h"

namespace te::kernels {

/// E8M0 code of a group's scale from the bits of its amax. The product with the reciprocal is Transformer Engine's.
TE_HOST_DEVICE uint32_t mx_scale_code(uint32_t amax_bits, const SmallFloat& format, int margin) {
  const float ratio = std::bit_cast<float>(amax_bits) * (1.0f / format.largest);
  return e8m0_at_least(margin == 0 ? ratio : ldexpf(ratio, margin));
}

struct MxValue {
  float code;   ///< as a number; NaN for NaN
  float value;  ///< dequantized
  bool saturated, flushed;
};
TE_HOST_DEVICE MxValue mx_value(float x, uint32_t code, const SmallFloat& format) {
  constexpr uint32_t kNan = 0x7fffffffu;
  if (x != x) return {std::bit_cast<float>(kNan), std::bit_cast<float>(kNan), false, false};
  const float scaled = x * e8m0_value(254 - code), q = round_to_format(scaled, format);
  return {q, q * e8m0_value(code), fabsf(x) <= FLT_MAX && fabsf(scaled) > format.largest,
          x != 0.0f && q == 0.0f};
}

}  // namespace te::kernels
