#include "checkpoint/finite.h"

#include <cstring>

namespace te::checkpoint {
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

}  // namespace

bool are_finite(DType dtype, const void* values, int64_t count) {
  if (dtype == DType::bf16) return words_are_finite<uint16_t, 0x7f80>(values, count);
  return dtype != DType::f32 || words_are_finite<uint32_t, 0x7f800000>(values, count);
}

}  // namespace te::checkpoint
