// GEMMs: cuBLASLt on a GPU; OpenBLAS on the CPU, with the same roundings as on the GPU.
//
//   out[m, n] = (accumulate ? out : 0) + op(a) * op(b) + bias[n]
//
// All matrices are dense and row-major; op(x) is x or its transpose. With y = x W^T, W [N, K]:
//   fprop  y [M, N]  = x [M, K] * W^T          trans_b
//   dgrad  dx [M, K] = dy [M, N] * W
//   wgrad  dW [N, K] += dy^T * x               trans_a, accumulate
// FP8 operands (E4M3 or E5M2, not both E5M2) are supported only as a [m, k] and b [n, k] with trans_b; the transposed
// copies of fp8_output.h provide this layout for dgrad and wgrad. Their inverse scales (matrix.h) multiply the finished
// sums, sum * a_scale[row] * b_scale[column], or the partial sums over 128 values of k (vectors with vectors or blocks)
// or 32 (both mx). Factors of high-precision operands (matrix.h) multiply the finished sums, too. FP32 operands give an
// FP32 result (on the CPU also a rounded one), FP16 operands an FP16 or FP32 one, BF16 and FP8 operands a BF16 or FP32
// one. Multiplication and accumulation are FP32 (a GPU whose context has tf32 rounds FP32 operands to TF32), and the
// result is rounded once. An accumulating GEMM with a BF16 result (wgrad into BF16 main gradients) adds the old value
// in FP32; a GPU may round the GEMM's result to BF16 before that.
//
// See gemm_activation.h for GEMMs with an activation. On a GPU, GEMMs with few rows do not use cuBLASLt but a kernel
// that is bound by reading the weights (gemm_few_rows.cu).
//
// Deterministic: repeated calls in a process give bitwise equal results on both backends (split-k sums are reduced in a
// fixed order and only in FP32). On the CPU results do not depend on the number of threads. On a GPU they depend on the
// algorithm, which is selected at the first use of a problem (shapes, dtypes, layout, alignment) and kept. The
// context's GemmAutotune controls the selection (core/device.h); with `off` it is a function of the problem, the GPU
// and cuBLASLt's version. Timing synchronizes with the CUDA stream and temporarily allocates device memory (the size of
// out for an accumulating GEMM; twice the L2 cache for a small one). Selections are cached in a file (gemm_cache.h).
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"

namespace te::kernels {

struct Gemm {
  Matrix a;    ///< [m, k], or [k, m] with trans_a; fp32, bf16, fp16, FP8 or E2M1
  Matrix b;    ///< [k, n], or [n, k] with trans_b; same dtype as a (FP8: E4M3 or E5M2)
  Tensor out;  ///< [m, n]; fp32, bf16 or fp16
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;         ///< add to out instead of overwriting it
  Tensor bias;                     ///< optional [n], dtype of out (fp32, bf16 or fp16)
  bool fast_accumulation = false;  ///< FP8 on Hopper: tensor cores' reduced-precision sums; for fprop
  /// b is complete before the last work launched on the CUDA stream, so a GPU may read b before that work ends.
  bool early_b = false;
};

/// Number of rows up to which a GPU runs a dedicated kernel (gemm_few_rows.cu), as in generation.
constexpr int64_t kFewRows = 8;
/// Whether that kernel computes the GEMM, if sizes and alignments permit: a [m, k] with at most kFewRows rows and b [n,
/// k] with trans_b, in BF16 or E4M3 (scales per tensor, row or block), without accumulation.
bool has_few_rows(const Gemm& args);

/// FP8: m, n and k must be multiples of 16, k of 32 with MXFP8 and NVFP4 (leading dimensions of 16 bytes; errors name
/// the tensor), except for m with has_few_rows().
void gemm(const Context& context, const Gemm& args);

/// What computes a GEMM.
enum class GemmKernels : uint8_t {
  hopper,              ///< te-train's kernels, fused with an activation (gemm_activation.h)
  few_rows,            ///< te-train's kernel for up to kFewRows rows
  cublaslt,            ///< on tensor cores
  cublaslt_unaligned,  ///< cuBLASLt without TMA, which needs matrix rows of a multiple of 16 bytes
  cublaslt_fp32,       ///< cuBLASLt on FP32 CUDA cores
  openblas,            ///< on the CPU
  fp8_reference,       ///< OpenBLAS after dequantization, on the CPU
};
TE_NAMES(GemmKernels, "te-train's kernels for Hopper", "te-train's kernel for few rows", "cuBLASLt",
         "cuBLASLt without TMA", "cuBLASLt on FP32 units", "OpenBLAS", "te-train's FP8 reference")
/// The kernels that gemm() uses. Launches nothing and reads no memory.
GemmKernels gemm_kernels(const Context& context, const Gemm& args);

/// Floating-point operations of the GEMM: 2 m n k.
int64_t gemm_flops(const Gemm& args);

}  // namespace te::kernels
