// A GEMM in BF16 or FP8 whose tiles go through an activation on their way out: what is common to all of them.
//
// Two blocks of the grid, a cluster, work on tiles of 128 x 192 below one another, so each loads half of the columns'
// operand and sends it to both. In a block one thread loads, and two warpgroups multiply, each a tile of its own, in
// turn: while one's GEMM runs, the other's tile goes through the epilogue. An epilogue (activation_epilogues.cuh)
// finds in buffers of shared memory what it needs and leaves there what it makes; another thread moves these from and
// to memory.
//
// Blocks stay for all tiles, as many as run at a time. Buffers are handed on in the order of tiles, so epilogues take
// turns, too.
#pragma once

#include "kernels/hopper/hopper.cuh"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels::fused {

using namespace hopper;

constexpr int kRows = 128;                  ///< of a tile
constexpr int kColumns = 192;               ///< of a tile
constexpr int kStages = 4;                  ///< of kTileRowBytes of what is summed over
constexpr int kSteps = kTileRowBytes / 32;  ///< of a stage: an instruction sums over 32 bytes
constexpr int kBuffers = 8;                 ///< of 64 rows of 64 values
constexpr int kStores = 3;                  ///< under way at a time
constexpr uint32_t kBufferBytes = 64 * 64 * sizeof(__nv_bfloat16);
constexpr int kCluster = 2;
constexpr int kHalves = kRows / 64;  ///< of a tile's rows, as one instruction multiplies them

/// Named barriers, each the first of two, one for either warpgroup.
constexpr int kGemmOrderBarrier = 1, kEpilogueOrderBarrier = 3, kSumsBarrier = 5;

/// Operands in BF16. kB: Major::k, where b is [columns, depth]; mn, where it is [depth, columns].
template <Major kB_>
struct Bf16Operands {
  static constexpr Major kB = kB_;
  static constexpr int kDepth = 64;  ///< of a stage
  static constexpr bool kScaled = false;

  /// Step i of a stage.
  static __device__ __forceinline__ void multiply(float (&sums)[kColumns / 2], uint64_t a, uint64_t b,
                                                  int i) {
    constexpr uint32_t kNextStep = kB == Major::k ? 32 : 16 * kTileRowBytes;
    wgmma<kColumns, Major::k, kB>(sums, advance(a, i * 32), advance(b, i * kNextStep), true);
  }
};

/// Operands in E4M3, each with one inverse scale. Sums stay in the tensor cores' accumulators: fast accumulation.
struct E4m3Operands {
  static constexpr Major kB = Major::k;
  static constexpr int kDepth = 128;
  static constexpr bool kScaled = true;

  static __device__ __forceinline__ void multiply(float (&sums)[kColumns / 2], uint64_t a, uint64_t b,
                                                  int i) {
    wgmma_fp8<kColumns, DType::e4m3, DType::e4m3>(sums, advance(a, i * 32), advance(b, i * 32), true);
  }
};

/// Sums of a tile, of either half (wgmma.cuh).
using Accumulators = float[kHalves][kColumns / 2];

struct GemmShared {
  uint8_t a[kStages][kRows * kTileRowBytes];
  uint8_t b[kStages][kColumns * kTileRowBytes];
  __nv_bfloat16 buffer[kBuffers][64 * 64];
  float sums[kConsumers][kWarps][64];
  Ring<kStages> operands;  ///< a and b, of both blocks' consumers
  /// What an epilogue reads, and in its place what it makes, which is stored before the next fill.
  Ring<kBuffers> buffers;

  __device__ void init_barriers() {
    operands.init(1, kWarps * kCluster);
    buffers.init(1, kWarps);
    fence_mbarrier_init();
  }
};

/// Tensors in boxes (tensor_map.h). Blocks are the gate and the up projection of SwiGLU; GELU has one.
struct GemmMaps {
  CUtensorMap a;  ///< [rows, depth] in boxes of kRows x (a stage's depth)
  /// [blocks, columns, depth] in boxes of 1 x (a cluster's share of kColumns) x (a stage's depth); or [depth, columns]
  /// in boxes of (its share of that depth) x 64.
  CUtensorMap b;
  /// The activation's input [rows, blocks, columns], read or written, in boxes of 64 x 1 x (64 or 32).
  CUtensorMap x;
  CUtensorMap y;          ///< the activation's result [rows, columns], written, as x
  CUtensorMap dx;         ///< the gradient of x, written, as x
  CUtensorMap y_columns;  ///< y in FP8, transposed: [columns, rows] in boxes of (64 or 32) x 64
};

