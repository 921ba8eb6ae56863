// Shared by the parts of the megakernel (decode_megakernel.cu): parameters, shared memory, and the grid barrier.
#pragma once

#include "kernels/gemm/decode_megakernel.h"
#include "kernels/gemm/few_rows.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tensor_map.h"
#include "kernels/hopper/wgmma.cuh"

namespace te::kernels::cuda {

// One warpgroup multiplies, one adds the partial sums and writes the result, and one warp loads weights. Both
// warpgroups prepare inputs together. Each of an SM's four partitions has at most three of these warps; with
// kMegakernelRegisters (decode_megakernel.cu) this leaves room for two warps of attention in each
// (attention/decode.cu).
constexpr int kMultipliers = 128, kFinishers = 128, kMegakernelWorkers = kMultipliers + kFinishers;
constexpr int kMegakernelThreads = kMegakernelWorkers + kWarpSize;
constexpr int kWorkerWarps = kMegakernelWorkers / kWarpSize, kMultiplyingWarps = kMultipliers / kWarpSize;
constexpr int kMegakernelCols = 16, kMegakernelRows = static_cast<int>(kFewRows);
constexpr int kRunRows = kMegakernelCols / 2;      ///< adjacent rows of a tile
constexpr int kChunkBytes = 128, kChunks = 8;      ///< bytes of a chunk of a row; chunks of a row per slot
constexpr int kReadBytes = kChunks * kChunkBytes;  ///< bytes of a row at a time
constexpr int kRunBytes = kRunRows * kReadBytes;   ///< bytes of a run at a time: wgmma's 64 rows of 128 bytes
constexpr int kSlotBytes = 2 * kRunBytes;
static_assert(kFinishers == kMegakernelRows * kMegakernelCols && kRunBytes == hopper::kWarpgroupTileBytes);
constexpr int kMaxNormed = 4 * 8 * kMegakernelWorkers;  ///< elements of a normalized row, if there is one row

/// Slots in flight per block: enough to cover the memory latency at full bandwidth, with some reserve. The ring holds
/// four times as much. If all of it were requested at once, the requests would fill the memory queues, and all other
/// accesses of the blocks would queue after them.
constexpr int kMaxInFlight = 3;

/// Device form of a MegakernelGemm. A tile of its weight is two runs of 8 rows: 16 adjacent rows, or with a gated
/// activation 8 rows of the gate and the corresponding 8 rows of `up`, `cols` rows further on.
struct GemmDesc {
  const float* weight_scale_inv;  ///< E4M3, otherwise null
  const __nv_bfloat16 *bias, *x, *delta, *gamma, *beta;
  __nv_bfloat16* sum;
  void* out;                      ///< bf16 or fp32
  int k, row_bytes, tiles, cols;  ///< row_bytes: of the weight; cols: of out
  int tile_cols, second_run;      ///< columns of out per tile; row distance between its runs
  bool out_fp32, gated, activated, layer, zero_centered, power_of_two;
  ActivationKind kind;
  float eps, clamp, margin_factor;
};

struct MegakernelParams {
  GemmDesc descs[kMaxMegakernelGemms];
  CUtensorMap weights[kMaxMegakernelGemms];  ///< coordinates (byte in a chunk, row, chunk)
  int count, rows;
  int input_bytes;  ///< shared memory for the largest input
  uint32_t* barrier;
};

/// Bytes between rows of an input in shared memory; the gap after a row is zeroed.
__host__ __device__ constexpr int input_stride(int row_bytes) {
  return (row_bytes + kReadBytes - 1) / kReadBytes * kReadBytes;
}
/// Offset of byte `at` of a row of the input: chunks are rows of a swizzled tile (hopper/tile.cuh).
__device__ __forceinline__ int input_place(int at) {
  return at ^ (at / kChunkBytes % kChunks * 16);
}

/// Partial sums of tiles by warps, rows and columns; double-buffered.
constexpr int kSumSlots = 2;
__host__ __device__ constexpr int sums_bytes(int rows) {
  return kSumSlots * kMultiplyingWarps * rows * kMegakernelCols * static_cast<int>(sizeof(float));
}
/// Index of the first of a row's 16 sums.
__device__ __forceinline__ int sum_index(int slot, int warp, int row, int rows) {
  return ((slot * kMultiplyingWarps + warp) * rows + row) * kMegakernelCols;
}

/// Start of shared memory; the input and then the sums follow it.
template <int kSlots>
struct MegakernelShared {
  hopper::Ring<kSlots> ring;
  hopper::Ring<kSumSlots> sums_ring;
  float partial[2][kWorkerWarps][kMegakernelRows];  ///< double-buffered partial sums of rows, by warps
  alignas(1024) uint8_t slots[kSlots][kSlotBytes];
};

/// First of this block's tiles of a linear; `before`: number of tiles of earlier linears.
__device__ __forceinline__ int first_tile(int before) {
  const int blocks = static_cast<int>(gridDim.x);
  return (static_cast<int>(blockIdx.x) + blocks - before % blocks) % blocks;
}

// Barriers of a block: all threads except the producer; the finishing warpgroup.
__device__ __forceinline__ void sync_workers() {
  hopper::named_barrier_sync<kMegakernelWorkers>(1);
}
__device__ __forceinline__ void sync_finishers() {
  hopper::named_barrier_sync<kFinishers>(2);
}

/// Barrier of all blocks, called by one thread of each. Writes of a block before it arrives are visible to all that
/// have waited. The upper bit of the state flips when all blocks have arrived, and the other bits return to zero.
class GridBarrier {
 public:
  __device__ explicit GridBarrier(uint32_t* state) : state_(state) {}

  /// Called once, before the block's first arrival, when no other launch that uses the state is running.
  __device__ void begin() { phase_ = load() & kPhaseBit; }
  /// Must be called between block barriers with the writing and with the reading threads.
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
