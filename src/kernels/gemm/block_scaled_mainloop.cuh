// GEMMs of FP8 matrices with one scale per 128 values of the summed dimension.
//
// A scale per 128 values of k must be applied before the end of the sum. So tensor cores accumulate 128 values of k at
// a time, from zero, in separate registers (`partial`), and FMA instructions on CUDA cores add each such sum, times the
// scales of its row and column, to the accumulators (`sums`) (two-level accumulation). During these additions the
// warpgroup issues no MMAs, so the other warpgroup's MMAs must hide them. In steady state
//
//   warpgroup 0   MMA k0 | add k0 ..... | MMA k1 | add k1 ....
//   warpgroup 1          | MMA k0       | add k0 .... | MMA k1
//
// Without synchronization the two may fall into step, and then the tensor cores are idle while both add. With
// `kOrdered`, an ordered barrier makes them alternate. Which tile shape is the fastest, and whether the barrier pays
// off, depends on the problem; the algorithm search measures it (gemm_cuda.cpp), and so does te-bench gemm --recipe
// blockwise.
//
// A tile of 64 kHalves rows per warpgroup and kColumns columns needs registers for its sums and for the partial sums of
// one half; 2 halves of 128 columns or 1 half of 192 columns fit. Large tiles matter more than usual, because a tile of
// 128 x 128 needs more L2 and shared-memory bandwidth than is available while it multiplies. A cluster of two blocks
// works on adjacent tiles and shares one operand: each block loads half of it and multicasts it to both (a for kHalves
// = 2, whose rows are the longer side; otherwise b).
//
// Scales of a (one per row and 128 values) are in registers, loaded one step ahead. If b has blocks (a weight), there
// is one scale for the tile's 128 columns, also in registers. If b has vectors (wgrad), there is one scale per column,
// and every thread needs those of a quarter of the columns. These scales are loaded into shared memory with the stage,
// and threads read 16 bytes at a time.
//
// Results are stored through shared memory with bulk stores, separately for each warp's 16 rows, while the MMAs of the
// next tile run (block_scaled_epilogue.cuh). Elements outside of the matrices are loaded as zeros and not stored;
// scales of the last row or column replace missing ones.
#pragma once

#include "kernels/gemm/block_scaled_parts.cuh"

