// Adam moments in FP8: each block of 128 elements stores 8-bit codes and the exponent k of a common power-of-two scale.
//
//   exp_avg      E4M3: value = code * 2^k
//   exp_avg_sq   value = (code * 2^k)^2; the code is unsigned, with 4 exponent and 4 mantissa bits. Storing the square
//                root halves the range of exponents that a block spans. Without it, the smallest second moments of
//                a block would underflow, and their elements would take steps of exp_avg / eps.
//
// k is the smallest exponent for which the block's largest code is finite. A power-of-two scale wastes up to one bit of
// range out of at least 17, but makes every value an exact BF16 number (exp_avg) or FP32 number (exp_avg_sq).
// Checkpoints hold these values, and encoding them again in the same blocks gives the same values for any k. Codes and
// k may differ, because a step computes k from values before they are rounded, and loading from rounded ones. A step
// reads values only, so a resumed run has the same weights, losses and moments, and after its first step the same
// bytes.
//
// Codes are rounded stochastically like BF16 moments (moment_rounding.h), so that the expected value is exact. For
// exp_avg_sq this holds for the square, not the root, because a bias of the square would accumulate over the 1 / (1 -
// beta2) steps of its averaging window.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/random.h"
#include "kernels/common/granule.h"

namespace te::kernels {

/// 2^k for k in [-126, 127].
TE_HOST_DEVICE float power_of_two(int k) {
  return std::bit_cast<float>(static_cast<uint32_t>(k + 127) << 23);
}

namespace fp8_detail {

// A code has 4 exponent bits with bias 7. Its bits, shifted into the position of an FP32 number, give a value that is
// too small by 2^120, also for subnormal codes.
constexpr int kRebias = 120;

template <int kMantissa>
TE_HOST_DEVICE float magnitude_of(uint32_t code) {
  return std::bit_cast<float>(code << (23 - kMantissa)) * power_of_two(kRebias);
}
/// FP32 bits whose upper part is the code of the next magnitude towards zero.
TE_HOST_DEVICE uint32_t code_bits(float magnitude) {
  return std::bit_cast<uint32_t>(magnitude * power_of_two(-kRebias));
}

}  // namespace fp8_detail

struct Fp8ExpAvg {
  static constexpr float kMax = 448.0f;                            ///< 1.75 * 2^8
  static constexpr int kMinScaleLog2 = -117, kMaxScaleLog2 = 100;  ///< k: all values are normal BF16 numbers

  /// Magnitude from which the block's k is computed.
  TE_HOST_DEVICE static float magnitude(float x) { return fabsf(x); }
  TE_HOST_DEVICE static float decode(uint8_t code, int k) {
    const uint32_t bits = code & 0x7fu;
    const float value = fp8_detail::magnitude_of<3>(bits) * power_of_two(k);
    const float finite = (code & 0x80u) != 0 ? -value : value;
    return bits == 0x7fu ? std::bit_cast<float>(0x7fffffffu) : finite;
  }
  /// Rounds stochastically with 16 random bits; 0x8000 rounds to nearest.
  TE_HOST_DEVICE static uint8_t encode(float x, int k, uint32_t random) {
    const uint32_t sign = std::bit_cast<uint32_t>(x) >> 24 & 0x80u;
    const float scaled = fabsf(x) * power_of_two(-k);
    if (!(scaled <= kMax)) return 0x7f;
    return static_cast<uint8_t>(sign | (fp8_detail::code_bits(scaled) + ((random & 0xffffu) << 4)) >> 20);
  }
};

struct Fp8ExpAvgSq {
  static constexpr float kMax = 480.0f;                          ///< 1.875 * 2^8; the code above it is NaN
  static constexpr int kMinScaleLog2 = -50, kMaxScaleLog2 = 60;  ///< k: all values are normal FP32 numbers

  TE_HOST_DEVICE static float magnitude(float x) { return sqrtf(x); }
  TE_HOST_DEVICE static float decode(uint8_t code, int k) {
    const float root = fp8_detail::magnitude_of<4>(code) * power_of_two(k);
    return code == 0xffu ? std::bit_cast<float>(0x7fffffffu) : root * root;
  }
  TE_HOST_DEVICE static uint8_t encode(float x, int k, uint32_t random) {
    const float scaled = sqrtf(x) * power_of_two(-k);
    if (!(scaled <= kMax)) return 0xff;
    const uint32_t code = fp8_detail::code_bits(scaled) >> 19;
    const float lower = fp8_detail::magnitude_of<4>(code), upper = fp8_detail::magnitude_of<4>(code + 1);
    // Squares of codes and their differences are exact, so contraction by the compiler does not change the result.
    const float above = x * power_of_two(-2 * k) - lower * lower;
    const float gap = upper * upper - lower * lower;
    const bool up = code < 0xfeu && static_cast<float>(random & 0xffffu) * gap < above * 65536.0f;
    return static_cast<uint8_t>(code + (up ? 1u : 0u));
  }
};

/// Exponent k of a block; `largest` holds the FP32 bits of its largest Format::magnitude.
template <class Format>
TE_HOST_DEVICE int block_exponent(uint32_t largest) {
  const uint32_t top = std::bit_cast<uint32_t>(Format::kMax);
  const int k = static_cast<int>(largest >> 23) - static_cast<int>(top >> 23) +
                ((largest & 0x7fffffu) > (top & 0x7fffffu) ? 1 : 0);
  return k < Format::kMinScaleLog2 ? Format::kMinScaleLog2
                                   : (k > Format::kMaxScaleLog2 ? Format::kMaxScaleLog2 : k);
}
/// Conversions between k and the byte that stores it.
TE_HOST_DEVICE uint8_t exponent_byte(int k) {
  return static_cast<uint8_t>(k + 127);
}
TE_HOST_DEVICE int exponent_of(uint8_t byte) {
  return static_cast<int>(byte) - 127;
}

/// Host functions for the `count` elements of a block (at most kAdamWGranule). `random(i)` returns the 16 random bits
/// of element i.
template <class Format>
void decode_block(const uint8_t* codes, uint8_t exponent, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = Format::decode(codes[i], exponent_of(exponent));
}
template <class Format, class Random>
void encode_block(const float* values, int64_t count, Random&& random, uint8_t* codes, uint8_t& exponent) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(Format::magnitude(values[i])) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  const int k = block_exponent<Format>(largest);
  for (int64_t i = 0; i < count; ++i) codes[i] = Format::encode(values[i], k, random(i));
  exponent = exponent_byte(k);
}

}  // namespace te::kernels
