// Device code shared by the cross-entropy over the full vocabulary and over a slice. With a single slice both give
// bitwise equal results.
#pragma once

#include <algorithm>

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/soft_cap.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/cross_entropy/z_loss_math.h"

namespace te::kernels::cuda {

/// Two such blocks with their rows fit on an SM: one computes while the other waits for memory.
constexpr int kRowThreads = 512;
constexpr int kRowLoads = 4;  ///< vectors in flight per thread

/// Exponential for x <= 0.
__device__ __forceinline__ float exp_of(float x) {
  return exp2_fast(x * kLog2E);
}

/// The logit as the loss uses it, and the gradient of the logit from that of its capped value.
template <bool kCapped>
struct LogitCap {
  float cap;
  template <class T>
  __device__ __forceinline__ float load(const T* logit) const {
    if constexpr (kCapped) return soft_cap(load_float(logit), cap);
    return load_float(logit);
  }
  __device__ __forceinline__ float gradient(float capped, float d_capped) const {
    if constexpr (kCapped) return d_capped * soft_cap_slope(capped, cap);
    return d_capped;
  }
};
/// Calls fn(LogitCap) for a cap that is known only at run time.
template <class Fn>
void with_cap(float cap, Fn&& fn) {
  if (cap != 0.0f) return fn(LogitCap<true>{cap});
  fn(LogitCap<false>{0.0f});
}

/// Running sum of exp(x - largest). It starts from a finite maximum, so that a logit of -inf gets probability 0 instead
/// of inf - inf.
struct Softmax {
  float largest = -3.402823466e38f;
  float sum = 0.0f;

  __device__ __forceinline__ float log_z() const { return logf(sum) + largest; }
};

/// kWhole: all N elements are valid.
template <bool kWhole, class T, int N, class Cap>
__device__ __forceinline__ void add_logits(Softmax& s, const Vector<T, N>& x, int valid, const Cap& cap) {
  float value[N], largest = s.largest;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    value[i] = cap.load(&x.v[i]);
    if (kWhole || i < valid) largest = fmaxf(largest, value[i]);
  }
  if (largest > s.largest) {
    s.sum *= exp_of(s.largest - largest);
    s.largest = largest;
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (kWhole || i < valid) s.sum += exp_of(value[i] - largest);
}

/// Combines the maximum and sum of all threads of a block and returns them to every thread.
__device__ __forceinline__ Softmax block_softmax(const Softmax& mine, float* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  Softmax all;
  float largest = warp_max(mine.largest);
  if (lane == 0) shared[warp] = largest;
  __syncthreads();
  all.largest = warp_max(lane < warps ? shared[lane] : mine.largest);
  __syncthreads();
  all.sum = block_sum(mine.sum * exp_of(mine.largest - all.largest), shared);
  return all;
}

/// Fills a row with zeros.
template <class T, int N>
__device__ __forceinline__ void clear_row(T* row, int64_t columns) {
  Vector<T, N> zero;
#pragma unroll
  for (int i = 0; i < N; ++i) store_float(&zero.v[i], 0.0f);
  for (int64_t c = int64_t{threadIdx.x} * N; c < columns; c += int64_t{blockDim.x} * N)
    store_vector<T, N>(row + c, zero);
}

/// Threads of a block that processes a row of `columns` in vectors of N.
inline unsigned row_threads(int64_t columns, int N) {
  const int64_t vectors = ceil_div(columns, N);
  return static_cast<unsigned>(
      std::min<int64_t>(kRowThreads, ceil_div(vectors, kWarpSize) * int64_t{kWarpSize}));
}

/// Maximum and sum over the first `valid` columns of a row, returned to all threads of the block. Copies the row to
/// `cache` unless that is null. Each thread reads back only what it stored itself.
template <class T, int N, class Cap>
__device__ __forceinline__ Softmax row_softmax(const T* row, int64_t columns, int64_t valid, T* cache,
                                               float* shared, const Cap& cap) {
  Softmax mine;
  const int end = static_cast<int>(columns), real = static_cast<int>(valid);
  const int stride = static_cast<int>(blockDim.x) * N;
  for (int start = static_cast<int>(threadIdx.x) * N; start < end; start += kRowLoads * stride) {
    Vector<T, N> x[kRowLoads];
#pragma unroll
    for (int k = 0; k < kRowLoads; ++k)
      if (start + k * stride < end) x[k] = load_vector<T, N>(row + start + k * stride);
#pragma unroll
    for (int k = 0; k < kRowLoads; ++k) {
      const int c = start + k * stride;
      if (c >= end) continue;
      if (cache != nullptr) store_vector<T, N>(cache + c, x[k]);
      if (c + N <= real) {
        add_logits<true, T, N>(mine, x[k], N, cap);
      } else {
        add_logits<false, T, N>(mine, x[k], real - c, cap);
      }
    }
  }
  return block_softmax(mine, shared);
}

/// Writes to `row` its gradient (cross_entropy.h) from the logits in `source` (the row itself or its copy), and zeros
/// from column `valid` on.
template <class T, int N, class Cap>
__device__ __forceinline__ void write_gradient(const T* source, T* row, int64_t columns, int64_t valid,
                                               const Softmax& all, int64_t target, float grad_scale,
                                               float z_loss, const Cap& cap) {
  const float inverse = softmax_factor(z_loss, all.log_z()) / all.sum;
  const int end = static_cast<int>(columns), real = static_cast<int>(valid);
  // A target of another rank's slice is out of range here.
  const int hit = target >= 0 && target < columns ? static_cast<int>(target) : -N;
  for (int c = static_cast<int>(threadIdx.x) * N; c < end; c += static_cast<int>(blockDim.x) * N) {
    const Vector<T, N> x = load_vector<T, N>(source + c);
    float value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float logit = cap.load(&x.v[i]);
      value[i] = cap.gradient(logit, exp_of(logit - all.largest) * inverse * grad_scale);
    }
    if (hit >= c && hit < c + N) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (c + i == hit) {
          const float logit = cap.load(&x.v[i]);
          value[i] = cap.gradient(logit, (exp_of(logit - all.largest) * inverse - 1.0f) * grad_scale);
        }
    }
    if (c + N > real) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (c + i >= real) value[i] = 0.0f;
    }
    Vector<T, N> gradient;
#pragma unroll
    for (int i = 0; i < N; ++i) store_float(&gradient.v[i], value[i]);
    store_vector<T, N>(row + c, gradient);
  }
}

}  // namespace te::kernels::cuda
