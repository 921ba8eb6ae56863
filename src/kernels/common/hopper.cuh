// Hopper's instructions for kernels that feed tensor cores from shared memory: mbarriers, bulk copies (TMA) and warpgroup
// products (wgmma). Thin wrappers, one instruction each; PTX ISA 8.1, chapters "mbarrier", "cp.async.bulk" and "wgmma".
//
// Tiles in shared memory are rows of 64 BF16 values (128 bytes) in the 128-byte swizzle: the 16-byte unit u of row r lies
// at unit u ^ (r % 8) of that row. A tile starts at a multiple of 1024 bytes. Wider matrices are several such tiles.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace te::kernels::hopper {

constexpr int kWarpgroup = 128;
constexpr int kTileColumns = 64;  ///< BF16 values of a row of a tile
constexpr uint32_t kTileRowBytes = 128;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// --- mbarriers: a phase ends when `count` arrivals and all announced bytes are there ---------------------------

__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
/// Makes initialised barriers visible to bulk copies.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expect_bytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Waits until the phase of this parity has ended.
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// At the barrier of another block of the cluster. (Without .release at the scope of the cluster, which would wait for all
/// that the thread has under way: what is told here is that products have read shared memory.)
__device__ __forceinline__ void arrive_at(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
/// This block's number within its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// A barrier of all threads of the cluster.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// A barrier of some of the block's warps.
template <int kThreads>
__device__ __forceinline__ void sync_warps(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

/// Arrives there without waiting.
template <int kThreads>
__device__ __forceinline__ void arrive_warps(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// --- bulk copies -------------------------------------------------------------------------------------------------

/// A box of a tensor of three dimensions; elements outside of it arrive as zeros.
__device__ __forceinline__ void load_box(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y,
                                         int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// The same for all blocks of the cluster in `ranks` (a bit each), at the same place of their shared memory; each is told by
/// its own barrier.
__device__ __forceinline__ void load_box_for(uint16_t ranks, void* to, const CUtensorMap* map,
                                             uint64_t* barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(ranks)
      : "memory");
}
/// A multiple of 16 bytes, both ends aligned to 16.
__device__ __forceinline__ void load_bytes(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
/// A box from shared memory to a tensor; what lies outside of it is not written. Stores belong to the thread that asks for
/// them: it commits them, and waits until they have read their source.
__device__ __forceinline__ void store_box(const CUtensorMap* map, const void* from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
               : "memory");
}
/// Bytes (a multiple of 16) to global memory, or FP32 values added to what is there.
__device__ __forceinline__ void store_bytes(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void add_floats(float* to, const void* from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until all committed groups but the last kPending have read their source.
template <int kPending = 0>
__device__ __forceinline__ void wait_for_sources() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Until they are done and this thread can see them.
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/// Orders accesses to global memory by bulk copies and by other instructions.
__device__ __forceinline__ void fence_proxies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
/// Orders this thread's writes to shared memory before later reads of it by wgmma and bulk copies.
__device__ __forceinline__ void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Moves registers between warpgroups: all of a warpgroup's warps call it.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Four 8 x 8 matrices of BF16 in the layout of accumulators to shared memory; lane l names the address of row l % 8 of
/// matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
/// The reverse of store_matrices.
__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t (&d)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ float low_bf16(uint32_t packed) {
  return __uint_as_float(packed << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t packed) {
  return __uint_as_float(packed & 0xffff0000u);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// --- warpgroup products ------------------------------------------------------------------------------------------

/// Descriptor of an operand in shared memory. `next_tile_bytes` is the distance of the tiles that hold the next 64
/// columns, of use only where the rows are the dimension that is summed over and the operand is wider than a tile.
__device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t next_tile_bytes = 0) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * kTileRowBytes / 16} << 32;
  return kSwizzle128 | kEightRows | (uint64_t{next_tile_bytes / 16} << 16) | ((address & 0x3ffff) >> 4);
}
/// The operand `bytes` further on.
__device__ __forceinline__ uint64_t advance(uint64_t operand, uint32_t bytes) {
  return operand + (bytes >> 4);
}

/// Before the first product whose registers were written by other instructions.
__device__ __forceinline__ void product_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void product_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending committed groups are under way.
template <int kPending>
__device__ __forceinline__ void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// After a wait, for accumulators that were in flight: keeps the compiler from reading them earlier.
template <int kCount>
__device__ __forceinline__ void arrived(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define TE_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TE_D16(d, i) TE_D4(d, i), TE_D4(d, i + 4), TE_D4(d, i + 8), TE_D4(d, i + 12)
#define TE_D32(d, i) TE_D16(d, i), TE_D16(d, i + 16)
#define TE_R32                                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TE_R64                                                                              \
  TE_R32                                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define TE_R96                                                                              \
  TE_R64                                                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

/// How an operand lies in shared memory: rows of it are summed over (rows) or its columns are (columns).
enum class Sum : int { columns = 0, rows = 1 };

/// d[64 x kN] (+)= a[64 x 16] b[16 x kN], both from shared memory; `add` false: d is written.
/// Thread t of the warpgroup holds rows t / 32 * 16 + t % 32 / 4 (+ 8) and columns 8 g + t % 4 * 2 (+ 1):
/// d[4 g + 2 * (row + 8) + (column + 1)].
template <int kN, Sum kA, Sum kB>
__device__ __forceinline__ void product(float (&d)[kN / 2], uint64_t a, uint64_t b, bool add) {
  static_assert(kN == 64 || kN == 128 || kN == 192);
  if constexpr (kN == 64)
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TE_R32
        "}, %32, %33, add, 1, 1, %35, %36;\n}\n"
        : TE_D32(d, 0)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
  else if constexpr (kN == 128)
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TE_R64
        "}, %64, %65, add, 1, 1, %67, %68;\n}\n"
        : TE_D32(d, 0), TE_D32(d, 32)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
  else
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" TE_R96
        "}, %96, %97, add, 1, 1, %99, %100;\n}\n"
        : TE_D32(d, 0), TE_D32(d, 32), TE_D32(d, 64)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}

/// The same with a from registers: a[0], a[1] hold columns t % 4 * 2 (+ 1) of the two rows, a[2], a[3] columns 8 further on,
/// which is how accumulators lie.
template <int kN, Sum kB>
__device__ __forceinline__ void product(float (&d)[kN / 2], const uint32_t* a, uint64_t b, bool add) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64)
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TE_R32
        "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}\n"
        : TE_D32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
          "n"(static_cast<int>(kB)));
  else
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TE_R64
        "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}\n"
        : TE_D32(d, 0), TE_D32(d, 32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
          "n"(static_cast<int>(kB)));
}

#undef TE_D4
#undef TE_D16
#undef TE_D32
#undef TE_R32
#undef TE_R64
#undef TE_R96

}  // namespace te::kernels::hopper
