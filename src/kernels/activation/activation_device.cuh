// The sigmoid that the activations' kernels take activation_math.h's formulas from.
#pragma once

#include <cuda_bf16.h>

#include "kernels/activation/activation_math.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {

/// FP32 tensors get the accurate exponential; for 16 bits the fast one's relative error (below 1e-5) is far
/// inside the rounding of the result. Every kernel of one type uses the same, so fused equals unfused.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
template <>
__device__ __forceinline__ float sigmoid<__nv_bfloat16>(float x) {
  return reciprocal_fast(1.0f + exp2_fast(x * -kLog2E));
}
template <>
__device__ __forceinline__ float sigmoid<__half>(float x) {
  return reciprocal_fast(1.0f + exp2_fast(x * -kLog2E));
}

/// s of activation_math.h.
template <ActivationKind kind, class T>
__device__ __forceinline__ float activation_factor(float x) {
  if constexpr (has_sigmoid(kind))
    return sigmoid<T>(activation_argument<kind>(x));
  else
    return plain_factor<kind>(x);
}

/// The sigmoid of several at a time, written so that their latencies overlap: left alone the compiler takes them one by
/// one where registers are short.
template <int kCount>
__device__ __forceinline__ void sigmoids(float (&x)[kCount]) {
#pragma unroll
  for (float& value : x) value *= -kLog2E;
#pragma unroll
  for (float& value : x) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(value));
#pragma unroll
  for (float& value : x) value += 1.0f;
#pragma unroll
  for (float& value : x) asm volatile("rcp.approx.ftz.f32 %0, %0;" : "+f"(value));
}

}  // namespace te::kernels::cuda
