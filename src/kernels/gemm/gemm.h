// Matrix products: cuBLASLt on a GPU; OpenBLAS on the CPU, on values rounded exactly as the GPU rounds them.
//
//   out[m, n] = (accumulate ? out : 0) + a_scale_inv * b_scale_inv * op(a) * op(b) + bias[n]
//
// All matrices are dense and row-major; op(x) is x or its transpose. With y = x W^T, W [N, K]:
//   fprop  y [M, N]  = x [M, K] * W^T          trans_b
//   dgrad  dx [M, K] = dy [M, N] * W
//   wgrad  dW [N, K] += dy^T * x               trans_a, accumulate
// FP8 operands (E4M3 or E5M2, not both E5M2) exist only in the form a [m, k], b [n, k] with trans_b: the
// transposed copies of fp8_output.h bring dgrad and wgrad into it. Products and sums are FP32; the result is
// rounded once.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

struct Gemm {
  Tensor a;    ///< [m, k], or [k, m] with trans_a; fp32, bf16 or FP8
  Tensor b;    ///< [k, n], or [n, k] with trans_b; same dtype as a (FP8: either format)
  Tensor out;  ///< [m, n]; fp32 or bf16
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;             ///< add to out instead of overwriting it
  Tensor bias;                         ///< optional [n], bf16 or fp32: out's dtype
  const float* a_scale_inv = nullptr;  ///< device scalars, required with FP8
  const float* b_scale_inv = nullptr;
  bool fast_accumulation = false;  ///< FP8 on Hopper: FP22-like accumulator without promotion; for fprop only
};

/// FP8: m, n and k must be multiples of 16 (leading dimensions of 16 bytes; checked with the tensor named).
void gemm(const Context& context, const Gemm& args);

/// FLOPs of the product: 2 m n k.
int64_t gemm_flops(const Gemm& args);

}  // namespace te::kernels
