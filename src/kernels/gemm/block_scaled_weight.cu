// GEMMs with block scales of a weight: fprop and dgrad into BF16.
#include "kernels/gemm/block_scaled_launch.cuh"

namespace te::kernels::cuda {

void gemm_with_scaled_blocks(const Context& context, const Gemm& args, int kernel) {
  block_scaled::launch_kernel<ScaleLayout::blocks, DType::bf16, 4, 4, 6>(context, args, kernel);
}

}  // namespace te::kernels::cuda
