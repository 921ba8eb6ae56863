#include "core/float_types.h"

#include <array>
#include <limits>

namespace te {
namespace {

// Value of an FP8 code, without the formats' special codes (infinity, NaN).
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
    const bool nan = (code & 0x7f) == 0x7f;  // the only special code: E4M3 has no infinities
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

}  // namespace

const float* const kE4m3Values = e4m3_table.data();
const float* const kE5m2Values = e5m2_table.data();

}  // namespace te
