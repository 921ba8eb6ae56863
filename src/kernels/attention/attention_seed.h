// Private to the CUDA attention.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace te::kernels::cuda {

/// Writes the seed to destination[0] and the offset 0 to destination[1] (device memory), on the context's CUDA stream.
void set_attention_seed(const Context& context, int64_t* destination, uint64_t seed);

}  // namespace te::kernels::cuda
