// What the parts of the chain's kernel (gemm_chain.cu) share: its parameters, its shared memory, the grid's barrier.
#pragma once

#include "kernels/gemm/few_rows.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_chain.h"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tensor_map.h"

namespace te::kernels::cuda {

constexpr int kChainWarps = 8;      ///< that multiply
constexpr int kFinishingWarps = 4;  ///< that add their sums: a thread for each element of a tile
constexpr int kChainConsumers = kChainWarps * kWarpSize, kFinishers = kFinishingWarps * kWarpSize;
constexpr int kChainThreads = kChainConsumers + kFinishers + kWarpSize;
constexpr int kChainCols = kFewRowsCols, kChainRows = static_cast<int>(kFewRows);
constexpr int kSwizzleBytes = 128;                       ///< of a row in one piece
constexpr int kPieceBytes = kChainCols * kSwizzleBytes;  ///< of 16 rows
constexpr int kReadBytes = kChainWarps * kSwizzleBytes;  ///< of a row at a time: a piece for each warp
constexpr int kSlotBytes = kChainWarps * kPieceBytes;
static_assert(kFinishers == kChainRows * kChainCols);

/// A ChainedGemm. Its weight is read in tiles of 16 rows; of a gated activation 16 of the gate and the 16 of `up` that
/// meet them, `cols` rows further on.
struct Link {
  const float* weight_scale_inv;  ///< E4M3, else null
  const __nv_bfloat16 *bias, *x, *delta, *gamma, *beta;
  __nv_bfloat16 *sum, *out;
  int k, row_bytes, tiles, cols;  ///< row_bytes: of the weight; cols: of out
  bool gated, activated, layer, zero_centered, power_of_two;
  ActivationKind kind;
  float eps, clamp, margin_factor;
};

struct ChainParams {
  Link links[kMostChained];
  CUtensorMap weights[kMostChained];  ///< the links': (byte of a piece, row, piece)
  int count, rows;
  uint32_t* barrier;
};

/// Bytes between rows of an input in shared memory: eight lanes that read every other 16 bytes of two rows meet all
/// banks.
__host__ __device__ constexpr int input_stride(int row_bytes) {
  return (row_bytes + 127) / 128 * 128 + 16;
}

/// Sums of a tile by halves (gate, up), warps, rows and columns: two tiles in turn.
constexpr int kSumSlots = 2;
__host__ __device__ constexpr int sums_bytes(int rows) {
  return kSumSlots * 2 * kChainWarps * rows * kChainCols * static_cast<int>(sizeof(float));
}

/// Where a row's 16 sums begin.
__device__ __forceinline__ int sum_index(int slot, int half, int warp, int row, int rows) {
  return (((slot * 2 + half) * kChainWarps + warp) * rows + row) * kChainCols;
}

/// The shared memory's head; the sums lie behind it, then the input.
template <int kSlots>
struct ChainShared {
  hopper::Ring<kSlots> ring;
  hopper::Ring<kSumSlots> sums_ring;
  float partial[2][kChainWarps][kChainRows];  ///< in turn: of rows, by warps
  float input_scale_inv;
  alignas(1024) uint8_t slots[kSlots][kSlotBytes];
};

/// The first of this block's tiles of a linear; `before`: tiles of those in front.
__device__ __forceinline__ int first_tile(int before) {
  const int blocks = static_cast<int>(gridDim.x);
  return (static_cast<int>(blockIdx.x) + blocks - before % blocks) % blocks;
}

// Barriers of a block: all but the producer, those who finish, those who multiply.
__device__ __forceinline__ void sync_chain() {
  hopper::named_barrier_sync<kChainConsumers + kFinishers>(1);
}
__device__ __forceinline__ void sync_finishers() {
  hopper::named_barrier_sync<kFinishers>(2);
}
__device__ __forceinline__ void sync_consumers() {
  hopper::named_barrier_sync<kChainConsumers>(3);
}

/// Of all blocks, by one thread of each: what a block has written before it arrives is seen by all who have waited. The
/// upper bit of the state turns when all have arrived, and the rest returns to zero.
class GridBarrier {
 public:
  /// No launch that uses the state is under way any more, and none of this one's blocks has passed it.
  __device__ explicit GridBarrier(uint32_t* state) : state_(state), turn_(load() & kTurn) {}

  __device__ void arrive_and_wait() {
    __threadfence();
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(state_),
                 "r"(blockIdx.x == 0 ? kTurn - (gridDim.x - 1) : 1u)
                 : "memory");
    turn_ ^= kTurn;
    while ((load() & kTurn) != turn_) {
    }
    __threadfence();
  }

 private:
  static constexpr uint32_t kTurn = 0x80000000u;
  __device__ uint32_t load() const {
    uint32_t now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(state_) : "memory");
    return now;
  }
  uint32_t* state_;
  uint32_t turn_;
};

}  // namespace te::kernels::cuda
