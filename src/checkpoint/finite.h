// Check for infinities and NaN: saving and reading refuse weights and moments that are not finite.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace te::checkpoint {

/// False if one of `count` values is infinite or NaN. Types other than F32 and BF16 are not checked. Memory-bound;
/// `values` need not be aligned.
bool are_finite(DType dtype, const void* values, int64_t count);

}  // namespace te::checkpoint
