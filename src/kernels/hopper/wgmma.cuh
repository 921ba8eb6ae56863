// Warpgroup GEMMs (wgmma) for 64 rows of the result, with accumulators in registers. Thread t holds rows t / 32 * 16 +
// t % 32 / 4 (+ 8) and columns 8 g + t % 4 * 2 (+ 1): d[4 g + 2 * (row + 8) + (column + 1)]. See PTX ISA 8.1, "wgmma".
//
// GEMMs run asynchronously: wgmma_fence, GEMMs, wgmma_commit, other instructions, wgmma_wait.
#pragma once

#include "core/dtype.h"
#include "kernels/hopper/tile.cuh"

namespace te::kernels::hopper {

/// Required before the first GEMM whose registers were written by other instructions.
TE_INSTRUCTION(wgmma_fence, "wgmma.fence.sync.aligned;")
TE_INSTRUCTION(wgmma_commit, "wgmma.commit_group.sync.aligned;")
/// Keeps the compiler from reading accumulators before this point.
template <int kCount>
__device__ __forceinline__ void warpgroup_fence_operand(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
/// Waits until at most kPending committed groups are in flight. The arguments are the accumulators that are then
/// complete.
template <int kPending, int... kCounts>
__device__ __forceinline__ void wgmma_wait(float (&... d)[kCounts]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (warpgroup_fence_operand(d), ...);
}

#define TE_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TE_D8(d, i) TE_D4(d, i), TE_D4(d, i + 4)
#define TE_D16(d, i) TE_D4(d, i), TE_D4(d, i + 4), TE_D4(d, i + 8), TE_D4(d, i + 12)
#define TE_D32(d, i) TE_D16(d, i), TE_D16(d, i + 16)
#define TE_R4 "%0, %1, %2, %3"
#define TE_R8 TE_R4 ", %4, %5, %6, %7"
#define TE_R16 TE_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TE_R32                                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20," \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TE_R64                                                                                   \
  TE_R32                                                                                         \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TE_R96                                                                                   \
  TE_R64                                                                                         \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TE_WGMMA_OF(SHAPE, D, OPERANDS, ADD, MAJORS)                                                 \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" SHAPE " {" D \
  "}, " OPERANDS ", add, 1, 1" MAJORS ";\n}\n"
#define TE_WGMMA(N, D, OPERANDS, ADD, MAJORS) \
  TE_WGMMA_OF(N "k16.f32.bf16.bf16", D, OPERANDS, ADD, ", " MAJORS)

/// The contiguous dimension of an operand in shared memory: the summed one (k) or the other one (mn).
enum class Major : int { k = 0, mn = 1 };

/// d[64 x kN] (+)= a[64 x 16] b[16 x kN], both in shared memory; if `add` is false, d is overwritten.
template <int kN, Major kA, Major kB>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b, bool add) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 192);
#define TE_OPERANDS \
  "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB))
  if constexpr (kN == 8)
    asm volatile(TE_WGMMA("8", TE_R4, "%4, %5", "%6", "%7, %8") : TE_D4(d, 0) : TE_OPERANDS);
  else if constexpr (kN == 16)
    asm volatile(TE_WGMMA("16", TE_R8, "%8, %9", "%10", "%11, %12") : TE_D8(d, 0) : TE_OPERANDS);
  else if constexpr (kN == 32)
    asm volatile(TE_WGMMA("32", TE_R16, "%16, %17", "%18", "%19, %20") : TE_D16(d, 0) : TE_OPERANDS);
  else if constexpr (kN == 64)
    asm volatile(TE_WGMMA("64", TE_R32, "%32, %33", "%34", "%35, %36") : TE_D32(d, 0) : TE_OPERANDS);
  else if constexpr (kN == 128)
    asm volatile(TE_WGMMA("128", TE_R64, "%64, %65", "%66", "%67, %68")
                 : TE_D32(d, 0), TE_D32(d, 32)
                 : TE_OPERANDS);
  else
    asm volatile(TE_WGMMA("192", TE_R96, "%96, %97", "%98", "%99, %100")
                 : TE_D32(d, 0), TE_D32(d, 32), TE_D32(d, 64)
                 : TE_OPERANDS);
#undef TE_OPERANDS
}

/// The same with a in registers: a[0] and a[1] hold columns t % 4 * 2 (+ 1) of the two rows, a[2] and a[3] the columns
/// 8 further on, as in the accumulator layout.
template <int kN, Major kB>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const uint32_t* a, uint64_t b, bool add) {
  static_assert(kN == 64 || kN == 128);
#define TE_OPERANDS \
  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kB))
  if constexpr (kN == 64)
    asm volatile(TE_WGMMA("64", TE_R32, "{%32, %33, %34, %35}, %36", "%37", "%38")
                 : TE_D32(d, 0)
                 : TE_OPERANDS);
  else
    asm volatile(TE_WGMMA("128", TE_R64, "{%64, %65, %66, %67}, %68", "%69", "%70")
                 : TE_D32(d, 0), TE_D32(d, 32)
                 : TE_OPERANDS);
