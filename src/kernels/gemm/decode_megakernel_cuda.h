// CUDA side of decode_megakernel.h; callers have checked dtypes and shapes.
#pragma once

#include "kernels/gemm/decode_megakernel.h"

namespace te::kernels::cuda {

/// Whether the rows' inputs and the ring fit into shared memory, and all tensors are aligned.
bool has_decode_megakernel(const DecodeMegakernel& megakernel);
void decode_megakernel(const Context& context, const DecodeMegakernel& megakernel);

}  // namespace te::kernels::cuda
