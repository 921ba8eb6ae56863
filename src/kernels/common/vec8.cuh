// Eight consecutive values of a row in registers, the unit of work of the memory-bound kernels. FP32 is loaded and
// stored with two 16-byte accesses, BF16 and FP16 with one, and the latter stay packed.
#pragma once

#include "kernels/common/cuda_common.cuh"

namespace te::kernels {

template <class T>
struct Vec8;

template <>
struct Vec8<float> {
  float value[8];

  __device__ __forceinline__ float get(int j) const { return value[j]; }
  /// Sets elements j and j + 1 (j even), rounded to the type.
  __device__ __forceinline__ void set_pair(int j, float a, float b) { value[j] = a, value[j + 1] = b; }
  __device__ __forceinline__ void load_aligned(const float* p) {
    const float4 low = reinterpret_cast<const float4*>(p)[0], high = reinterpret_cast<const float4*>(p)[1];
    value[0] = low.x, value[1] = low.y, value[2] = low.z, value[3] = low.w;
    value[4] = high.x, value[5] = high.y, value[6] = high.z, value[7] = high.w;
  }
  __device__ __forceinline__ void store_aligned(float* p) const {
    reinterpret_cast<float4*>(p)[0] = make_float4(value[0], value[1], value[2], value[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(value[4], value[5], value[6], value[7]);
  }
  /// Updates the running maximum of the magnitudes; amax_bits() converts it to abs_bits.
  __device__ __forceinline__ void update_amax(uint32_t& largest) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, abs_bits(value[j]));
  }
  static __device__ __forceinline__ uint32_t amax_bits(uint32_t largest) {
    return largest;
  }
  __device__ __forceinline__ void clobber_registers() {}
};

template <>
struct Vec8<__nv_bfloat16> {
  uint32_t word[4];  // two values each, the first one in the low half

  __device__ __forceinline__ float get(int j) const {
    return __uint_as_float(j % 2 == 0 ? word[j / 2] << 16 : word[j / 2] & 0xffff0000u);
  }
  __device__ __forceinline__ void set_pair(int j, float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    word[j / 2] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ __forceinline__ void load_aligned(const __nv_bfloat16* p) {
    const uint4 all = *reinterpret_cast<const uint4*>(p);
    word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
  }
  __device__ __forceinline__ void store_aligned(__nv_bfloat16* p) const {
    *reinterpret_cast<uint4*>(p) = make_uint4(word[0], word[1], word[2], word[3]);
  }
  // BF16 bits without the sign are ordered like integers, so both halves are compared at once.
  __device__ __forceinline__ void update_amax(uint32_t& largest) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) largest = __vmaxu2(largest, word[k] & 0x7fff7fffu);
  }
  static __device__ __forceinline__ uint32_t amax_bits(uint32_t largest) {
    return max(largest & 0xffff0000u, largest << 16);
  }
  /// Makes the compiler unpack the values again instead of keeping the unpacked values of an earlier phase: eight
  /// registers instead of four would limit the loads in flight.
  __device__ __forceinline__ void clobber_registers() {
#pragma unroll
    for (int k = 0; k < 4; ++k) asm volatile("" : "+r"(word[k]));
  }
};

template <>
struct Vec8<__half> {
  uint32_t word[4];  // two values each, the first one in the low half

  __device__ __forceinline__ float get(int j) const {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(word[j / 2] >> (j % 2 * 16))));
  }
  __device__ __forceinline__ void set_pair(int j, float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    word[j / 2] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ __forceinline__ void load_aligned(const __half* p) {
    const uint4 all = *reinterpret_cast<const uint4*>(p);
    word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
  }
  __device__ __forceinline__ void store_aligned(__half* p) const {
    *reinterpret_cast<uint4*>(p) = make_uint4(word[0], word[1], word[2], word[3]);
  }
  // As in BF16; the maximum is converted at the end.
  __device__ __forceinline__ void update_amax(uint32_t& largest) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) largest = __vmaxu2(largest, word[k] & 0x7fff7fffu);
  }
  static __device__ __forceinline__ uint32_t amax_bits(uint32_t largest) {
    const auto widened = [](uint32_t bits) {
      return __float_as_uint(__half2float(__ushort_as_half(static_cast<unsigned short>(bits))));
    };
    return max(widened(largest >> 16), widened(largest & 0xffffu));
  }
  __device__ __forceinline__ void clobber_registers() {
#pragma unroll
    for (int k = 0; k < 4; ++k) asm volatile("" : "+r"(word[k]));
  }
};

template <class T>
__device__ __forceinline__ Vec8<T> zero_vec8() {
  Vec8<T> result;
#pragma unroll
  for (int j = 0; j < 8; j += 2) result.set_pair(j, 0.0f, 0.0f);
  return result;
}

/// Loads the first `valid` elements from p (none if <= 0) and fills up with zeros. kAligned requires 16-byte alignment
/// and `valid` to be at least 8 or at most 0.
template <bool kAligned, class T>
__device__ __forceinline__ Vec8<T> load_vec8(const T* p, int64_t valid) {
  Vec8<T> result = zero_vec8<T>();
  if constexpr (kAligned) {
    if (valid > 0) result.load_aligned(p);
  } else {
#pragma unroll
    for (int j = 0; j < 8; j += 2)
      result.set_pair(j, j < valid ? load_float(p + j) : 0.0f, j + 1 < valid ? load_float(p + j + 1) : 0.0f);
  }
  return result;
}

template <bool kAligned, class T>
__device__ __forceinline__ void store_vec8(const Vec8<T>& vec, T* p, int64_t valid) {
  if constexpr (kAligned) {
    if (valid > 0) vec.store_aligned(p);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < valid) store_float(p + j, vec.get(j));
  }
}

/// Eight values times a scale, rounded to FP8 and saturated, the first in the lowest byte.
template <DType type, class T>
__device__ __forceinline__ uint2 to_fp8x8(const Vec8<T>& x, float scale) {
  uint32_t word[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t low = to_fp8x2<type>(x.get(4 * half) * scale, x.get(4 * half + 1) * scale);
    const uint32_t high = to_fp8x2<type>(x.get(4 * half + 2) * scale, x.get(4 * half + 3) * scale);
    word[half] = low | high << 16;
  }
  return make_uint2(word[0], word[1]);
}

}  // namespace te::kernels
