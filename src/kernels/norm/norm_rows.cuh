// Shared by the fast kernels of the norms: the assignment of rows to threads.
//
// A block owns whole rows, and each thread the same eight columns (times kVectors) of each row. It processes several
// rows at a time, so that their loads are in flight together and one barrier serves all of their sums.
#pragma once

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/vec8.cuh"

namespace te::kernels::cuda {

/// Sums over the block of kCount values per thread (a power of two, at most 8), returned to all threads. The two
/// buffers alternate, so one barrier is enough: a warp that writes a buffer has passed a barrier that all warps reach
/// after reading it.
template <int kCount>
class BlockSums {
 public:
  using Shared = float[2][kWarpSize][kCount];
  __device__ explicit BlockSums(Shared& shared) : shared_(shared) {}

  __device__ __forceinline__ void sum(float (&value)[kCount]) {
    const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
    auto& buffer = shared_[buffer_index_];
    buffer_index_ ^= 1;
    // 1. Within the warp: while a lane has several values, it gives half of them to its partner and receives the
    // partner's part of the other half; then lanes with the same value add them
    int own = 0;  // index of the value that this lane ends up with
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
          value[i] = kept + __shfl_xor_sync(kAllLanes, given, offset);
        }
      } else {
        value[0] += __shfl_xor_sync(kAllLanes, value[0], offset);
      }
    }
    if (lane % (kWarpSize / kCount) == 0) buffer[threadIdx.x / kWarpSize][own] = value[0];
    __syncthreads();
    // 2. Over the warps: of the lanes that share a value, each adds every 32 / kCount-th warp
    float total = 0.0f;
    for (int warp = lane / kCount; warp < warps; warp += kWarpSize / kCount)
      total += buffer[warp][lane % kCount];
#pragma unroll
    for (int offset = kCount; offset < kWarpSize; offset *= 2)
      total += __shfl_xor_sync(kAllLanes, total, offset);
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = __shfl_sync(kAllLanes, total, i);
  }

 private:
  Shared& shared_;
  int buffer_index_ = 0;
};

}  // namespace te::kernels::cuda
