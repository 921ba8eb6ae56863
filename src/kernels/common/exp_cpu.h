// exp() for the inner loops of the CPU reference implementations. Unlike a call of std::exp, compilers can vectorize
// it.
#pragma once

#include <bit>
#include <cstdint>

namespace te::kernels {

/// exp(x) for x <= 0, relative error below 3e-7; 0 below -87.3 (where FP32 becomes subnormal); NaN stays NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2, exp(x) = 2^n (1 + r + r^2/2! + ... + r^7/7!).
inline float exp_nonpositive(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(t) in the low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts, the first short enough that n * part is exact.
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) - 0x4b400000u + 127u) << 23;
  const float y = p * std::bit_cast<float>(exponent);
  return x < -87.3f ? 0.0f : y;
}

}  // namespace te::kernels
