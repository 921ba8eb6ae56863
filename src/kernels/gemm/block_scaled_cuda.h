// The launches behind block_scaled.h; the arguments have been checked.
#pragma once

#include "kernels/gemm/block_scaled.h"

namespace te::kernels::cuda {

/// is_block_scaled(args) must hold; `kernel` is 1 to kBlockScaledKernels.size().
void gemm_block_scaled(const Context& context, const Gemm& args, int kernel);

/// Both halves of it: b with blocks (block_scaled_weight.cu) and with vectors (block_scaled_gradient.cu).
void gemm_with_scaled_blocks(const Context& context, const Gemm& args, int kernel);
void gemm_with_scaled_vectors(const Context& context, const Gemm& args, int kernel);

}  // namespace te::kernels::cuda