/// What is made of a result in FP8 (fp8_output.h). Null: not wanted.
struct CastParams {
  const float* scale;
  float *scale_inv, *amax;
  Fp8Counters* counters;
  bool rowwise, columnwise;
};

struct GemmParams {
  TileGrid grid;  ///< of clusters: kCluster tiles below one another
  int depth_stages;
  int rows, columns;               ///< of the activation's result
  const __nv_bfloat16* bias;       ///< [columns] or null
  float* partial;                  ///< [ceil(rows / kRows), columns] or null: sums over the rows of a tile
  const float *a_scale, *b_scale;  ///< inverse scales of FP8 operands
  CastParams y;
};

/// The tiles of this block, one after the other.
class TileScheduler : public PersistentTileScheduler<kCluster> {
 public:
  explicit __device__ TileScheduler(const GemmParams& p) : PersistentTileScheduler(p.grid) {}
  __device__ TileCoord coord() const {
    const TileCoord of_cluster = PersistentTileScheduler::coord();
    return {of_cluster.row * kCluster + static_cast<int>(cluster_rank()), of_cluster.column};
  }
};

// --- the threads that move data ------------------------------------------------------------------------------------

/// kBlocks of columns share a tile.
template <class Operands, int kBlocks>
__device__ void load_operands(GemmShared& s, const GemmParams& p, const GemmMaps& maps) {
  const int rank = static_cast<int>(cluster_rank());
  constexpr uint16_t kAll = (1 << kCluster) - 1;
  constexpr int kDepth = Operands::kDepth;
  Ring<kStages>::Producer at;
  for (TileScheduler tiles(p); !tiles.end(); tiles.next()) {
    const TileCoord tile = tiles.coord();
    for (int k = 0; k < p.depth_stages; ++k, at.next()) {
      const auto slot = s.operands.acquire(at);
      uint8_t *const a = s.a[slot.stage()], *const b = s.b[slot.stage()];
      uint64_t* const full = s.operands.full(slot);
      s.operands.commit(slot, sizeof(s.a[0]) + sizeof(s.b[0]));
      tma_load(a, &maps.a, full, k * kDepth, tile.row * kRows, 0);
      if constexpr (Operands::kB == Major::k) {
        constexpr int kShare = kColumns / kCluster, kOfBlock = kColumns / kBlocks;
        const int first = rank * kShare;
        tma_load_multicast(kAll, b + first * kTileRowBytes, &maps.b, full, k * kDepth,
                           tile.column * kOfBlock + first % kOfBlock, first / kOfBlock);
      } else {
        constexpr int kShare = kDepth / kCluster;
        for (int c = 0; c < kColumns / 64; ++c)
          tma_load_multicast(kAll, b + (c * kDepth + rank * kShare) * kTileRowBytes, &maps.b, full,
                             tile.column * kColumns + c * 64, k * kDepth + rank * kShare, 0);
      }
    }
  }
}

/// Takes what epilogues have made to memory, and brings what the next ones read.
template <class Epilogue>
__device__ void move_buffers(GemmShared& s, const GemmParams& p, const GemmMaps& maps) {
  TileScheduler ahead(p);
  int part_ahead = 0;
  const auto fill = [&](Ring<kBuffers>::EmptySlot slot) {
    if constexpr (Epilogue::kReads) {
      if (ahead.end()) return;
      Epilogue::load(s, maps, slot, part_ahead, ahead.coord());
      if (++part_ahead < Epilogue::kParts) return;
      part_ahead = 0;
      ahead.next();
    } else {
      s.buffers.commit(slot);
    }
  };
  Ring<kBuffers>::Producer at;
  for (int i = 0; i < kBuffers; ++i, at.next()) fill(s.buffers.acquire(at));
  Ring<kBuffers>::Producer stored = at;  // up to here, sources have been read
  int under_way = 0;
  for (TileScheduler tiles(p); !tiles.end(); tiles.next())
    for (int part = 0; part < Epilogue::kParts; ++part, at.next()) {
      Epilogue::store(p, maps, s.buffer[s.buffers.acquire(at).stage()], part, tiles.coord());
      bulk_commit();
      bulk_wait_read<kStores - 1>();
      if (++under_way < kStores) continue;
      fill(s.buffers.acquire(stored));  // at once, as above
      stored.next();
    }
  bulk_wait_read<0>();
}

// --- what a warpgroup does -----------------------------------------------------------------------------------------

/// A buffer in the hands of a warpgroup.
struct Buffer {
  Ring<kBuffers>::FullSlot slot;
  uint32_t address;
};

