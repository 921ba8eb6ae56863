// A product in BF16 whose tiles go through an activation on their way out: what is common to all of them.
//
// Two blocks of the grid, a cluster, work on tiles of 128 x 192 below one another, so each loads half of the columns' operand
// and sends it to both. In a block one thread loads, and two warpgroups multiply, each a tile of its own, in turn: while one's
// products run, the other's tile goes through the epilogue. An epilogue (activation_epilogues.cuh) finds in buffers of shared
// memory what it needs and leaves there what it makes; another thread moves these from and to memory.
//
// Blocks stay for all tiles, as many as run at a time. Buffers are handed on in the order of tiles, so epilogues take
// turns, too.
#pragma once

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/hopper.cuh"

namespace te::kernels::fused {

using namespace hopper;

constexpr int kRows = 128;     ///< of a tile
constexpr int kColumns = 192;  ///< of a tile
constexpr int kDepth = 64;     ///< of what is summed over, in a stage
constexpr int kStages = 4;
constexpr int kBuffers = 8;  ///< of 64 rows of 64 values
constexpr int kStores = 3;   ///< under way at a time
constexpr uint32_t kBufferBytes = 64 * 64 * sizeof(__nv_bfloat16);
constexpr int kCluster = 2;
constexpr int kConsumers = 2;
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kThreads = kConsumerThreads + kWarpgroup;
constexpr int kHalves = kRows / 64;  ///< of a tile's rows, as one instruction multiplies them
constexpr int kWarps = kWarpgroup / kWarpSize;

/// Barriers of warps, each the first of two, one for either warpgroup.
constexpr int kProducts = 1, kEpilogues = 3, kSums = 5;

/// Sums of a tile: thread t of the warpgroup has, of either half, what hopper.cuh's `product` says.
using Accumulators = float[kHalves][kColumns / 2];

struct ProductShared {
  __nv_bfloat16 a[kStages][kRows * kDepth];
  __nv_bfloat16 b[kStages][kColumns * kDepth];
  __nv_bfloat16 buffer[kBuffers][64 * 64];
  float sums[kConsumers][kWarps][64];
  uint64_t full[kStages], empty[kStages], open[kBuffers], ready[kBuffers];

  __device__ void init_barriers() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kWarps * kCluster);
    }
    for (int i = 0; i < kBuffers; ++i) {
      barrier_init(&open[i], 1);
      barrier_init(&ready[i], kWarps);
    }
    fence_barrier_init();
  }
};

/// Tensors in boxes (tensor_map.h). Blocks are the gate and the up projection of SwiGLU; GELU has one.
struct ProductMaps {
  CUtensorMap a;  ///< [rows, depth] in boxes of kRows x kDepth
  /// [blocks, columns, depth] in boxes of 1 x (a cluster's share of kColumns) x kDepth; or [depth, columns] in boxes of (its share
  /// of kDepth) x 64.
  CUtensorMap b;
  CUtensorMap
      x;  ///< the activation's input [rows, blocks, columns], read or written, in boxes of 64 x 1 x (64 or 32)
  CUtensorMap y;   ///< the activation's result [rows, columns], written, as x
  CUtensorMap dx;  ///< the gradient of x, written, as x
};

struct ProductParams {
  int clusters_of_rows, column_tiles, depth_stages;
  int together;  ///< clusters of rows that take turns at a tile of columns, so that operands are found in the L2 cache
  int tiles;                  ///< of clusters
  int rows, columns;          ///< of the activation's result
  const __nv_bfloat16* bias;  ///< [columns] or null
  float* partial;             ///< [ceil(rows / kRows), columns] or null: sums over the rows of a tile
};

struct Place {
  int row, column;  ///< tiles
};

