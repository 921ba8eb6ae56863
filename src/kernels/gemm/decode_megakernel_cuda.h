// The CUDA side of decode_megakernel.h; dtypes and shapes have been checked.
#pragma once

#include "kernels/gemm/decode_megakernel.h"

namespace te::kernels::cuda {

/// Whether the rows' inputs and the ring find room, and all is aligned.
bool has_decode_megakernel(const DecodeMegakernel& megakernel);
void decode_megakernel(const Context& context, const DecodeMegakernel& megakernel);

}  // namespace te::kernels::cuda
