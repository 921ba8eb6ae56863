// The CUDA side of gemm_chain.h; dtypes and shapes have been checked.
#pragma once

#include "kernels/gemm/gemm_chain.h"

namespace te::kernels::cuda {

/// Whether the rows' inputs and the ring find room, and all is aligned.
bool has_gemm_chain(const GemmChain& chain);
void gemm_chain(const Context& context, const GemmChain& chain);

}  // namespace te::kernels::cuda
