// GEMMs: cuBLASLt on a GPU; OpenBLAS on the CPU, on values rounded exactly as the GPU rounds them.
//
//   out[m, n] = (accumulate ? out : 0) + op(a) * op(b) + bias[n]
//
// All matrices are dense and row-major; op(x) is x or its transpose. With y = x W^T, W [N, K]:
//   fprop  y [M, N]  = x [M, K] * W^T          trans_b
//   dgrad  dx [M, K] = dy [M, N] * W
//   wgrad  dW [N, K] += dy^T * x               trans_a, accumulate
// FP8 operands (E4M3 or E5M2, not both E5M2) exist only in the form a [m, k], b [n, k] with trans_b: the
// transposed copies of fp8_output.h bring dgrad and wgrad into it. Their inverse scales (matrix.h) multiply the
// finished sums, sum * a_scale[row] * b_scale[column], or those of every 128 values of k (vectors by vectors or
// blocks). FP32 operands give an FP32 result (on the CPU a rounded one too), FP16 operands an FP16 or FP32 one, BF16
// and FP8 operands a BF16 or FP32 one. Products and sums are FP32 (on a GPU whose context has tf32, products of FP32
// operands are of values rounded to TF32); the result is rounded once. An accumulating GEMM with a BF16 result (wgrad
// into BF16 main gradients) adds the old value in FP32; a GPU may round the GEMM's result to BF16 before that. GEMMs
// with an activation: gemm_activation.h. FP8 with scales of 128 values has kernels of its own, off unless the context's
// options ask for them (block_scaled.h). GEMMs of a few rows on a GPU do not go through cuBLASLt: they are as fast as
// memory gives the weights (gemm_few_rows.cu).
//
// Deterministic: a call repeated in a process gives the same bits on both backends (split sums are reduced in
// a fixed order, and only in FP32). On the CPU the bits do not depend on the number of threads. On a GPU they
// depend on the algorithm, which is chosen at the first use of a problem (shapes, dtypes, layout, alignment)
// and kept. How it is chosen the context's GemmAutotune says (core/device.h); with `off` it is a function of the
// problem, the GPU and cuBLASLt's version. Timing waits for the stream and borrows device memory (of out's size for an
// accumulating GEMM; twice the L2 cache for a small one). Choices are kept in a file (gemm_cache.h).
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"

namespace te::kernels {

struct Gemm {
  Matrix a;    ///< [m, k], or [k, m] with trans_a; fp32, bf16, fp16 or FP8
  Matrix b;    ///< [k, n], or [n, k] with trans_b; same dtype as a (FP8: either format)
  Tensor out;  ///< [m, n]; fp32, bf16 or fp16
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;         ///< add to out instead of overwriting it
  Tensor bias;                     ///< optional [n], fp32, bf16 or fp16: out's dtype
  bool fast_accumulation = false;  ///< FP8 on Hopper: FP22-like accumulator without promotion; for fprop only
  /// b was complete before the work that was launched last on the stream: a GPU may read it before that has ended.
  bool early_b = false;
};

/// Rows with which generation reads weights: a GPU has a kernel of its own for these (gemm_few_rows.cu).
constexpr int64_t kFewRows = 8;
/// True when that kernel takes the GEMM, sizes and alignments permitting: a [m, k] with at most kFewRows rows and b
/// [n, k] with trans_b, of BF16 or E4M3, no accumulation.
bool has_few_rows(const Gemm& args);

/// FP8: m, n and k must be multiples of 16 (leading dimensions of 16 bytes; checked with the tensor named), but for m
/// with has_few_rows().
void gemm(const Context& context, const Gemm& args);

/// FLOPs of the GEMM: 2 m n k.
int64_t gemm_flops(const Gemm& args);

}  // namespace te::kernels
