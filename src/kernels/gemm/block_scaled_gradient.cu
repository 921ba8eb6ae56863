// GEMMs in which both operands have vectors: wgrad into FP32 or BF16.
#include "kernels/gemm/block_scaled_launch.cuh"

namespace te::kernels::cuda {

void gemm_with_scaled_vectors(const Context& context, const Gemm& args, int kernel) {
  args.out.dtype == DType::f32
      ? block_scaled::launch_kernel<ScaleLayout::vectors, DType::f32, 3, 3, 4>(context, args, kernel)
      : block_scaled::launch_kernel<ScaleLayout::vectors, DType::bf16, 4, 4, 5>(context, args, kernel);
}

}  // namespace te::kernels::cuda
