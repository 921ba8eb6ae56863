// What the kernels of qk_norm.cu share: the parameters, and which segment of which row a warp processes.
#pragma once

#include "kernels/common/cuda_common.cuh"
#include "kernels/qk_norm/qk_norm_cuda.h"

namespace te::kernels::cuda::qk_norm {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kVector = 4;  // elements: a warp processes a head of 128 at a time

template <class T>
struct Params {
  T* packed;  ///< qkv or dqkv
  T* raw;     ///< null: not stored
  float* rstd;
  const T* q_gain;
  const T* k_gain;
  int64_t columns, kept;
  int64_t work;  ///< rows * segments, below 2^32
  int segments, q_segments, q_width, k_width;
  float eps;
  float*
      sums;  ///< null: a warp sums its segment; otherwise summed over all ranks, or output of the sums kernels
  int ranks;
  float shift;  ///< added to the gains

  /// Columns of a norm, including those of other ranks.
  __device__ float norm_width(int width) const {
    return static_cast<float>(width) * static_cast<float>(ranks);
  }

  /// A segment of a row: first column, width and gain.
  struct Segment {
    int64_t row;
    int begin, width;
    const T* gain;
  };
  __device__ Segment segment(int64_t item) const {
    const int64_t row = static_cast<unsigned>(item) / static_cast<unsigned>(segments);
    const int p = static_cast<int>(item - row * segments);
    if (p < q_segments) return {row, p * q_width, q_width, q_gain};
    return {row, q_segments * q_width + (p - q_segments) * k_width, k_width, k_gain};
  }
};

__device__ __forceinline__ int64_t item_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
}

}  // namespace te::kernels::cuda::qk_norm