/// The tiles of this block, one after the other.
class Tiles {
 public:
  explicit __device__ Tiles(const ProductParams& p) : p_(p), at_(static_cast<int>(blockIdx.x) / kCluster) {}
  __device__ bool end() const { return at_ >= p_.tiles; }
  __device__ void next(int count = 1) { at_ += count * static_cast<int>(gridDim.x) / kCluster; }
  __device__ Place place() const {
    const int of_group = p_.together * p_.column_tiles, group = at_ / of_group,
              within = at_ - group * of_group;
    const int first = group * p_.together, clusters = min(p_.together, p_.clusters_of_rows - first);
    return {(first + within % clusters) * kCluster + static_cast<int>(cluster_rank()), within / clusters};
  }

 private:
  const ProductParams& p_;
  int at_;
};

/// A stage, one after the other in a ring, and the parity of its barriers' phase.
struct Stage {
  int at = 0, parity = 0;
  __device__ void next(int count = 1) {
    at += count;
    parity ^= at / kStages % 2;
    at %= kStages;
  }
};

// --- the threads that move data ------------------------------------------------------------------------------------

/// kB: columns, where b is [columns, depth]; rows, where it is [depth, columns]. kBlocks of columns share a tile.
template <Sum kB, int kBlocks>
__device__ void load_operands(ProductShared& s, const ProductParams& p, const ProductMaps& maps) {
  const int rank = static_cast<int>(cluster_rank());
  constexpr uint16_t kAll = (1 << kCluster) - 1;
  Stage stage;
  for (Tiles tiles(p); !tiles.end(); tiles.next()) {
    const Place tile = tiles.place();
    for (int k = 0; k < p.depth_stages; ++k, stage.next()) {
      uint64_t* const full = &s.full[stage.at];
      wait(&s.empty[stage.at], stage.parity ^ 1);
      arrive_expect_bytes(full, sizeof(s.a[0]) + sizeof(s.b[0]));
      load_box(s.a[stage.at], &maps.a, full, k * kDepth, tile.row * kRows, 0);
      if constexpr (kB == Sum::columns) {
        constexpr int kShare = kColumns / kCluster, kOfBlock = kColumns / kBlocks;
        const int first = rank * kShare;
        load_box_for(kAll, s.b[stage.at] + first * kDepth, &maps.b, full, k * kDepth,
                     tile.column * kOfBlock + first % kOfBlock, first / kOfBlock);
      } else {
        constexpr int kShare = kDepth / kCluster;
        for (int c = 0; c < kColumns / 64; ++c)
          load_box_for(kAll, s.b[stage.at] + (c * kDepth + rank * kShare) * 64, &maps.b, full,
                       tile.column * kColumns + c * 64, k * kDepth + rank * kShare, 0);
      }
    }
  }
}

/// Takes what epilogues have made to memory, and brings what the next ones read.
template <class Epilogue>
__device__ void move_buffers(ProductShared& s, const ProductParams& p, const ProductMaps& maps) {
  Tiles tiles(p), ahead(p);
  int slot_ahead = 0;
  const auto open = [&](int buffer) {
    if constexpr (Epilogue::kReads) {
      if (ahead.end()) return;
      Epilogue::load(maps, s.buffer[buffer], &s.open[buffer], slot_ahead, ahead.place());
      if (++slot_ahead < Epilogue::kSlots) return;
      slot_ahead = 0;
      ahead.next();
    } else {
      arrive(&s.open[buffer]);
    }
  };
  for (int i = 0; i < kBuffers; ++i) open(i);
  int number = 0;
  for (; !tiles.end(); tiles.next())
    for (int slot = 0; slot < Epilogue::kSlots; ++slot, ++number) {
      const int buffer = number % kBuffers;
      wait(&s.ready[buffer], number / kBuffers % 2);
      Epilogue::store(maps, s.buffer[buffer], slot, tiles.place());
      commit_stores();
      wait_for_sources<kStores - 1>();
      if (number >= kStores - 1) open((number - (kStores - 1)) % kBuffers);
    }
  wait_for_sources<0>();
}

// --- what a warpgroup does -----------------------------------------------------------------------------------------

