// FP8 GEMMs with scales of 128 values (ScaleLayout::vectors and blocks) by te-train's own Hopper kernels, which
// block_scaled_mainloop.cuh describes. gemm() runs them depending on ExecutionOptions::block_scaled_gemm
// (gemm_cuda.cpp): by default if the algorithm search measures them to be faster than cuBLASLt's kernels.
//
// Accumulation: tensor cores accumulate over 128 values of k. Each partial sum, multiplied by both of its scales, is
// added to the FP32 accumulator in ascending order of k. Results are deterministic and bitwise equal for all kernels
// here.
#pragma once

#include <array>

#include "kernels/gemm/gemm.h"

namespace te::kernels {

/// Rows x columns of a block's tile; "ordered": its two warpgroups alternate in issuing their MMAs (ordered barrier).
/// ExecutionOptions::block_scaled_gemm n selects the n-th kernel, counted from 1.
constexpr std::array<const char*, 6> kBlockScaledKernels{
    "256 x 128", "256 x 128 ordered", "128 x 192", "128 x 192 ordered", "128 x 128", "128 x 128 ordered"};

/// Whether the kernels support a GEMM: a has E4M3 or E5M2 values with vectors, b has E4M3 values. If b has blocks (a
/// weight), the result is BF16, with or without bias. If b has vectors (wgrad), the result is FP32 or BF16, and is
/// written or accumulated (in BF16, the rounded sum is accumulated). Sizes as in gemm(); values and result must be
/// aligned to 16 bytes.
bool is_block_scaled(const Gemm& args);

}  // namespace te::kernels
