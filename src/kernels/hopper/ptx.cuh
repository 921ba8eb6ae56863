// Wrappers of Hopper's instructions around tensor cores: mbarriers, named barriers, bulk copies (TMA), fences, loads
// and stores of matrices in shared memory. See PTX ISA 8.1, "mbarrier", "cp.async", "stmatrix". wgmma: wgmma.cuh.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace te::kernels::hopper {

/// Defines the function of an instruction without operands.
#define TE_INSTRUCTION(name, text)         \
  __device__ __forceinline__ void name() { \
    asm volatile(text ::: "memory");       \
  }

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// --- mbarriers: a phase ends after `count` arrivals and all announced bytes ---------------------------------------

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
/// Makes initialized barriers visible to bulk copies.
TE_INSTRUCTION(fence_mbarrier_init, "fence.mbarrier_init.release.cluster;")
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Waits until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra "
      "finished;\n"
      "bra again;\nfinished:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// Arrives at the barrier of another block of the cluster. It has no .release at cluster scope, which would wait for
/// all of the thread's outstanding accesses: it only signals that wgmma has read shared memory.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
/// Rank of this block within its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Barrier of all threads of the cluster.
TE_INSTRUCTION(sync_cluster, "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;")
/// The cluster barrier in two halves, without waiting for the thread's writes. Signals that the blocks are running and
/// have initialized their mbarriers (fence_mbarrier_init).
TE_INSTRUCTION(cluster_arrive, "barrier.cluster.arrive.relaxed.aligned;")
TE_INSTRUCTION(cluster_wait, "barrier.cluster.wait.aligned;")
/// Stores one FP32 value to another block's shared memory, at the offset that `to` has in this block, and signals its
/// four bytes to that block's barrier.
__device__ __forceinline__ void store_async(float* to, float value, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 to, barrier;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 barrier, "
      "%2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [to], %1, [barrier];\n}\n" ::"r"(
          shared_address(to)),
      "f"(value), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}
/// Barrier of some of the block's warps.
template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
/// Arrives at a named barrier without waiting.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// --- bulk copies -------------------------------------------------------------------------------------------------

/// Loads a box of a three-dimensional tensor; elements outside of the tensor are zeros.
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y,
                                         int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// Loads a box to the same shared memory offset in all blocks of the cluster whose bits are set in `ranks`. Each
/// block's own barrier is signaled.
__device__ __forceinline__ void tma_load_multicast(uint16_t ranks, void* to, const CUtensorMap* map,
                                                   uint64_t* barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(ranks)
      : "memory");
}
/// The same for a four-dimensional tensor.
__device__ __forceinline__ void tma_load_multicast(uint16_t ranks, void* to, const CUtensorMap* map,
                                                   uint64_t* barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "h"(ranks)
      : "memory");
}
/// Loads a multiple of 16 bytes; both addresses must be aligned to 16 bytes.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
/// Prefetches a tensor map, so that the first copy does not wait for it.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// Prefetches the line of a global memory address to the L2 cache.
__device__ __forceinline__ void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}
/// Stores a box from shared memory to a tensor; elements outside of the tensor are not written. Stores belong to the
/// thread that issues them: it commits them and waits until they have read their source.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
               : "memory");
}
/// Stores bytes (a multiple of 16) to global memory, or adds FP32 values to it.
__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_add(float* to, const void* from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
TE_INSTRUCTION(bulk_commit, "cp.async.bulk.commit_group;")
/// Waits until all committed groups except the last kPending have read their source.
template <int kPending = 0>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Waits until all groups are complete and visible to this thread.
TE_INSTRUCTION(bulk_wait, "cp.async.bulk.wait_group 0;")
/// Orders accesses to global memory by bulk copies and by other instructions.
TE_INSTRUCTION(fence_proxy_async_global, "fence.proxy.async.global;")
/// Orders this thread's writes to shared memory before later reads of it by wgmma and bulk copies.
TE_INSTRUCTION(fence_proxy_async_shared, "fence.proxy.async.shared::cta;")

/// Changes the number of registers of a warpgroup; all of its warps call it.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Stores four 8 x 8 BF16 matrices from the accumulator layout to shared memory. Lane l passes the address of row l % 8
/// of matrix l / 8.
__device__ __forceinline__ void stmatrix(uint32_t address, const uint32_t (&d)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(d[0]),
               "r"(d[1]), "r"(d[2]), "r"(d[3])
               : "memory");
}
/// Loads four matrices, the reverse of stmatrix.
__device__ __forceinline__ void ldmatrix(uint32_t address, uint32_t (&d)[4]) {
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

}  // namespace te::kernels::hopper