#undef TE_OPERANDS
}

/// FP8: d[64 x kN] (+)= a[64 x 32] b[32 x kN], both in shared memory with the summed dimension contiguous (the only
/// layout that Hopper supports). Sums keep 13 to 14 bits below the largest product of a group.
template <int kN, DType kA, DType kB>
__device__ __forceinline__ void wgmma_fp8(float (&d)[kN / 2], uint64_t a, uint64_t b, bool add) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 192);
  static_assert((kA == DType::e4m3 || kA == DType::e5m2) && kB == DType::e4m3);
#define TE_OPERANDS "l"(a), "l"(b), "r"(static_cast<int>(add))
#define TE_WGMMA_FP8(TYPES)                                                                                \
  if constexpr (kN == 8)                                                                                   \
    asm volatile(TE_WGMMA_OF("8k32.f32." TYPES, TE_R4, "%4, %5", "%6", "") : TE_D4(d, 0) : TE_OPERANDS);   \
  else if constexpr (kN == 16)                                                                             \
    asm volatile(TE_WGMMA_OF("16k32.f32." TYPES, TE_R8, "%8, %9", "%10", "") : TE_D8(d, 0) : TE_OPERANDS); \
  else if constexpr (kN == 32)                                                                             \
    asm volatile(TE_WGMMA_OF("32k32.f32." TYPES, TE_R16, "%16, %17", "%18", "")                            \
                 : TE_D16(d, 0)                                                                            \
                 : TE_OPERANDS);                                                                           \
  else if constexpr (kN == 64)                                                                             \
    asm volatile(TE_WGMMA_OF("64k32.f32." TYPES, TE_R32, "%32, %33", "%34", "")                            \
                 : TE_D32(d, 0)                                                                            \
                 : TE_OPERANDS);                                                                           \
  else if constexpr (kN == 128)                                                                            \
    asm volatile(TE_WGMMA_OF("128k32.f32." TYPES, TE_R64, "%64, %65", "%66", "")                           \
                 : TE_D32(d, 0), TE_D32(d, 32)                                                             \
                 : TE_OPERANDS);                                                                           \
  else                                                                                                     \
    asm volatile(TE_WGMMA_OF("192k32.f32." TYPES, TE_R96, "%96, %97", "%98", "")                           \
                 : TE_D32(d, 0), TE_D32(d, 32), TE_D32(d, 64)                                              \
                 : TE_OPERANDS);
  if constexpr (kA == DType::e4m3) {
    TE_WGMMA_FP8("e4m3.e4m3")
  } else {
    TE_WGMMA_FP8("e5m2.e4m3")
  }
#undef TE_WGMMA_FP8
#undef TE_OPERANDS
}
#undef TE_D4
#undef TE_D8
#undef TE_D16
#undef TE_D32
#undef TE_R4
#undef TE_R8
#undef TE_R16
#undef TE_R32
#undef TE_R64
#undef TE_R96
#undef TE_WGMMA
#undef TE_WGMMA_OF

/// d (+)= a b^T, [64 x kN], summed over kDepth columns of both. Column tiles are a_tile_bytes and b_tile_bytes apart.
template <int kN, int kDepth>
__device__ __forceinline__ void mma_nt(float (&d)[kN / 2], uint32_t a, uint32_t a_tile_bytes, uint32_t b,
                                       uint32_t b_tile_bytes, bool add = false) {
#pragma unroll
  for (int c = 0; c < kDepth / kTileColumns; ++c)
#pragma unroll
    for (int i = 0; i < kTileColumns / 16; ++i)
      wgmma<kN, Major::k, Major::k>(d, advance(descriptor(a), c * a_tile_bytes + i * 32),
                                    advance(descriptor(b), c * b_tile_bytes + i * 32), add || c + i > 0);
}
/// d (+)= a b, [64 x kN], summed over kDepth rows of b; a is in registers (packed accumulators), b_tile_bytes as above.
template <int kN, int kDepth>
__device__ __forceinline__ void mma_nn(float (&d)[kN / 2], const uint32_t (&a)[kDepth / 4], uint32_t b,
                                       uint32_t b_tile_bytes, bool add) {
#pragma unroll
  for (int i = 0; i < kDepth / 16; ++i)
    wgmma<kN, Major::mn>(d, a + i * 4, advance(descriptor(b, b_tile_bytes), i * 16 * kTileRowBytes),
                         add || i > 0);
}
/// d = a^T b, [64 x 64], summed over kDepth rows of both.
template <int kDepth>
__device__ __forceinline__ void mma_tn(float (&d)[32], uint32_t a, uint32_t b) {
#pragma unroll
  for (int i = 0; i < kDepth / 16; ++i)
    wgmma<64, Major::mn, Major::mn>(d, advance(descriptor(a), i * 16 * kTileRowBytes),
                                    advance(descriptor(b), i * 16 * kTileRowBytes), i > 0);
}

}  // namespace te::kernels::hopper
