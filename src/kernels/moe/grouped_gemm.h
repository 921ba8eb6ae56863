// Grouped GEMMs of a mixture of experts. Expert e has rows [offsets[e], offsets[e + 1]) of the permuted tensors
// (permute.h) and its own weight. With y = x W^T, W [E, N, K]:
//   fprop  y [rows, N]  (+)= x * W[e]^T         grouped_gemm, trans_b
//   dgrad  dx [rows, K] (+)= dy * W[e]          grouped_gemm
//   wgrad  dW[e] [N, K] (+)= dy^T * x           grouped_wgrad: contracts over the rows of e; zero if e has none
// Offsets are read on the device. Rows from offsets[E] on are neither read nor written. Multiplication and accumulation
// are FP32, and the result is rounded once; on Hopper GPUs a BF16 result is rounded before it is added to out, too.
// Deterministic; on the CPU results do not depend on the number of threads.
//
// FP8 operands (E4M3 or E5M2, not both E5M2) are stored with the contraction last, as in gemm.h: weights for dgrad as
// transposed copies of the tensors of all experts, operands of wgrad likewise, but in blocks of rows (row_blocks.h).
// Inverse scales are one per expert (ScaleLayout::tensor, [E]), or per vector and block of the whole tensor
// (ScaleLayout::vectors, blocks); then weights of experts, and in wgrad their rows, start at multiples of 128.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"

namespace te::kernels {

struct GroupedGemm {
  Matrix a;  ///< [rows, k]; fp32, bf16, fp16 or FP8
  /// [E * k, n], or [E * n, k] with trans_b; dtype of a. FP8 like a, then [n, E * k] without trans_b.
  Matrix b;
  Tensor offsets;  ///< i32 [E + 1]
  Tensor out;      ///< [rows, n] fp32 or dtype of a; FP8: fp32 or bf16
  bool trans_b = false;
  bool accumulate = false;         ///< add to out instead of overwriting it
  bool fast_accumulation = false;  ///< as in gemm.h
};
void grouped_gemm(const Context& context, const GroupedGemm& args);

struct GroupedWgrad {
  Matrix a;        ///< [rows, m]; FP8: [m, rows]
  Matrix b;        ///< [rows, n]; FP8: [n, rows]
  Tensor offsets;  ///< i32 [E + 1]
  /// Of the offsets (permute.h). Tensor cores need multiples of 16, for FP8 of kRowBlock.
  int64_t alignment = 1;
  Tensor out;               ///< [E * m, n] fp32 or bf16
  bool accumulate = false;  ///< add to out instead of overwriting it
};
void grouped_wgrad(const Context& context, const GroupedWgrad& args);

}  // namespace te::kernels
