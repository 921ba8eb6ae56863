// Main loop of BF16 and FP8 GEMMs whose output tiles go through an activation.
//
// A cluster of two blocks works on vertically adjacent tiles of 128 x 192; each block loads half of the column operand
// and multicasts it to both. In a block, one thread loads, and two warpgroups alternate (ping-pong), each with a tile
// of its own: while one's GEMM runs, the other's tile goes through the epilogue. An epilogue (activation_epilogues.cuh)
// reads its inputs from buffers in shared memory and writes its outputs to the same buffers; another thread moves these
// from and to global memory.
//
// Blocks are persistent. Buffers are passed on in the order of tiles, so the epilogues are ordered, too.
#pragma once

#include "kernels/hopper/hopper.cuh"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels::fused {

using namespace hopper;

constexpr int kRows = 128;                  ///< per tile
constexpr int kColumns = 192;               ///< per tile
constexpr int kStages = 4;                  ///< of kTileRowBytes along the summed dimension
constexpr int kSteps = kTileRowBytes / 32;  ///< per stage: one instruction sums over 32 bytes
constexpr int kBuffers = 8;                 ///< of 64 x 64 values
constexpr int kStores = 3;                  ///< in flight
constexpr uint32_t kBufferBytes = 64 * 64 * sizeof(__nv_bfloat16);
constexpr int kCluster = 2;
constexpr int kHalves = kRows / 64;  ///< 64-row halves of a tile, one MMA instruction each

/// Named barriers. Each is the first of two, one per warpgroup.
constexpr int kGemmOrderBarrier = 1, kEpilogueOrderBarrier = 3, kSumsBarrier = 5;

/// BF16 operands. kB: Major::k for b [columns, depth]; mn for b [depth, columns].
template <Major kB_>
struct Bf16Operands {
  static constexpr Major kB = kB_;
  static constexpr int kDepth = 64;  ///< values per stage
  static constexpr bool kScaled = false;

  /// MMA of step i of a stage.
  static __device__ __forceinline__ void multiply(float (&sums)[kColumns / 2], uint64_t a, uint64_t b,
                                                  int i) {
    constexpr uint32_t kNextStep = kB == Major::k ? 32 : 16 * kTileRowBytes;
    wgmma<kColumns, Major::k, kB>(sums, advance(a, i * 32), advance(b, i * kNextStep), true);
  }
};

/// E4M3 operands with one inverse scale each. Sums stay in the tensor cores' accumulators (fast accumulation).
struct E4m3Operands {
  static constexpr Major kB = Major::k;
  static constexpr int kDepth = 128;
  static constexpr bool kScaled = true;

  static __device__ __forceinline__ void multiply(float (&sums)[kColumns / 2], uint64_t a, uint64_t b,
                                                  int i) {
    wgmma_fp8<kColumns, DType::e4m3, DType::e4m3>(sums, advance(a, i * 32), advance(b, i * 32), true);
  }
};

/// Accumulators of both halves of a tile (wgmma.cuh).
using Accumulators = float[kHalves][kColumns / 2];

struct GemmShared {
  uint8_t a[kStages][kRows * kTileRowBytes];
  uint8_t b[kStages][kColumns * kTileRowBytes];
  __nv_bfloat16 buffer[kBuffers][64 * 64];
  float sums[kConsumers][kWarps][64];
  Ring<kStages> operands;  ///< a and b; consumers of both blocks release them
  /// Epilogue inputs, overwritten by its outputs, which are stored before the next fill.
  Ring<kBuffers> buffers;

  __device__ void init_barriers() {
    operands.init(1, kWarps * kCluster);
    buffers.init(1, kWarps);
    fence_mbarrier_init();
  }
};

/// Tensor maps (tensor_map.h). Blocks are SwiGLU's gate and up projections; GELU has one block.
struct GemmMaps {
  CUtensorMap a;  ///< [rows, depth] in boxes of kRows x (a stage's depth)
  /// [blocks, columns, depth] in boxes of 1 x (a block's part of kColumns) x (a stage's depth); or [depth, columns] in
  /// boxes of (a block's part of that depth) x 64.
  CUtensorMap b;
  /// Input of the activation [rows, blocks, columns], read or written, in boxes of 64 x 1 x (64 or 32).
  CUtensorMap x;
  CUtensorMap y;          ///< result of the activation [rows, columns], written; boxes as x
  CUtensorMap dx;         ///< gradient of x, written; boxes as x
  CUtensorMap y_columns;  ///< y in FP8, transposed: [columns, rows] in boxes of (64 or 32) x 64
};

