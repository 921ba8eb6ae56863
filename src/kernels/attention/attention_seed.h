// Private to the CUDA attention.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace te::kernels::cuda {

/// Writes the seed, and 0 as the offset, to destination[0] and [1] (device memory), on the stream.
void set_attention_seed(const Context& context, int64_t* destination, uint64_t seed);

}  // namespace te::kernels::cuda
