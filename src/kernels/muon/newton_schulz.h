// The orthogonalization of Muon: a quintic Newton-Schulz iteration, made of GEMMs.
//
// With X = U S V^T, n = min(rows, cols) and (a, b, c) = (3.4445, -4.7750, 2.0315), from X = x / (|x| + 1e-7), |x| the
// Frobenius norm:
//   rows <= cols   A = X X^T,  B = b A + c A A,  X = a X + B X
//   rows >  cols   A = X^T X,  B = b A + c A A,  X = a X + X B      (the same of the transpose, without making it)
// Five iterations bring singular values that are not tiny into [0.7, 1.2], not to 1: the coefficients (Jordan et al.,
// 2024; arXiv 2502.16982) buy speed with that.
//
// Everything is kept in x's dtype, BF16 in training as published; each product, each B and each X is rounded once, from
// FP32. On the CPU the same values are rounded alike; an FP32 model iterates in FP32.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

struct NewtonSchulz {
  Tensor x;                   ///< fp32, bf16 or fp16 [rows, cols], in/out
  Tensor product;             ///< scratch of x's shape and dtype
  Tensor gram, gram_squared;  ///< scratch [n, n] of x's dtype
  Tensor sum;                 ///< scratch fp32 [1]
  Tensor scratch;             ///< of sum_of_squares (kernels/grad_norm)
  int64_t iterations = 5;
};
void newton_schulz(const Context& context, const NewtonSchulz& args);

}  // namespace te::kernels
