// Shared code of the CUDA kernels: 16-byte vectors, reductions, FP8 conversions, amax and counters.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/cuda_check.h"
#include "core/device_caps.h"
#include "core/float_types.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// --- element access ----------------------------------------------------------------------------------------

template <class T>
struct DeviceType;
template <>
struct DeviceType<float> {
  using type = float;
};
template <>
struct DeviceType<bfloat16> {
  using type = __nv_bfloat16;
};
template <>
struct DeviceType<float16> {
  using type = __half;
};

__device__ __forceinline__ float load_float(const float* p) {
  return *p;
}
__device__ __forceinline__ float load_float(const __nv_bfloat16* p) {
  return __bfloat162float(*p);
}
__device__ __forceinline__ float load_float(const __half* p) {
  return __half2float(*p);
}
__device__ __forceinline__ void store_float(float* p, float v) {
  *p = v;
}
__device__ __forceinline__ void store_float(__nv_bfloat16* p, float v) {
  *p = __float2bfloat16_rn(v);
}
__device__ __forceinline__ void store_float(__half* p, float v) {
  *p = __float2half_rn(v);
}
/// x rounded to T and converted back: the value that a reader of the stored element gets.
template <class T>
__device__ __forceinline__ float round_to(float x);
template <>
__device__ __forceinline__ float round_to<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ float round_to<__nv_bfloat16>(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}
template <>
__device__ __forceinline__ float round_to<__half>(float x) {
  return __half2float(__float2half_rn(x));
}

/// N elements that are accessed together (N * sizeof(T) is 2, 4, 8 or 16 bytes, aligned to that size).
template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
  T v[N];
};
template <class T, int N>
__device__ __forceinline__ Vector<T, N> load_vector(const T* p) {
  return *reinterpret_cast<const Vector<T, N>*>(p);
}
template <class T, int N>
__device__ __forceinline__ void store_vector(T* p, const Vector<T, N>& x) {
  *reinterpret_cast<Vector<T, N>*>(p) = x;
}
/// Elements of T in 16 bytes.
template <class T>
constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// --- exponentials, reciprocals -----------------------------------------------------------------------------

constexpr float kLog2E = 1.4426950408889634f;

/// 2^x. Subnormal results become 0, which saves the instructions that preserve them.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
/// 1 / x; subnormal results become 0.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// --- reductions (fixed order, so deterministic) ------------------------------------------------------------

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}
/// Sum over the block, returned to all threads. `shared` holds 32 floats; blockDim.x is a multiple of 32.
__device__ __forceinline__ float block_sum(float x, float* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  x = warp_sum(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? shared[lane] : 0.0f);
  __syncthreads();
  return x;
}

// --- amax --------------------------------------------------------------------------------------------------

/// Bits of |x|. As integers they are ordered NaN > inf > finite, so an integer max never loses a NaN.
__device__ __forceinline__ uint32_t abs_bits(float x) {
  return __float_as_uint(x) & 0x7fffffffu;
}
/// Updates *amax with the block's largest abs_bits. All threads of the block must call it. `shared` holds 32 words.
__device__ __forceinline__ void block_update_amax(uint32_t bits, float* amax, uint32_t* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  bits = __reduce_max_sync(kAllLanes, bits);
  if (lane == 0) shared[warp] = bits;
  __syncthreads();
  if (warp == 0) {
    bits = __reduce_max_sync(kAllLanes, lane < warps ? shared[lane] : 0u);
    // The plain read avoids most atomics, because amax only grows within a step.
    if (lane == 0 && bits > __float_as_uint(*reinterpret_cast<volatile float*>(amax)))
      atomicMax(reinterpret_cast<unsigned int*>(amax), bits);
  }
  __syncthreads();
}

// --- FP8 ---------------------------------------------------------------------------------------------------

template <DType type>
constexpr __nv_fp8_interpretation_t kInterpretation = type == DType::e4m3 ? __NV_E4M3 : __NV_E5M2;

/// Saturating conversion with round to nearest even: one byte, or two in memory order (low byte first).
template <DType type>
__device__ __forceinline__ uint8_t to_fp8(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kInterpretation<type>);
}
template <DType type>
__device__ __forceinline__ uint16_t to_fp8x2(float x, float y) {
  return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, kInterpretation<type>);
}

/// Transposes 4 x 4 bytes: column[j] holds byte j of the four rows, that of the first row in its lowest byte.
__device__ __forceinline__ void transpose_4x4(const uint32_t (&row)[4], uint32_t (&column)[4]) {
  const uint32_t low01 = __byte_perm(row[0], row[1], 0x5140), low23 = __byte_perm(row[2], row[3], 0x5140);
  const uint32_t high01 = __byte_perm(row[0], row[1], 0x7362), high23 = __byte_perm(row[2], row[3], 0x7362);
  column[0] = __byte_perm(low01, low23, 0x5410);
  column[1] = __byte_perm(low01, low23, 0x7632);
  column[2] = __byte_perm(high01, high23, 0x5410);
  column[3] = __byte_perm(high01, high23, 0x7632);
}

/// Counters of one thread; see Fp8Counters.
struct ThreadCounters {
  unsigned saturated = 0;
  unsigned flushed = 0;
};
template <DType type>
__device__ __forceinline__ void count_value(float x, float scaled, uint8_t q, ThreadCounters& counters) {
  counters.saturated += isfinite(x) && fabsf(scaled) > fp8_max(type) ? 1u : 0u;
  counters.flushed += x != 0.0f && (q & 0x7f) == 0 ? 1u : 0u;
}
/// Adds the warp's counters. All threads of the warp must call it. `elements`: elements that the calling thread
/// processed.
__device__ __forceinline__ void add_counters(const ThreadCounters& counters, unsigned elements,
                                             Fp8Counters* out) {
  const unsigned saturated = __reduce_add_sync(kAllLanes, counters.saturated);
  const unsigned flushed = __reduce_add_sync(kAllLanes, counters.flushed);
  const unsigned total = __reduce_add_sync(kAllLanes, elements);
  if (threadIdx.x % kWarpSize == 0) {
    if (saturated > 0) atomicAdd(&out->saturated, static_cast<unsigned long long>(saturated));
    if (flushed > 0) atomicAdd(&out->flushed, static_cast<unsigned long long>(flushed));
    atomicAdd(&out->total, static_cast<unsigned long long>(total));
  }
}

inline unsigned ceil_div(int64_t a, int64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}
inline int sm_count(const Context& context) {
  int count = 0;
  TE_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, context.ordinal()));
  return count;
}

/// Lets a kernel use `bytes` of dynamic shared memory.
template <class... Params>
void allow_shared_memory(const Context& context, void (*kernel)(Params...), size_t bytes) {
  const DeviceCaps& caps = device_caps(context);
  TE_CHECK(bytes <= static_cast<size_t>(caps.shared_bytes),
           "a kernel needs {} bytes of shared memory, but {} has {}", bytes, caps.gpu, caps.shared_bytes);
  TE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace te::kernels
