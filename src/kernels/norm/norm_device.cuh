// Device code shared by the CUDA kernels of the norms.
#pragma once

#include <initializer_list>

#include "core/device.h"
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/vec8.cuh"
#include "kernels/norm/norm.h"

namespace te::kernels::cuda {

/// One element of y, written without fused multiply-adds, so that all kernels and the CPU reference get bitwise equal
/// results from the same statistics.
__device__ __forceinline__ float norm_element(bool layer, float x, float mean, float rstd, float gamma,
                                              float beta) {
  if (!layer) return __fmul_rn(__fmul_rn(x, rstd), gamma);
  return __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(x, mean), rstd), gamma), beta);
}

/// Factor of the normalized values.
__device__ __forceinline__ float norm_gain(bool zero_centered, float gamma) {
  return zero_centered ? 1.0f + gamma : gamma;
}
template <NormKind kKind>
__device__ __forceinline__ float norm_gain(float gamma) {
  return norm_gain(kKind == NormKind::rms_zero_centered, gamma);
}

/// Sums over the block, returned to all threads.
class BlockReducer {
 public:
  using Shared = float2[2][kWarpSize];
  __device__ explicit BlockReducer(Shared& shared) : shared_(shared) {}

  __device__ __forceinline__ float2 sum(float2 value) {
    value = {warp_sum(value.x), warp_sum(value.y)};
    // The two buffers alternate, so one barrier per sum is enough: a warp that writes a buffer has passed a barrier
    // that all warps reach after reading it.
    float2* buffer = shared_[buffer_index_];
    buffer_index_ ^= 1;
    const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
    if (lane == 0) buffer[threadIdx.x / kWarpSize] = value;
    __syncthreads();
    value = lane < warps ? buffer[lane] : float2{0.0f, 0.0f};
    return {warp_sum(value.x), warp_sum(value.y)};
  }
  __device__ __forceinline__ float sum(float value) { return sum(float2{value, 0.0f}).x; }

 private:
  Shared& shared_;
  int buffer_index_ = 0;
};

/// The parts of an Fp8Output that the kernels need.
struct NormFp8 {
  bool wanted = false;  ///< amax or data
  bool data = false;
  bool e5m2 = false;
  uint8_t* rowwise = nullptr;
  const float* scale = nullptr;
  float* scale_inv = nullptr;
  float* amax = nullptr;
  Fp8Counters* counters = nullptr;
};

inline NormFp8 norm_fp8(const Fp8Output& out) {
  NormFp8 fp8;
  fp8.wanted = static_cast<bool>(out);
  if (!fp8.wanted) return fp8;
  fp8.data = out.wants_data();
  fp8.e5m2 = (out.rowwise ? out.rowwise : out.columnwise).dtype == DType::e5m2;
  fp8.rowwise = out.rowwise.as<uint8_t>();
  fp8.scale = out.scale;
  fp8.scale_inv = out.scale_inv;
  fp8.amax = out.amax;
  fp8.counters = fp8.data ? out.counters : nullptr;
  return fp8;
}

/// Amax and counters of one thread over all of its rows, written to memory once per block.
struct NormFp8Sums {
  ThreadCounters counters;
  uint32_t amax = 0;

  /// Adds one value, already rounded to the high-precision dtype; quantizes it and stores it at `offset` of the rows.
  __device__ __forceinline__ void add(const NormFp8& fp8, float y, float scale, int64_t offset) {
    amax = max(amax, abs_bits(y));
    if (!fp8.data) return;
    const float scaled = __fmul_rn(y, scale);
    const uint8_t q = fp8.e5m2 ? to_fp8<DType::e5m2>(scaled) : to_fp8<DType::e4m3>(scaled);
    if (fp8.rowwise != nullptr) fp8.rowwise[offset] = q;
    if (fp8.counters == nullptr) return;
    fp8.e5m2 ? count_value<DType::e5m2>(y, scaled, q, counters)
             : count_value<DType::e4m3>(y, scaled, q, counters);
  }