/// FP8 outputs of a result (fp8_output.h). Null: not written.
struct QuantizeParams {
  const float* scale;
  float *scale_inv, *amax;
  Fp8Counters* counters;
  bool rowwise, columnwise;
};

struct GemmParams {
  TileGrid grid;  ///< of clusters: kCluster vertically adjacent tiles each
  int depth_stages;
  int rows, columns;               ///< of the activation's result
  const __nv_bfloat16* bias;       ///< [columns] or null
  float* partial;                  ///< [ceil(rows / kRows), columns] or null: sums over the rows of each tile
  const float *a_scale, *b_scale;  ///< inverse scales of FP8 operands
  QuantizeParams y;
};

/// Tiles of this block.
class TileScheduler : public PersistentTileScheduler<kCluster> {
 public:
  explicit __device__ TileScheduler(const GemmParams& p) : PersistentTileScheduler(p.grid) {}
  __device__ TileCoord coord() const {
    const TileCoord of_cluster = PersistentTileScheduler::coord();
    return {of_cluster.row * kCluster + static_cast<int>(cluster_rank()), of_cluster.column};
  }
};

// --- producer threads ----------------------------------------------------------------------------------------------

/// Loads the operands. kBlocks blocks of columns share a tile.
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

/// Stores the epilogues' outputs to global memory and loads their next inputs.
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
  Ring<kBuffers>::Producer stored = at;  // inputs have been read up to here
  int under_way = 0;
  for (TileScheduler tiles(p); !tiles.end(); tiles.next())
    for (int part = 0; part < Epilogue::kParts; ++part, at.next()) {
      Epilogue::store(p, maps, s.buffer[s.buffers.acquire(at).stage()], part, tiles.coord());
      bulk_commit();
      bulk_wait_read<kStores - 1>();
      if (++under_way < kStores) continue;
      fill(s.buffers.acquire(stored));  // does not wait, as above
      stored.next();
    }
  bulk_wait_read<0>();
}

// --- consumer warpgroup --------------------------------------------------------------------------------------------

/// A buffer that a warpgroup is using.
struct Buffer {
  Ring<kBuffers>::FullSlot slot;
  uint32_t address;
};

/// Sequence of buffers for a warpgroup's tiles.
class Buffers {
 public:
  __device__ Buffers(GemmShared& s, const Thread& thread) : s_(s), thread_(thread) {}
  /// Waits for the next buffer.
  __device__ __forceinline__ Buffer open() {
    const auto slot = s_.buffers.wait(at_);
    at_.next();
    return {slot, stage_address(s_.buffer, slot.stage())};
  }
  /// Releases the buffers for this warp.
  template <class... Opened>
  __device__ __forceinline__ void pass_on(const Opened&... buffers) {
    fence_proxy_async_shared();
    __syncwarp();
    if (thread_.lane == 0) (s_.buffers.release(buffers.slot), ...);
  }
  /// Skips the other warpgroup's buffers.
  __device__ __forceinline__ void skip(int count) { at_.skip(count); }

 private:
  GemmShared& s_;
  const Thread& thread_;
  Ring<kBuffers>::Consumer at_;
};

/// GEMM of a tile. Lets the other warpgroup continue as soon as all MMAs have been issued.
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
    // If b is summed over its rows, its tiles of 64 columns are stored one after another.
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
  // Epilogues are ordered, too, because buffers are used in the order of tiles.
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
    // Starts from zeros instead of an overwriting first instruction, so that the epilogue can reuse the registers.
    Accumulators sums = {};
    gemms.wait();
    multiply<Operands>(s, p, sums, at, thread, gemms);
    if constexpr (Operands::kScaled) {
#pragma unroll
      for (auto& of_half : sums)
#pragma unroll
        for (float& sum : of_half) sum = __fmul_rn(sum, scale);  // never contracted with later operations
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
  sync_cluster();  // the other block may still signal this one's barriers
}

}  // namespace te::kernels::fused
