// Building blocks of GEMMs with one to eight rows by mma.sync (gemm_few_rows.cu and decode_megakernel.cu). Tensor cores
// multiply 16 rows of b by 8 rows of a, from fragments of which each lane loads 16 bytes of a row. The assignment of k
// indices to fragment elements is arbitrary, as long as a and b agree. Also the activations of such GEMMs.
#pragma once

#include "core/dtype.h"
#include "kernels/activation/activation_device.cuh"

namespace te::kernels::cuda {

constexpr int kFewRowsCols = 16;  ///< columns of a result tile: rows of b

/// sums += a tile of b [16, k] times rows of a [8, k]^T, where k is 16 in BF16 or 32 in E4M3. Element i of a lane is
/// column group (+ 8 for i >= 2), row 2 * member (+ 1 for odd i); lane is member lane % 4 of group lane / 4.
template <DType kType>
__device__ __forceinline__ void multiply(float (&sums)[4], uint32_t low0, uint32_t high0, uint32_t low1,
                                         uint32_t high1, uint32_t a0, uint32_t a1) {
  if constexpr (kType == DType::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(low0), "r"(high0), "r"(low1), "r"(high1), "r"(a0), "r"(a1));
  } else {
#if __CUDA_ARCH__ >= 890  // older GPUs have no FP8, and DeviceCaps::fp8 is false
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(low0), "r"(high0), "r"(low1), "r"(high1), "r"(a0), "r"(a1));
#endif
  }
}

/// multiply() with 16 bytes each of rows `group` (low) and group + 8 (high) of b, and of row `group` of a.
template <DType kType>
__device__ __forceinline__ void multiply_runs(float (&sums)[4], const uint4& low, const uint4& high,
                                              const uint4& a) {
  multiply<kType>(sums, low.x, high.x, low.y, high.y, a.x, a.y);
  multiply<kType>(sums, low.z, high.z, low.w, high.w, a.z, a.w);
}

/// Activation of gate (and up), with the fast sigmoid for 16-bit values.
template <ActivationKind kind, class T>
__device__ __forceinline__ float activate(float x, float up, float clamp) {
  const float gate = gate_within<kind>(x, clamp);
  return activation_value<kind>(gate, up_within<kind>(up, clamp), activation_factor<kind, T>(gate));
}

}  // namespace te::kernels::cuda
