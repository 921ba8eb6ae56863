// Orthogonalization of Muon: a quintic Newton-Schulz iteration built from GEMMs.
//
// With X = U S V^T, n = min(rows, cols), (a, b, c) = (3.4445, -4.7750, 2.0315), and X initialized to x / (|x| + 1e-7),
// where |x| is the Frobenius norm:
//   rows <= cols   A = X X^T,  B = b A + c A A,  X = a X + B X
//   rows >  cols   A = X^T X,  B = b A + c A A,  X = a X + X B      (equals the iteration on the transpose)
// Five iterations bring all but tiny singular values into [0.7, 1.2]; the coefficients (Jordan et al., 2024; arXiv
// 2502.16982) trade convergence to 1 for speed.
//
// Intermediate results have x's dtype, in training BF16 as published. Each GEMM result, each B and each X is rounded
// once from FP32, on the CPU as on the GPU. An FP32 model iterates in FP32.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

struct NewtonSchulz {
  Tensor x;                   ///< fp32, bf16 or fp16 [rows, cols], in/out
  Tensor product;             ///< scratch with the shape and dtype of x
  Tensor gram, gram_squared;  ///< scratch [n, n], dtype of x
  Tensor sum;                 ///< scratch fp32 [1]
  Tensor scratch;             ///< scratch of sum_of_squares (kernels/grad_norm)
  int64_t iterations = 5;
};
void newton_schulz(const Context& context, const NewtonSchulz& args);

}  // namespace te::kernels
