#include "checkpoint/finite.h"

#include <cstring>

namespace te::checkpoint {
namespace {

/// Word is that of the bits of a number.
template <class Word, Word exponent>
bool words_are_finite(const void* values, int64_t count) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {  // no early end, so that it runs at memory speed
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