/// The buffers that a warpgroup's tile goes through, in order.
class Buffers {
 public:
  __device__ Buffers(ProductShared& s, int number) : s_(s), number_(number) {}
  /// Waits for the buffer that is `ahead` after the one at hand; its address.
  __device__ __forceinline__ uint32_t open(int ahead = 0) const {
    const int number = number_ + ahead;
    wait(&s_.open[number % kBuffers], number / kBuffers % 2);
    return shared_address(s_.buffer[number % kBuffers]);
  }
  /// This warp is done with `count` of them.
  __device__ __forceinline__ void pass_on(int count) {
    fence_shared_for_async();
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0)
      for (int i = 0; i < count; ++i) arrive(&s_.ready[(number_ + i) % kBuffers]);
    number_ += count;
  }
  __device__ __forceinline__ void skip(int count) { number_ += count; }

 private:
  ProductShared& s_;
  int number_;
};

/// All products of a tile. Ends the warpgroup's turn when they are under way.
template <Sum kB, class EndTurn>
__device__ __forceinline__ void multiply(ProductShared& s, const ProductParams& p, Accumulators& sums,
                                         Stage& stage, int lane, EndTurn end_turn) {
  const uint32_t a_base = shared_address(s.a), b_base = shared_address(s.b);
  const auto release = [&](int of) {
    if (lane < kCluster) arrive_at(&s.empty[of], lane);
  };
  int before = 0;
  for (int k = 0; k < p.depth_stages; ++k, stage.next()) {
    wait(&s.full[stage.at], stage.parity);
    product_fence();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i) {
      const uint32_t b = b_base + stage.at * static_cast<uint32_t>(sizeof(s.b[0]));
      const uint64_t b_operand = kB == Sum::columns
                                     ? operand(b + i * 32)
                                     : operand(b + i * 16 * kTileRowBytes, kDepth * kTileRowBytes);
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        product<kColumns, Sum::columns, kB>(
            sums[h],
            operand(a_base + stage.at * static_cast<uint32_t>(sizeof(s.a[0])) + h * 64 * kTileRowBytes +
                    i * 32),
            b_operand, true);
    }
    product_commit();
    product_wait<1>();
    if (k > 0) release(before);
    before = stage.at;
  }
  end_turn();
  product_wait<0>();
#pragma unroll
  for (int h = 0; h < kHalves; ++h) arrived(sums[h]);
  release(before);
}

template <class Epilogue, Sum kB>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ ProductMaps maps, const __grid_constant__ ProductParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<ProductShared*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % kWarpSize;
  if (threadIdx.x == 0) s.init_barriers();
  sync_cluster();
  if (warpgroup == kConsumers) {
    give_registers<40>();
    if (thread == 0) load_operands<kB, Epilogue::kBlocks>(s, p, maps);
    if (thread == kWarpSize) move_buffers<Epilogue>(s, p, maps);
    __syncwarp();
  } else {
    take_registers<232>();
    // Turns at products, and at epilogues: buffers are used in the order of tiles.
    const auto begin_turn = [&](int of) { sync_warps<kConsumerThreads>(of + warpgroup); };
    const auto end_turn = [&](int of) { arrive_warps<kConsumerThreads>(of + 1 - warpgroup); };
    Tiles tiles(p);
    Stage stage;
    Buffers buffers(s, warpgroup * Epilogue::kSlots);
    if (warpgroup == 1) {
      end_turn(kProducts);
      end_turn(kEpilogues);
      tiles.next();
      stage.next(p.depth_stages);
    }
    for (; !tiles.end(); tiles.next(kConsumers)) {
      // Zeros rather than a first product that writes: what the epilogue has used up is free for it then.
      Accumulators sums = {};
      begin_turn(kProducts);
      multiply<kB>(s, p, sums, stage, lane, [&] { end_turn(kProducts); });
      stage.next(p.depth_stages);  // the other warpgroup's
      begin_turn(kEpilogues);
      Epilogue::run(s, p, sums, buffers, tiles.place(), warpgroup);
      end_turn(kEpilogues);
      buffers.skip(Epilogue::kSlots);
    }
  }
  sync_cluster();  // the other block may still tell this one of stages
}

}  // namespace te::kernels::fused
