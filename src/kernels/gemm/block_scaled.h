// FP8 GEMMs with scales of 128 values (ScaleLayout::vectors and blocks) by te-train's own kernels for Hopper, of which
// block_scaled_mainloop.cuh is the essay. gemm() takes them where ExecutionOptions::block_scaled_gemm says so
// (gemm_cuda.cpp): by default where the search for a GEMM's algorithm finds them faster than cuBLASLt's.
//
// Sums: tensor cores add the products of 128 values of k; each such sum, multiplied by the product of its two scales,
// is added to the result's FP32 sum, in the order of k. A call repeated gives the same bits, and so do all kernels
// here.
#pragma once

#include <array>

#include "kernels/gemm/gemm.h"

namespace te::kernels {

/// Rows x columns of a block's tile; "in turns": its two warpgroups start their multiplications in turns.
/// ExecutionOptions::block_scaled_gemm n asks for the n-th, counted from 1.
constexpr std::array<const char*, 6> kBlockScaledKernels{
    "256 x 128", "256 x 128 in turns", "128 x 192", "128 x 192 in turns", "128 x 128", "128 x 128 in turns"};

/// True for what the kernels multiply: a with vectors in E4M3 or E5M2, b in E4M3; with blocks (a weight) into BF16,
/// with or without a bias, with vectors (a weight's gradient) into FP32 or BF16, which is written or added to (BF16:
/// the rounded sum). Sizes as in gemm(); values and result aligned to 16 bytes.
bool is_block_scaled(const Gemm& args);

}  // namespace te::kernels