namespace te::kernels::block_scaled {

// --- producer threads ----------------------------------------------------------------------------------------------

/// Loads kCount rows from `first` on: this block's rows, or if kShared, one part of the rows that the cluster shares.
template <int kCount, bool kShared>
__device__ __forceinline__ void load_rows(uint8_t* to, const CUtensorMap* map, uint64_t* full, int k,
                                          int first) {
  if constexpr (kShared) {
    const int part = static_cast<int>(cluster_rank()) * (kCount / kCluster);
    tma_load_multicast(kAllOfCluster, to + part * kDepth, map, full, k, first + part, 0);
  } else {
    tma_load(to, map, full, k, first, 0);
  }
}

template <class C, class K>
__device__ void load_operands(Shared<C, K>& s, const Params& p, const Maps& maps) {
  typename Ring<C::kStages>::Producer at;
  for (BlockTileScheduler<C> tiles(p); !tiles.end(); tiles.next()) {
    const TileCoord tile = tiles.coord();
    for (int k = 0; k < p.depth_blocks; ++k, at.next()) {
      const auto slot = s.operands.acquire(at);
      uint64_t* const full = s.operands.full(slot);
      s.operands.commit(slot, sizeof(s.a[0]) + sizeof(s.b[0]));
      load_rows<C::kRows, C::kSharesA>(s.a[slot.stage()], &maps.a, full, k * kDepth, tile.row * C::kRows);
      load_rows<C::kColumns, !C::kSharesA>(s.b[slot.stage()], &maps.b, full, k * kDepth,
                                           tile.column * C::kColumns);
    }
  }
}

/// Called by one warp: loads b's scales of every stage.
template <class C, class K>
__device__ void load_column_scales(Shared<C, K>& s, const Params& p, int lane) {
  typename Ring<C::kStages>::Producer at;
  for (BlockTileScheduler<C> tiles(p); !tiles.end(); tiles.next()) {
    const int first = tiles.coord().column * C::kColumns;
    for (int k = 0; k < p.depth_blocks; ++k, at.next()) {
      const auto slot = s.operands.acquire(at);
      const float* const from = p.b_scales + k * p.b_stride;
      float* const to = &s.b_scales[slot.stage()].values[ColumnScales<C::kColumns>::place(lane)];
#pragma unroll
      for (int i = 0; i < C::kColumns / kWarpSize; ++i)  // 32 columns correspond to 8 places
        copy_async(to + 8 * i, from + min(first + lane + i * kWarpSize, p.columns - 1));
      s.operands.commit_copies(slot);
    }
  }
}

// --- consumer warpgroup --------------------------------------------------------------------------------------------

/// Scales of a thread's rows and, with blocks, of runs of the tile's columns, for 128 values of k.
template <class C>
struct StepScales {
  static constexpr int kRuns = C::kColumns == 128 ? 1 : C::kColumns / 64;  ///< a block may begin at any run
  float a[C::kHalves][2];
  float b[kRuns];
};

/// Loads the scales of a tile, one step after another.
template <class C, class K>
class ScaleReader {
 public:
  __device__ __forceinline__ ScaleReader(const Params& p, TileCoord tile, const Thread& thread)
      : a_stride_(p.a_stride) {
    const int first = tile.row * C::kRows + thread.warpgroup * (64 * C::kHalves) + thread.row();
    const auto row = [&](int h, int i) { return min(first + h * 64 + i * 8, p.rows - 1); };
    a_ = p.a_scales + row(0, 0);
#pragma unroll
    for (int h = 0; h < C::kHalves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) rows_[h][i] = row(h, i) - row(0, 0);
    if constexpr (!K::kVectors) {
      const auto block = [&](int run) {
        return min((tile.column * C::kColumns + run * 64) / kDepth, (p.columns - 1) / kDepth);
      };
      b_ = p.b_scales + block(0) * p.b_stride;
#pragma unroll
      for (int r = 0; r < kRuns; ++r)
        blocks_[r] = (block(r) - block(0)) * static_cast<int>(p.b_stride);  // at most two blocks
    }
  }
  __device__ __forceinline__ StepScales<C> next() {
    StepScales<C> scales;
#pragma unroll
    for (int h = 0; h < C::kHalves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) scales.a[h][i] = __ldg(a_ + rows_[h][i]);
    a_ += a_stride_;
    if constexpr (!K::kVectors) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) scales.b[r] = __ldg(b_ + blocks_[r]);
      ++b_;
    }
    return scales;
  }

 private:
  static constexpr int kRuns = StepScales<C>::kRuns;
  const float *a_, *b_;
  const int64_t& a_stride_;
  int rows_[C::kHalves][2], blocks_[kRuns];
};

