// Dispatch of the block-scaled kernels by the scale layout of b.
#include "core/error.h"
#include "kernels/gemm/block_scaled_cuda.h"

namespace te::kernels::cuda {

void gemm_block_scaled(const Context& context, const Gemm& args, int kernel) {
  TE_CHECK(is_block_scaled(args) && kernel > 0 && kernel <= static_cast<int>(kBlockScaledKernels.size()),
           "gemm: block-scaled kernel {} does not exist or does not support the operands", kernel);
  return args.b.layout == ScaleLayout::blocks ? gemm_with_scaled_blocks(context, args, kernel)
                                              : gemm_with_scaled_vectors(context, args, kernel);
}

}  // namespace te::kernels::cuda
