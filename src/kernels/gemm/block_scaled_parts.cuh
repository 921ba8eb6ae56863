// Building blocks of block_scaled_mainloop.cuh's kernels: tile configurations, shared memory, parameters and tile
// scheduling.
#pragma once

#include <type_traits>

#include "kernels/gemm/matrix.h"
#include "kernels/hopper/hopper.cuh"

namespace te::kernels::block_scaled {

using namespace hopper;

constexpr int kDepth = static_cast<int>(kScaleBlock);  ///< per stage, in values of one byte
constexpr int kCluster = 2;
constexpr uint16_t kAllOfCluster = (1 << kCluster) - 1;
constexpr int kOrderBarrier = 1;  ///< and the next one
static_assert(kDepth == kTileRowBytes, "a row of a stage is a row of a tile in the 128-byte swizzle");

/// Tile configuration: 64-row halves per warpgroup, columns, operand stages, result buffers of one half each.
template <int kHalves_, int kColumns_, int kStages_, int kBuffers_, bool kOrdered_>
struct Cut {
  static constexpr int kHalves = kHalves_, kColumns = kColumns_, kStages = kStages_, kBuffers = kBuffers_;
  static constexpr bool kOrdered = kOrdered_;
  static constexpr int kRows = kConsumers * 64 * kHalves;
  static constexpr bool kSharesA =
      kHalves == 2;  ///< the cluster's tiles are horizontally adjacent, otherwise vertically
};

/// Operand formats, layout of b's scales and dtype of the result.
template <DType kA_, DType kB_, ScaleLayout kScales, DType kOut_>
struct Kind {
  static constexpr DType kA = kA_, kB = kB_, kOut = kOut_;
  static constexpr bool kVectors = kScales == ScaleLayout::vectors;
  static_assert(kVectors || kScales == ScaleLayout::blocks);
  static constexpr int kOutBytes = kOut == DType::f32 ? 4 : 2;
};

/// b's scales of a stage, one per column, in the order in which threads read them: for each t, the scales of columns 8
/// g + 2 t and 8 g + 2 t + 1 for all g. The four runs begin in different banks.
template <int kColumns>
struct ColumnScales {
  static constexpr int kRun = kColumns / 4 + 4;
  alignas(16) float values[4 * kRun];
  static __device__ __forceinline__ int place(int column) {
    return column % 8 / 2 * kRun + column / 8 * 2 + column % 2;
  }
};
struct NoColumnScales {};

template <class C, class K>
struct Shared {
  uint8_t a[C::kStages][C::kRows * kDepth];
  uint8_t b[C::kStages][C::kColumns * kDepth];
  uint8_t results[kConsumers][C::kBuffers]
                 [64 * C::kColumns * K::kOutBytes];  ///< tiles of 64 rows x 128 bytes
  std::conditional_t<K::kVectors, ColumnScales<C::kColumns>, NoColumnScales> b_scales[C::kStages];
  Ring<C::kStages> operands;

  __device__ void init_barriers() {
    operands.init(K::kVectors ? 1 + kWarpSize : 1, kConsumerWarps * kCluster);
    fence_mbarrier_init();
  }
};

/// Tensor maps with boxes of 128 bytes per row (tensor_map.h).
struct Maps {
  CUtensorMap a;    ///< [rows, depth]; boxes of a block's rows, or of its part of shared rows
  CUtensorMap b;    ///< [columns, depth]; boxes likewise
  CUtensorMap out;  ///< [rows, columns]; boxes of 16 rows
};

struct Params {
  TileGrid grid;  ///< of clusters
  int depth_blocks, rows, columns;
  const float *a_scales, *b_scales;  ///< layouts of matrix.h
  int64_t a_stride, b_stride;        ///< strides for 128 values of k (vectors) or 128 columns (blocks)
  const __nv_bfloat16* bias;         ///< [columns] or null; only with blocks
  bool accumulate;                   ///< only with vectors (wgrad)
};

/// Tiles of this block.
template <class C>
class BlockTileScheduler : public PersistentTileScheduler<kCluster> {
 public:
  explicit __device__ BlockTileScheduler(const Params& p) : PersistentTileScheduler(p.grid) {}
  __device__ TileCoord coord() const {
    const TileCoord of_cluster = PersistentTileScheduler::coord();
    const int rank = static_cast<int>(cluster_rank());
    if (C::kSharesA) return {of_cluster.row, of_cluster.column * kCluster + rank};
    return {of_cluster.row * kCluster + rank, of_cluster.column};
  }
};

}  // namespace te::kernels::block_scaled
