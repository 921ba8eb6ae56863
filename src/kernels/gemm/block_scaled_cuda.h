// Launches of block_scaled.h's kernels; callers have checked the arguments.
#pragma once

#include "kernels/gemm/block_scaled.h"

namespace te::kernels::cuda {

/// Requires is_block_scaled(args); `kernel` is 1 to kBlockScaledKernels.size().
void gemm_block_scaled(const Context& context, const Gemm& args, int kernel);

/// gemm_block_scaled() for b with blocks (block_scaled_weight.cu) and for b with vectors (block_scaled_gradient.cu).
void gemm_with_scaled_blocks(const Context& context, const Gemm& args, int kernel);
void gemm_with_scaled_vectors(const Context& context, const Gemm& args, int kernel);

}  // namespace te::kernels::cuda