/// sums += partial * (scale of the row * scale of the run of columns).
template <int kColumns, int kRuns>
__device__ __forceinline__ void add_scaled(float (&sums)[kColumns / 2], const float (&partial)[kColumns / 2],
                                           const float (&a)[2], const float (&b)[kRuns]) {
  constexpr int kOfRun = kColumns / 2 / kRuns;
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const float scale[2] = {a[0] * b[r], a[1] * b[r]};
#pragma unroll
    for (int i = r * kOfRun; i < (r + 1) * kOfRun; ++i) sums[i] = fmaf(partial[i], scale[i / 2 % 2], sums[i]);
  }
}
/// sums += partial * (scale of the row * scale of the column); `of_columns` points to the column scales.
template <int kColumns>
__device__ __forceinline__ void add_scaled(float (&sums)[kColumns / 2], const float (&partial)[kColumns / 2],
                                           const float (&a)[2], uint32_t of_columns) {
#pragma unroll
  for (int g = 0; g < kColumns / 8; g += 2) {
    const float4 b = load_shared(of_columns + g * 2 * sizeof(float));
    const float of_column[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      sums[g * 4 + i] =
          fmaf(partial[g * 4 + i], a[i / 2 % 2] * of_column[i / 4 * 2 + i % 2], sums[g * 4 + i]);
  }
}

/// For kernels whose warpgroups run without an ordered barrier.
struct NoSequenceBarrier {
  __device__ __forceinline__ NoSequenceBarrier(int, int) {}
  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ void arrive() const {}
};
template <class C>
using SequenceBarrierOf = std::conditional_t<C::kOrdered, OrderedSequenceBarrier, NoSequenceBarrier>;

/// A warpgroup's accumulators: sums for its 64 rows of every half, and partial sums over 128 values of k.
template <class C, class K>
struct Multiplier {
  using Slot = typename Ring<C::kStages>::FullSlot;
  Shared<C, K>& s;
  const Thread& thread;
  const SequenceBarrierOf<C>& order;
  typename Ring<C::kStages>::Consumer at{};
  float sums[C::kHalves][C::kColumns / 2];
  float partial[C::kColumns / 2] = {};

  __device__ __forceinline__ void release(Slot slot) {
    if (thread.lane < kCluster) s.operands.release_at(slot, thread.lane);
  }

  /// Issues partial = products of a stage, for one half.
  __device__ __forceinline__ void start(uint64_t a, uint64_t b) {
    order.wait();
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDepth / 32; ++i)
      wgmma_fp8<C::kColumns, K::kA, K::kB>(partial, advance(a, i * 32), advance(b, i * 32), i > 0);
    wgmma_commit();
    order.arrive();
  }

  /// Adds a stage's contribution to all sums. `overlapped(h)` is called while the MMAs of half h run.
  template <class Overlapped>
  __device__ __forceinline__ void step(const StepScales<C>& scales, const Overlapped& overlapped) {
    const Slot slot = s.operands.wait(at);
    at.next();
    const uint64_t a = descriptor(stage_address(s.a, slot.stage()) +
                                  thread.warpgroup * C::kHalves * kWarpgroupTileBytes),
                   b = descriptor(stage_address(s.b, slot.stage()));
#pragma unroll
    for (int h = 0; h < C::kHalves; ++h) {
      start(advance(a, h * kWarpgroupTileBytes), b);
      overlapped(h);
      wgmma_wait<0>(partial);
      if constexpr (K::kVectors) {
        const uint32_t of_thread = thread.lane % 4 * ColumnScales<C::kColumns>::kRun * sizeof(float);
        add_scaled<C::kColumns>(sums[h], partial, scales.a[h],
                                stage_address(s.b_scales, slot.stage()) + of_thread);
      } else {
        if (h == C::kHalves - 1) release(slot);
        add_scaled<C::kColumns>(sums[h], partial, scales.a[h], scales.b);
      }
    }
    if constexpr (K::kVectors) {
      __syncwarp();
      release(slot);
    }
  }

  /// Computes a tile. `store(h)` is called when the sums of half h are complete.
  template <class Store>
  __device__ __forceinline__ void tile(const Params& p, TileCoord coord, const Store& store) {
#pragma unroll
    for (auto& of_half : sums)
#pragma unroll
      for (float& sum : of_half) sum = 0.0f;
    ScaleReader<C, K> reader(p, coord, thread);
    StepScales<C> next = reader.next();
#pragma unroll 1
    for (int k = 1; k < p.depth_blocks; ++k) {
      const StepScales<C> scales = next;
      next = reader.next();
      step(scales, [](int) {});
    }
    step(next, [&](int h) {
      if (h > 0) store(h - 1);
    });
    store(C::kHalves - 1);
  }
};

}  // namespace te::kernels::block_scaled
