#include "core/stored_values.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace te {
namespace {

/// Word is the unsigned type with a number's bits, `exponent` the mask of its exponent.
template <class Word, Word exponent>
bool words_are_finite(const void* values, int64_t count) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {  // no early exit, so that the loop vectorizes
    Word bits;
    std::memcpy(&bits, static_cast<const char*>(values) + i * static_cast<int64_t>(sizeof(Word)),
                sizeof(Word));
    finite &= (bits & exponent) != exponent;
  }
  return finite;
}

uint32_t bits_of_bf16(uint16_t half) {
  return uint32_t{half} << 16;
}

uint32_t bits_of_f16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = (half >> 10) & 0x1fu,
                 mantissa = half & 0x3ffu;
  if (exponent == 31) return sign | 0x7f800000u | mantissa << 13;
  if (exponent != 0) return sign | (exponent + 112) << 23 | mantissa << 13;
  return sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);  // zero or subnormal
}

/// Works in place because a chunk is copied before it is overwritten, and its FP32 numbers end before the numbers that
/// are not read yet. The copy lets the loop vectorize.
template <uint32_t (*widen)(uint16_t)>
void widen_in_place(std::byte* out, int64_t count) {
  constexpr int64_t kChunk = 1024;
  uint16_t halves[kChunk];
  uint32_t wide[kChunk];
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(kChunk, count - first);
    std::memcpy(halves, out + 2 * (count + first), static_cast<size_t>(n) * sizeof(uint16_t));
    for (int64_t i = 0; i < n; ++i) wide[i] = widen(halves[i]);
    std::memcpy(out + 4 * first, wide, static_cast<size_t>(n) * sizeof(uint32_t));
  }
}

}  // namespace

bool are_finite(DType dtype, const void* values, int64_t count) {
  if (dtype == DType::bf16) return words_are_finite<uint16_t, 0x7f80>(values, count);
  return dtype != DType::f32 || words_are_finite<uint32_t, 0x7f800000>(values, count);
}

void widen_bf16_in_place(std::byte* out, int64_t count) {
  widen_in_place<bits_of_bf16>(out, count);
}

void widen_f16_in_place(std::byte* out, int64_t count) {
  widen_in_place<bits_of_f16>(out, count);
}

}  // namespace te