/// The buffers that a warpgroup's tile goes through, in order.
class Buffers {
 public:
  __device__ Buffers(GemmShared& s, const Thread& thread) : s_(s), thread_(thread) {}
  /// Waits for the next one.
  __device__ __forceinline__ Buffer open() {
    const auto slot = s_.buffers.wait(at_);
    at_.next();
    return {slot, stage_address(s_.buffer, slot.stage())};
  }
  /// This warp is done with them.
  template <class... Opened>
  __device__ __forceinline__ void pass_on(const Opened&... buffers) {
    fence_proxy_async_shared();
    __syncwarp();
    if (thread_.lane == 0) (s_.buffers.release(buffers.slot), ...);
  }
  /// The other warpgroup's.
  __device__ __forceinline__ void skip(int count) { at_.skip(count); }

 private:
  GemmShared& s_;
  const Thread& thread_;
  Ring<kBuffers>::Consumer at_;
};

/// A tile's GEMM. Ends the warpgroup's turn when all of it is under way.
template <class Operands>
__device__ __forceinline__ void multiply(GemmShared& s, const GemmParams& p, Accumulators& sums,
                                         Ring<kStages>::Consumer& at, const Thread& thread,
                                         const OrderedSequenceBarrier& order) {
  using Slot = Ring<kStages>::FullSlot;
  const auto release = [&](Slot slot) {
    if (thread.lane < kCluster) s.operands.release_at(slot, thread.lane);
  };
  Slot before = Slot::none();
#pragma unroll 1
  for (int k = 0; k < p.depth_stages; ++k, at.next()) {
    const Slot slot = s.operands.wait(at);
    // Where b is summed over its rows, its tiles of 64 columns lie one behind the other.
    constexpr uint32_t kNextTile = Operands::kB == Major::k ? 0 : Operands::kDepth * kTileRowBytes;
    const uint64_t a = descriptor(stage_address(s.a, slot.stage())),
                   b = descriptor(stage_address(s.b, slot.stage()), kNextTile);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        Operands::multiply(sums[h], advance(a, h * kWarpgroupTileBytes), b, i);
    wgmma_commit();
    wgmma_wait<1>();
    if (k > 0) release(before);
    before = slot;
  }
  order.arrive();
  wgmma_wait<0>(sums[0], sums[1]);
  release(before);
}

template <class Epilogue, class Operands>
__device__ __forceinline__ void compute_tiles(GemmShared& s, const GemmParams& p, const Thread& thread) {
  // Epilogues have turns, too: buffers are used in the order of tiles.
  const OrderedSequenceBarrier gemms(kGemmOrderBarrier, thread.warpgroup),
      epilogues(kEpilogueOrderBarrier, thread.warpgroup);
  TileScheduler tiles(p);
  Ring<kStages>::Consumer at;
  Buffers buffers(s, thread);
  Epilogue epilogue(p);
  float scale = 1.0f;
  if constexpr (Operands::kScaled) scale = *p.a_scale * *p.b_scale;
  const auto skip_others = [&] {
    at.skip(p.depth_stages);
    buffers.skip(Epilogue::kParts);
  };
  if (thread.warpgroup == 1) {
    tiles.next();
    skip_others();
  }
  for (; !tiles.end(); tiles.next(kConsumers)) {
    // Zeros rather than a first instruction that writes: what the epilogue has used up is free for it then.
    Accumulators sums = {};
    gemms.wait();
    multiply<Operands>(s, p, sums, at, thread, gemms);
    if constexpr (Operands::kScaled) {
#pragma unroll
      for (auto& of_half : sums)
#pragma unroll
        for (float& sum : of_half) sum = __fmul_rn(sum, scale);  // in no kernel contracted with what follows
    }
    epilogues.wait();
    epilogue.run(s, p, sums, buffers, tiles.coord(), thread);
    epilogues.arrive();
    skip_others();
  }
  epilogue.finish(p, thread);
}

template <class Epilogue, class Operands>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_kernel(const __grid_constant__ GemmMaps maps, const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<GemmShared*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) s.init_barriers();
  sync_cluster();
  if (thread.is_producer()) {
    setmaxnreg_dec<40>();
    if (thread.index == 0) load_operands<Operands, Epilogue::kBlocks>(s, p, maps);
    if (thread.index == kWarpSize) move_buffers<Epilogue>(s, p, maps);
    __syncwarp();
  } else {
    setmaxnreg_inc<232>();
    compute_tiles<Epilogue, Operands>(s, p, thread);
  }
  sync_cluster();  // the other block may still tell this one of stages
}

}  // namespace te::kernels::fused
