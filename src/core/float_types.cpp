#include "core/float_types.h"

#include <array>
#include <limits>

namespace te {
namespace {

// Value of an FP8 code with `exponent_bits` and `mantissa_bits`, before the formats' special codes.
float decode(uint8_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                                        : std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)),
                                                     exponent - bias - mantissa_bits);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) {
    const bool nan = (code & 0x7f) == 0x7f;  // E4M3 spends its last code on NaN and has no infinities
    table[code] = nan ? std::numeric_limits<float>::quiet_NaN() : decode(static_cast<uint8_t>(code), 4, 3);
  }
  return table;
}

std::array<float, 256> make_e5m2_table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) {
    const int magnitude = code & 0x7f;
    if (magnitude > 0x7c) {
      table[code] = std::numeric_limits<float>::quiet_NaN();
    } else if (magnitude == 0x7c) {
      table[code] = (code & 0x80) != 0 ? -std::numeric_limits<float>::infinity()
                                       : std::numeric_limits<float>::infinity();
    } else {
      table[code] = decode(static_cast<uint8_t>(code), 5, 2);
    }
  }
  return table;
}

const std::array<float, 256> e4m3_table = make_e4m3_table();
const std::array<float, 256> e5m2_table = make_e5m2_table();

// Rounds |value| to nearest even with `mantissa_bits`, smallest exponent `min_exponent` (of the normal
// numbers), and packs it; `max_code` is the code of the largest finite magnitude, to which larger values
// saturate.
uint8_t encode(float value, int mantissa_bits, int min_exponent, uint8_t max_code, uint8_t nan_code) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return nan_code;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent >= min_exponent) {
    // Normal: drop the low mantissa bits with round to nearest even; a carry moves into the exponent as it
    // should.
    const int drop = 23 - mantissa_bits;
    const uint32_t rounded = magnitude + ((1u << (drop - 1)) - 1) + ((magnitude >> drop) & 1u);
    const int64_t code = static_cast<int64_t>(rounded >> drop) -
                         (static_cast<int64_t>(127 + min_exponent - 1) << mantissa_bits);
    return sign | static_cast<uint8_t>(code > max_code ? max_code : code);
  }
  // Subnormal: the value in units of the smallest step; nearbyint rounds ties to even in the default mode.
  const float steps = std::ldexp(std::bit_cast<float>(magnitude), mantissa_bits - min_exponent);
  return sign | static_cast<uint8_t>(std::nearbyint(steps));
}

}  // namespace

const float* const kE4m3Values = e4m3_table.data();
const float* const kE5m2Values = e5m2_table.data();

float8_e4m3 to_e4m3(float value) {
  return {encode(value, 3, -6, 0x7e, 0x7f)};
}
float8_e5m2 to_e5m2(float value) {
  return {encode(value, 2, -14, 0x7b, 0x7f)};
}

}  // namespace te
