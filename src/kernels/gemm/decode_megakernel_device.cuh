// What the parts of the chain's kernel (decode_megakernel.cu) share: its parameters, its shared memory, the grid's
// barrier.
#pragma once

#include "kernels/gemm/decode_megakernel.h"
#include "kernels/gemm/few_rows.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tensor_map.h"
#include "kernels/hopper/wgmma.cuh"

namespace te::kernels::cuda {

// A warpgroup that multiplies, one that adds its sums up and writes the result, and a warp that reads weights. The two
// warpgroups prepare inputs together. Of a multiprocessor's four partitions one has three of these warps: with
// kMegakernelRegisters (decode_megakernel.cu) there is room for two warps of attention in each (attention/decode.cu).
constexpr int kMultipliers = 128, kFinishers = 128, kMegakernelWorkers = kMultipliers + kFinishers;
constexpr int kMegakernelThreads = kMegakernelWorkers + kWarpSize;
constexpr int kWorkerWarps = kMegakernelWorkers / kWarpSize, kMultiplyingWarps = kMultipliers / kWarpSize;
constexpr int kMegakernelCols = 16, kMegakernelRows = static_cast<int>(kFewRows);
constexpr int kRunRows = kMegakernelCols / 2;      ///< neighbouring rows of a tile
constexpr int kPieceBytes = 128, kPieces = 8;      ///< of a row; pieces of it in a slot
constexpr int kReadBytes = kPieces * kPieceBytes;  ///< of a row at a time
constexpr int kRunBytes = kRunRows * kReadBytes;   ///< of a run at a time: wgmma's 64 rows of 128 bytes
constexpr int kSlotBytes = 2 * kRunBytes;
static_assert(kFinishers == kMegakernelRows * kMegakernelCols && kRunBytes == hopper::kWarpgroupTileBytes);
constexpr int kMaxNormed =
    4 * 8 * kMegakernelWorkers;  ///< elements of the row of a chain of one row, normalized

/// Slots that may be under way to a block: what memory's latency asks for at its rate, with some to spare. The ring
/// holds four times as much. If all of it were asked for at once, requests of 25 MB would queue in front of memory, and
/// whatever else the blocks read or write for each other, behind them.
constexpr int kMaxInFlight = 3;

/// A MegakernelGemm. A tile of its weight is two runs of 8 rows: 16 neighbours, or, of a gated activation, 8 of the
/// gate and the 8 of `up` that meet them, `cols` rows further on.
struct GemmDesc {
  const float* weight_scale_inv;  ///< E4M3, else null
  const __nv_bfloat16 *bias, *x, *delta, *gamma, *beta;
  __nv_bfloat16* sum;
  void* out;                      ///< bf16, or fp32
  int k, row_bytes, tiles, cols;  ///< row_bytes: of the weight; cols: of out
  int tile_cols, second_run;      ///< columns of out that a tile makes; rows from its first run to its second
  bool out_fp32, gated, activated, layer, zero_centered, power_of_two;
  ActivationKind kind;
  float eps, clamp, margin_factor;
};

struct MegakernelParams {
  GemmDesc descs[kMaxMegakernelGemms];
  CUtensorMap weights[kMaxMegakernelGemms];  ///< the links': (byte of a piece, row, piece)
  int count, rows;
  int input_bytes;  ///< of shared memory, for the largest input
  uint32_t* barrier;
};

/// Bytes between rows of an input in shared memory. Behind a row come zeros up to there.
__host__ __device__ constexpr int input_stride(int row_bytes) {
  return (row_bytes + kReadBytes - 1) / kReadBytes * kReadBytes;
}
/// Where byte `at` of a row of the input lies: pieces are rows of a swizzled tile (hopper/tile.cuh).
__device__ __forceinline__ int input_place(int at) {
  return at ^ (at / kPieceBytes % kPieces * 16);
}

/// Sums of a tile by warps, rows and columns: two tiles in turn.
constexpr int kSumSlots = 2;
__host__ __device__ constexpr int sums_bytes(int rows) {
  return kSumSlots * kMultiplyingWarps * rows * kMegakernelCols * static_cast<int>(sizeof(float));
}
/// Where a row's 16 sums begin.
__device__ __forceinline__ int sum_index(int slot, int warp, int row, int rows) {
  return ((slot * kMultiplyingWarps + warp) * rows + row) * kMegakernelCols;
}

/// The shared memory's head; the input lies behind it, then the sums.
template <int kSlots>
struct MegakernelShared {
  hopper::Ring<kSlots> ring;
  hopper::Ring<kSumSlots> sums_ring;
  float partial[2][kWorkerWarps][kMegakernelRows];  ///< in turn: of rows, by warps
  alignas(1024) uint8_t slots[kSlots][kSlotBytes];
};

/// The first of this block's tiles of a linear; `before`: tiles of those in front.
__device__ __forceinline__ int first_tile(int before) {
  const int blocks = static_cast<int>(gridDim.x);
  return (static_cast<int>(blockIdx.x) + blocks - before % blocks) % blocks;
}

// Barriers of a block: all but the producer, and those who finish.
__device__ __forceinline__ void sync_workers() {
  hopper::named_barrier_sync<kMegakernelWorkers>(1);
}
__device__ __forceinline__ void sync_finishers() {
  hopper::named_barrier_sync<kFinishers>(2);
}

/// A barrier of all blocks, by one thread of each: what a block has written before it arrives is seen by all who have
/// waited. The upper bit of the state turns when all have arrived, and the rest returns to zero.
class GridBarrier {
 public:
  __device__ explicit GridBarrier(uint32_t* state) : state_(state) {}

  /// Once, before the block arrives for the first time, when no launch that uses the state is under way any more.
  __device__ void begin() { phase_ = load() & kPhaseBit; }
  /// Between barriers of the threads that have written and of those that will read.
  __device__ void arrive_and_wait() {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(state_),
                 "r"(blockIdx.x == 0 ? kPhaseBit - (gridDim.x - 1) : 1u)
                 : "memory");
    phase_ ^= kPhaseBit;
    while ((load() & kPhaseBit) != phase_) {
    }
  }

 private:
  static constexpr uint32_t kPhaseBit = 0x80000000u;
  __device__ uint32_t load() const {
    uint32_t now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(state_) : "memory");
    return now;
  }
  uint32_t* state_;
  uint32_t phase_ = 0;
};

}  // namespace te::kernels::cuda
