// What the norms' fast kernels share: how a block of threads owns rows.
//
// A block has whole rows, and a thread the same eight columns (kVectors times) of each of them. It takes several rows
// at a time, so that their loads are under way together and one barrier serves the sums of all.
#pragma once

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/vec8.cuh"

namespace te::kernels::cuda {

/// Sums over the block of kCount values a thread (a power of two, at most 8), each given to all threads. One barrier:
/// of two buffers in turn, a warp that writes one has passed the barrier behind which all warps have read it.
template <int kCount>
class BlockSums {
 public:
  using Shared = float[2][kWarpSize][kCount];
  __device__ explicit BlockSums(Shared& shared) : shared_(shared) {}

  __device__ __forceinline__ void sum(float (&value)[kCount]) {
    const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
    auto& buffer = shared_[buffer_index_];
    buffer_index_ ^= 1;
    // 1. In the warp: while a lane has several values, it gives half of them to its partner and takes the partner's
    // part of the other half; then lanes that have the same value add.
    int own = 0;  // which value this lane ends up with
#pragma unroll
    for (int count = kCount, offset = kWarpSize / 2; offset > 0; offset /= 2) {
      if (count > 1) {
        const bool upper = (lane & offset) != 0;
        count /= 2;
        own = own * 2 + (upper ? 1 : 0);
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const float given = upper ? value[i] : value[i + count];
          const float kept = upper ? value[i + count] : value[i];
          value[i] = kept + __shfl_xor_sync(0xffffffffu, given, offset);
        }
      } else {
        value[0] += __shfl_xor_sync(0xffffffffu, value[0], offset);
      }
    }
    if (lane % (kWarpSize / kCount) == 0) buffer[threadIdx.x / kWarpSize][own] = value[0];
    __syncthreads();
    // 2. Over the warps: lanes that share a value take every 32 / kCount-th warp.
    float total = 0.0f;
    for (int warp = lane / kCount; warp < warps; warp += kWarpSize / kCount)
      total += buffer[warp][lane % kCount];
#pragma unroll
    for (int offset = kCount; offset < kWarpSize; offset *= 2)
      total += __shfl_xor_sync(0xffffffffu, total, offset);
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = __shfl_sync(0xffffffffu, total, i);
  }

 private:
  Shared& shared_;
  int buffer_index_ = 0;
};

}  // namespace te::kernels::cuda
