// Weights and moments that are not finite are no model: saving refuses them, and so does whatever reads them.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace te::checkpoint {

/// False when one of `count` values is infinite or NaN. Values of types other than F32 and BF16 are not looked at.
/// Runs at the speed of memory; `values` need not be aligned.
bool are_finite(DType dtype, const void* values, int64_t count);

}  // namespace te::checkpoint