  /// Returns the bytes of eight values. Without data only the maximum is updated. amax is then packed, see Vec8.
  template <DType kFormat>
  __device__ __forceinline__ uint2 quantize(const NormFp8& fp8, const Vec8<__nv_bfloat16>& y, float scale) {
    y.update_amax(amax);
    if (!fp8.data) return {0, 0};
    uint32_t word[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t low =
          to_fp8x2<kFormat>(__fmul_rn(y.get(4 * k), scale), __fmul_rn(y.get(4 * k + 1), scale));
      const uint32_t high =
          to_fp8x2<kFormat>(__fmul_rn(y.get(4 * k + 2), scale), __fmul_rn(y.get(4 * k + 3), scale));
      word[k] = low | high << 16;
    }
    if (fp8.counters != nullptr) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        count_value<kFormat>(y.get(j), __fmul_rn(y.get(j), scale),
                             static_cast<uint8_t>(word[j / 4] >> (j % 4 * 8)), counters);
    }
    return {word[0], word[1]};
  }
  /// Called after the last quantize(): converts amax to the form that finish() expects.
  __device__ __forceinline__ void unpack_amax() {
    amax = Vec8<__nv_bfloat16>::amax_bits(amax);
  }

  /// All threads of the block must call it. `elements` is the size of the whole output.
  __device__ __forceinline__ void finish(const NormFp8& fp8, float scale, int64_t elements) {
    __shared__ uint32_t words[kWarpSize];
    __shared__ unsigned counts[2];
    if (!fp8.wanted) return;
    const bool first = blockIdx.x == 0 && threadIdx.x == 0;
    if (first && fp8.scale_inv != nullptr) *fp8.scale_inv = 1.0f / scale;
    if (fp8.amax != nullptr) block_update_amax(amax, fp8.amax, words);
    if (fp8.counters == nullptr) return;
    if (threadIdx.x < 2) counts[threadIdx.x] = 0;
    __syncthreads();
    const unsigned saturated = __reduce_add_sync(kAllLanes, counters.saturated);
    const unsigned flushed = __reduce_add_sync(kAllLanes, counters.flushed);
    if (threadIdx.x % kWarpSize == 0) {
      if (saturated > 0) atomicAdd(&counts[0], saturated);
      if (flushed > 0) atomicAdd(&counts[1], flushed);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (counts[0] > 0) atomicAdd(&fp8.counters->saturated, static_cast<unsigned long long>(counts[0]));
    if (counts[1] > 0) atomicAdd(&fp8.counters->flushed, static_cast<unsigned long long>(counts[1]));
    if (first) atomicAdd(&fp8.counters->total, static_cast<unsigned long long>(elements));
  }
};

/// A NormForward in the form that the kernels use; null pointers mean that an output is not requested.
template <class T>
struct NormForwardParams {
  const T* x;
  const T* delta;
  T* sum;
  const T* gamma;
  const T* beta;
  float* mean;
  float* rstd;
  T* y;
  uint8_t* columnwise;  ///< [hidden, rows]
  NormFp8 fp8;
  int64_t rows;
  int64_t hidden;
  float eps;
  bool layer, zero_centered;
};
template <class T>
NormForwardParams<T> norm_forward_params(const NormForward& a) {
  return {.x = a.x.as<T>(),
          .delta = a.delta.as<T>(),
          .sum = a.sum.as<T>(),
          .gamma = a.gamma.as<T>(),
          .beta = a.beta.as<T>(),
          .mean = a.mean.as<float>(),
          .rstd = a.rstd.as<float>(),
          .y = a.y.as<T>(),
          .columnwise = a.y_fp8.columnwise.as<uint8_t>(),
          .fp8 = norm_fp8(a.y_fp8),
          .rows = a.x.rows(),
          .hidden = a.x.cols(),
          .eps = a.eps,
          .layer = a.kind == NormKind::layer,
          .zero_centered = a.kind == NormKind::rms_zero_centered};
}

inline bool all_aligned(size_t bytes, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers)
    if (!is_aligned(pointer, bytes)) return false;
  return true;
}

/// Runs the forward pass with the fast kernel if that supports the problem; otherwise does nothing and returns false.
bool norm_forward_rows(const Context& context, const NormForward& args);
/// Writes the columnwise FP8 output, from the rowwise one if there is one, or from x and the statistics just written.
void norm_columnwise(const Context& context, const NormForward& args);
/// Second launch of quantization (Fp8Requantize), called after all other outputs have been written.
void norm_requantize(const Context& context, const NormForward& args);

}  // namespace te::kernels::cuda
