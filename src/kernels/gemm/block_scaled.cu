// Which of the block-scaled kernels multiplies.
#include "kernels/common/cuda_common.cuh"
#include "kernels/gemm/block_scaled_cuda.h"
#include "kernels/gemm/gemm_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kWeight = 1, kGradient = 3;       ///< the usual ones: 256 x 128 and 128 x 192
constexpr int64_t kRows = 128, kColumns = 256;  ///< of a block's tile, more or less

}  // namespace

int usual_block_scaled_kernel(const Context& context, const Gemm& args) {
  const auto [m, n, k] = gemm_size(args);
  // Below, multiprocessors would have nothing to do: cuBLASLt has smaller tiles.
  if (ceil_div(m, kRows) * ceil_div(n, kColumns) < static_cast<unsigned>(multiprocessor_count(context)))
    return 0;
  return args.b.layout == ScaleLayout::blocks ? kWeight : kGradient;
}

void gemm_block_scaled(const Context& context, const Gemm& args, int kernel) {
  TE_CHECK(is_block_scaled(args) && kernel > 0 && kernel <= static_cast<int>(kBlockScaledKernels.size()),
           "gemm: no block-scaled kernel {}", kernel);
  return args.b.layout == ScaleLayout::blocks ? gemm_with_scaled_blocks(context, args, kernel)
                                              : gemm_with_scaled_vectors(context, args, kernel);
}

}  // namespace te::kernels::cuda
