// The sigmoid that the activations' kernels take activation_math.h's formulas from.
#pragma once

#include <cuda_bf16.h>

#include "kernels/activation/activation_math.h"

namespace te::kernels::cuda {

/// FP32 tensors get the accurate exponential; for BF16 the fast one's relative error (below 1e-5) is far
/// inside the rounding of the result. Every kernel of one type uses the same, so fused equals unfused.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
template <>
__device__ __forceinline__ float sigmoid<__nv_bfloat16>(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

}  // namespace te::kernels::cuda
