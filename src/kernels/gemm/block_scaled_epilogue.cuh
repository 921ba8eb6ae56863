// Epilogue of block_scaled_mainloop.cuh, and the kernel.
//
// A warp owns 16 rows of every half from the accumulators to global memory and does not wait for other warps. It writes
// them to its part of a buffer in shared memory, and one of its threads issues bulk stores of 16 rows x 128 bytes,
// which overlap with the MMAs of the next tile. The first half is stored while the second one's last MMAs run.
// Accumulated gradients are bulk reductions, so no thread reads the old values. Each element is accumulated only once
// per call, so the result does not depend on the order of the reductions.
#pragma once

#include "kernels/gemm/block_scaled_mainloop.cuh"

namespace te::kernels::block_scaled {

constexpr int kBoxRows = 16;         ///< per bulk store: one warp's rows
constexpr int kBoxBytes = 64 * 128;  ///< 64 rows of a warpgroup

/// Adds bias[column] to every row; `first`: this thread's first column. Out-of-range columns read some other value.
template <int kColumns>
__device__ __forceinline__ void add_bias(float (&sums)[kColumns / 2], const Params& p, int first) {
  uint32_t pairs[kColumns / 8];  // so that all loads are in flight together
#pragma unroll
  for (int g = 0; g < kColumns / 8; ++g)
    pairs[g] = __ldg(reinterpret_cast<const uint32_t*>(p.bias + min(first + g * 8, p.columns - 2)));
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i)
    sums[i] += i % 2 == 0 ? low_bf16(pairs[i / 4]) : high_bf16(pairs[i / 4]);
}

/// Bulk stores of a warp's 16 rows of a half, from `row` and `column` on. Called by one thread.
template <class C, class K>
__device__ __forceinline__ void send_rows(const uint8_t* rows, const Params& p, const CUtensorMap& out,
                                          int row, int column) {
  constexpr int kBoxColumns = 128 / K::kOutBytes;
#pragma unroll
  for (int c = 0; c < C::kColumns / kBoxColumns; ++c) {
    const int to = column + c * kBoxColumns;
    if (row >= p.rows || to >= p.columns) break;
    if (K::kVectors && p.accumulate)
      tma_add(&out, rows + c * kBoxBytes, to, row, 0);
    else
      tma_store(&out, rows + c * kBoxBytes, to, row, 0);
  }
  bulk_commit();
}

/// Stores half h of a tile.
template <class C, class K>
__device__ __forceinline__ void store_half(Shared<C, K>& s, const Params& p, const Maps& maps, TileCoord tile,
                                           int h, float (&sums)[C::kColumns / 2], const Thread& thread) {
  const int row = tile.row * C::kRows + (thread.warpgroup * C::kHalves + h) * 64 + thread.warp * kBoxRows,
            column = tile.column * C::kColumns;
  auto& buffer = s.results[thread.warpgroup][h % C::kBuffers];
  if (thread.lane == 0)
    bulk_wait_read<C::kBuffers - 1>();  // until the warp's earlier stores have read this buffer
  __syncwarp();
  if constexpr (K::kOut == DType::bf16) {
    if (!K::kVectors && p.bias != nullptr) add_bias<C::kColumns>(sums, p, column + thread.column());
    store_accumulators<C::kColumns>(thread, shared_address(buffer), kBoxBytes,
                                    [&](int i) { return pack_bf16(sums[i * 2], sums[i * 2 + 1]); });
  } else {
    store_accumulators_fp32<C::kColumns>(thread, shared_address(buffer), kBoxBytes, sums);
  }
  fence_proxy_async_shared();
  __syncwarp();
  if (thread.lane == 0) send_rows<C, K>(buffer + thread.warp * (kBoxRows * 128), p, maps.out, row, column);
  __syncwarp();
}

template <class C, class K>
__device__ __forceinline__ void compute_tiles(Shared<C, K>& s, const Params& p, const Maps& maps,
                                              const Thread& thread) {
  const SequenceBarrierOf<C> order(kOrderBarrier, thread.warpgroup);
  Multiplier<C, K> multiplier{s, thread, order};
  for (BlockTileScheduler<C> tiles(p); !tiles.end(); tiles.next()) {
    const TileCoord tile = tiles.coord();
    multiplier.tile(p, tile,
                    [&](int h) { store_half<C, K>(s, p, maps, tile, h, multiplier.sums[h], thread); });
  }
  if (thread.lane == 0) bulk_wait_read();  // shared memory is freed when the block exits
  __syncwarp();
}

template <class C, class K>
__global__ void __launch_bounds__(kThreads, 1)
    block_scaled_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<C, K>*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) s.init_barriers();
  sync_cluster();
  if (thread.is_producer()) {
    setmaxnreg_dec<40>();
    if (thread.index == 0) load_operands(s, p, maps);
    if constexpr (K::kVectors)
      if (thread.warp == 1) load_column_scales(s, p, thread.lane);
    __syncwarp();
  } else {
    setmaxnreg_inc<232>();
    compute_tiles(s, p, maps, thread);
  }
  sync_cluster();  // the other block may still signal this one's barriers
}

}  // namespace te::kernels::block_scaled
