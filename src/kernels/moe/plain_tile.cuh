// A tile of a GEMM without tensor cores, in FP32 arithmetic, for operands that tensor cores do not take. A block of
// kThreads computes a tile of 64 x 64 results from slices of 16 along k in shared memory; a thread computes 4 x 4
// results, each as a sum over k in order. Operands of any dtype are widened when they are loaded.
#pragma once

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/row_blocks.h"

namespace te::kernels::plain {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kPerThread = 4;

__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float widen(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float widen(__nv_fp8_e4m3 x) {
  return static_cast<float>(x);
}
__device__ __forceinline__ float widen(__nv_fp8_e5m2 x) {
  return static_cast<float>(x);
}

/// Inverse scales of vectors or blocks along a side of a tile: that of element (i, k) is at
/// (i >> i_shift) * i_stride + (k >> 7) * k_stride. Null: none.
struct SideScales {
  const float* data = nullptr;
  int i_shift = 0;
  int64_t i_stride = 0, k_stride = 0;
};

/// An operand as the tile's loop sees it: element (i, k) is at i * stride + k * k_stride, with i < size. Scales count i
/// and k from the start of the tensor, (i0, k0) before the operand.
template <class T>
struct Side {
  const T* data;
  int64_t size, stride, k_stride;
  SideScales scales{};
  int64_t i0 = 0, k0 = 0;
  int64_t rows = 0;  ///< not 0: [size, rows] in blocks of rows (row_blocks.h), from k0 on

  __device__ float scale(int64_t i, int64_t k) const {
    if (scales.data == nullptr) return 1.0f;
    return scales.data[((i0 + i) >> scales.i_shift) * scales.i_stride + ((k0 + k) >> 7) * scales.k_stride];
  }

  __device__ int64_t index(int64_t i, int64_t k) const {
    return rows > 0 ? row_block_index(i, k0 + k, size, rows) : i * stride + k * k_stride;
  }
  __device__ void load(float (&slice)[kDepth][kTile + 1], int64_t first, int64_t k, int64_t depth) const {
    // Neighboring threads read neighboring elements of the dimension that is contiguous.
    const bool k_fast = k_stride == 1;
    for (int at = threadIdx.x; at < kTile * kDepth; at += kThreads) {
      const int i = k_fast ? at / kDepth : at % kTile, d = k_fast ? at % kDepth : at / kTile;
      const bool inside = first + i < size && k + d < depth;
      slice[d][i] = inside ? widen(data[index(first + i, k + d)]) * scale(first + i, k + d) : 0.0f;
    }
  }
};

template <class A, class B>
struct Problem {
  Side<A> a;
  Side<B> b;
  int64_t depth;
};

/// Writes results: out[row, column] = sum * scale (+ out[row, column]), rows of n.
template <class Out>
struct Store {
  Out* out;
  int64_t n;
  float scale;
  bool accumulate;

  __device__ void write(int64_t row, int64_t col, float sum) const {
    Out* const at = out + row * n + col;
    store_float(at, sum * scale + (accumulate ? load_float(at) : 0.0f));
  }
};

template <class A, class B, class Out>
__device__ void multiply_tile(const Problem<A, B>& p, int64_t row, int64_t col, const Store<Out>& store) {
  __shared__ float a_slice[kDepth][kTile + 1], b_slice[kDepth][kTile + 1];
  const int own_row = threadIdx.x / (kTile / kPerThread) * kPerThread;
  const int own_col = threadIdx.x % (kTile / kPerThread) * kPerThread;
  float sums[kPerThread][kPerThread] = {};
  for (int64_t k = 0; k < p.depth; k += kDepth) {
    p.a.load(a_slice, row, k, p.depth);
    p.b.load(b_slice, col, k, p.depth);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int i = 0; i < kPerThread; ++i)
#pragma unroll
        for (int j = 0; j < kPerThread; ++j)
          sums[i][j] = fmaf(a_slice[d][own_row + i], b_slice[d][own_col + j], sums[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i)
#pragma unroll
    for (int j = 0; j < kPerThread; ++j)
      if (row + own_row + i < p.a.size && col + own_col + j < p.b.size)
        store.write(row + own_row + i, col + own_col + j, sums[i][j]);
}

}  // namespace te::kernels::plain
