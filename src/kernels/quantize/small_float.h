// Rounding to formats of 8 and 4 bits as numbers, and the scales of microscaling formats. Shared by both backends: IEEE
// operations without a sum of a product, so bitwise equal.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>

#include "core/dtype.h"
#include "core/random.h"

namespace te::kernels {

/// A format without infinities, or with saturation.
struct SmallFloat {
  int mantissa_bits;
  int min_exponent;  ///< of the smallest normal number
  float largest;
};
TE_HOST_DEVICE SmallFloat small_float(DType format) {
  if (format == DType::e2m1) return {1, 0, 6.0f};
  return format == DType::e4m3 ? SmallFloat{3, -6, 448.0f} : SmallFloat{2, -14, 57344.0f};
}

/// Bits of |x|; 0 for NaN.
TE_HOST_DEVICE uint32_t magnitude_without_nan(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
  return bits > 0x7f800000u ? 0u : bits;
}

/// Distance of the format's numbers around a finite magnitude.
TE_HOST_DEVICE float step_at(float magnitude, const SmallFloat& format) {
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(magnitude) >> 23) - 127;
  const int of_step =
      (exponent > format.min_exponent ? exponent : format.min_exponent) - format.mantissa_bits;
  return std::bit_cast<float>(static_cast<uint32_t>(127 + of_step) << 23);
}

/// The format's number next to x, ties to even; infinities and numbers beyond the largest saturate. x is not NaN.
TE_HOST_DEVICE float round_to_format(float x, const SmallFloat& format) {
  const float magnitude = fabsf(x);
  if (!(magnitude < format.largest)) return copysignf(format.largest, x);
  const float step = step_at(magnitude, format);
  return copysignf(rintf(magnitude / step) * step, x);  // division and product are exact
}

/// The code of the smallest power of two that is not less than x >= 0: its exponent plus 127. Infinity: 254.
TE_HOST_DEVICE uint32_t e8m0_at_least(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), exponent = bits >> 23, mantissa = bits & 0x7fffffu;
  if (exponent >= 254) return 254;
  if (exponent == 0) return mantissa <= 0x400000u ? 0 : 1;
  return mantissa > 0 ? exponent + 1 : exponent;
}
TE_HOST_DEVICE float e8m0_value(uint32_t code) {
  return std::bit_cast<float>(code == 0 ? 0x00400000u : code << 23);
}

}  // namespace te::kernels
