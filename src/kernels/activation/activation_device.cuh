// Sigmoid for the activation kernels, which apply the formulas of activation_math.h.
#pragma once

#include <cuda_bf16.h>

#include "kernels/activation/activation_math.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {

/// FP32 tensors use the accurate exponential. For 16-bit types the relative error of the fast one (below 1e-5) is far
/// below the rounding of the result. All kernels of a type use the same function, so fused and separate kernels agree.
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

/// Factor s of activation_math.h.
template <ActivationKind kind, class T>
__device__ __forceinline__ float activation_factor(float x) {
  if constexpr (has_sigmoid(kind))
    return sigmoid<T>(activation_argument<kind>(x));
  else
    return plain_factor<kind>(x);
}

/// Sigmoids of several values, with asm volatile so that their latencies overlap. Otherwise the compiler computes them
/// one after another when registers are scarce.
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
