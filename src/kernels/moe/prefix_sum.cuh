// Prefix sums of the threads of a block.
#pragma once

#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {

/// Sum of an int over the block's threads before this one, and over all. `shared` holds 32 ints.
inline __device__ int2 prefix_sum(int x, int* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int inclusive = x;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  if (lane == kWarpSize - 1) shared[warp] = inclusive;
  __syncthreads();
  int before = 0, total = 0;
  const int warps = blockDim.x / kWarpSize;
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before += shared[w];
    total += shared[w];
  }
  __syncthreads();
  return {before + inclusive - x, total};
}

}  // namespace te::kernels::cuda
