// Grouped GEMMs in FP8 on Hopper's tensor cores (grouped_gemm.h; core: kernels/hopper/hopper.cuh; tiles:
// grouped_tiles.cuh). Operands have the summed dimension last, the only order that FP8 instructions take.
//
// Tensor cores keep 13 to 14 bits of a sum (wgmma.cuh). Sums over the 128 values of a stage are therefore added to FP32
// registers (promoted), multiplied by the stage's scales if there are any:
//
//   scales          of a            of b            applied to
//   experts         one             one             the result
//   fprop, dgrad    128 of a row    128 x 128       sums of a stage
//   wgrad           128 of a row    128 of a row    sums of a stage
//
// Fast accumulation does not promote (grouped_gemm_hopper.cu).
//
// The sums of a tile and of half a stage fill a warpgroup's registers, so its tensor cores idle while it promotes. The
// two warpgroups of a block therefore share nothing: each has its own tiles, stages and loading thread, and multiplies
// while the other promotes or stores results.
#include <limits>
#include <type_traits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/row_blocks.h"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"
#include "kernels/moe/grouped_tiles.cuh"

namespace te::kernels::cuda {
namespace {

using namespace grouped;

constexpr int kColumns = 128;                ///< of a tile
constexpr int kDepth = kScaleBlock;          ///< summed values per stage: 128 bytes
constexpr int kStepDepth = 32;               ///< summed values per instruction
constexpr int kSteps = kDepth / kStepDepth;  ///< per stage
constexpr int kStages = 3;                   ///< of each warpgroup
static_assert(kDepth == kTileRowBytes && kRows == kScaleBlock && kColumns == kScaleBlock &&
              kDepth == kRowBlock);

/// Scales of the sums of a stage.
enum class StageScales : uint8_t {
  none,
  rows,          ///< a has vectors, b blocks
  rows_columns,  ///< both have vectors
};

struct OperandStages {
  uint8_t a[kStages][kRows * kTileRowBytes];
  uint8_t b[kStages][kColumns * kTileRowBytes];
};

struct Fp8Shared {
  OperandStages operands[kConsumers];
  float a_scales[kConsumers][kStages][kRows];
  float b_scales[kConsumers][kStages][kColumns];
  Ring<kStages> rings[kConsumers];
  ExpertRanges ranges;
};

struct Fp8Maps {
  CUtensorMap a;  ///< rows: [rows, k]; wgrad: [blocks of rows, m, 128]; in boxes of kRows x kDepth
  /// Boxes of a block's share, kColumns / 2 x kDepth. rows: [E, n, k], or [n, E, k] (transposed); wgrad: [blocks of
  /// rows, n, 128].
  CUtensorMap b;
};

/// Inverse scales of an operand (matrix.h): one per expert, or
///   vectors  of row i and group g of 128 summed values: data[g * stride + i], i < count
///   blocks   of columns from column c of expert e on, and group g: data[(e * expert_rows + c / 128) * stride
///            + e * expert_columns + g]
struct Fp8Scales {
  const float* data;
  int64_t stride;
  int count, expert_rows, expert_columns;
};

struct Fp8Params {
  GroupedParams gemm;
  Fp8Scales a, b;
  bool transposed;  ///< b
};

/// Loads the vector scales of a tile's rows (or columns) from `first` on in a group of summed values. The tile of the
/// second block can start after the last row.
__device__ __forceinline__ uint32_t scale_bytes(const Fp8Scales& scales, int first) {
  return max(0, min(kRows, scales.count - first)) * static_cast<int>(sizeof(float));
}
__device__ __forceinline__ void load_scales(float* to, const Fp8Scales& scales, int first, int group,
                                            uint64_t* full) {
  const uint32_t bytes = scale_bytes(scales, first);
  if (bytes > 0) bulk_load(to, scales.data + group * scales.stride + first, bytes, full);
}

/// Loads the operands of one warpgroup's tiles.
template <class Order, StageScales kScales>
__device__ void load_tiles(Fp8Shared& s, const Fp8Params& p, const Fp8Maps& maps, int warpgroup) {
  constexpr bool kWgrad = std::is_same_v<Order, WgradOrder<kColumns>>;
  constexpr int kShare = kColumns / kCluster;
  const int count = Order::count(s.ranges, p.gemm), own = static_cast<int>(cluster_rank()) * kShare;
  Ring<kStages>& ring = s.rings[warpgroup];
  OperandStages& operands = s.operands[warpgroup];
  Ring<kStages>::Producer at;
  const int first = static_cast<int>(blockIdx.x) / kCluster * kConsumers + warpgroup;
  for (int i = first; i < count; i += static_cast<int>(gridDim.x) / kCluster * kConsumers) {
    const GroupedTile tile = Order::tile(s.ranges, p.gemm, i);
    const int stages = tile.stages<kDepth>();
    for (int k = 0; k < stages; ++k, at.next()) {
      const auto slot = ring.acquire(at);
      const int stage = slot.stage(), depth = tile.first_depth + k * kDepth;
      uint64_t* const full = ring.full(slot);
      uint32_t bytes = sizeof(operands.a[0]) + sizeof(operands.b[0]);
      if constexpr (kScales != StageScales::none) bytes += scale_bytes(p.a, tile.row);
      if constexpr (kScales == StageScales::rows_columns) bytes += scale_bytes(p.b, tile.column);
      ring.commit(slot, bytes);
      const int at_depth = kWgrad ? 0 : depth, block = depth / kDepth, column = tile.column + own;
      tma_load(operands.a[stage], &maps.a, full, at_depth, tile.row, kWgrad ? block : 0);
      tma_load_multicast(kAllBlocks, operands.b[stage] + own * kTileRowBytes, &maps.b, full, at_depth,
                         p.transposed ? tile.expert : column,
                         kWgrad         ? block
                         : p.transposed ? column
                                        : tile.expert);
      if constexpr (kScales != StageScales::none)
        load_scales(s.a_scales[warpgroup][stage], p.a, tile.row, depth / kDepth, full);
      if constexpr (kScales == StageScales::rows_columns)
        load_scales(s.b_scales[warpgroup][stage], p.b, tile.column, depth / kDepth, full);
    }
  }
}

/// Adds the sums of a stage (64 rows) to the tile's. a: scales of the stage's rows, [kRows]; b: scales of its columns,
/// or one for all columns.
template <StageScales kScales>
__device__ __forceinline__ void promote(float (&sums)[kColumns / 2], const float (&stage)[kColumns / 2],
                                        const float* a, const float* b, float b_block, const Thread& thread) {
  if constexpr (kScales == StageScales::none) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sums[i] += stage[i];
    return;
  }
  float of_rows[2] = {a[thread.row()], a[thread.row() + 8]};
  if constexpr (kScales == StageScales::rows) {
    of_rows[0] *= b_block, of_rows[1] *= b_block;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sums[i] = fmaf(stage[i], of_rows[i / 2 % 2], sums[i]);
  } else {
#pragma unroll
    for (int g = 0; g < kColumns / 8; ++g) {
      const float2 of_columns = *reinterpret_cast<const float2*>(b + g * 8 + thread.column());
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float* const sum = sums + g * 4 + row * 2;
        sum[0] = fmaf(stage[g * 4 + row * 2], of_rows[row] * of_columns.x, sum[0]);
        sum[1] = fmaf(stage[g * 4 + row * 2 + 1], of_rows[row] * of_columns.y, sum[1]);
      }
    }
  }
}

/// GEMM of a tile. kA: dtype of a. Blocks of rows are of one expert, and TMA fills what is beyond k with zeros.
template <class Order, DType kA, StageScales kScales>
__device__ __forceinline__ void multiply(Fp8Shared& s, const Fp8Params& p, const GroupedTile& tile,
                                         Accumulators<kColumns>& sums, Ring<kStages>::Consumer& at,
                                         const Thread& thread) {
  Ring<kStages>& ring = s.rings[thread.warpgroup];
  OperandStages& operands = s.operands[thread.warpgroup];
  const int stages = tile.stages<kDepth>();
  const float* b_blocks = nullptr;
  if constexpr (kScales == StageScales::rows)
    b_blocks = p.b.data +
               (static_cast<int64_t>(tile.expert) * p.b.expert_rows + tile.column / kColumns) * p.b.stride +
               static_cast<int64_t>(tile.expert) * p.b.expert_columns;
#pragma unroll 1
  for (int k = 0; k < stages; ++k, at.next()) {
    float b_block = 1.0f;
    if constexpr (kScales == StageScales::rows) b_block = __ldg(b_blocks + k);
    const auto slot = ring.wait(at);
    const int stage = slot.stage();
    const uint64_t a = descriptor(stage_address(operands.a, stage)),
                   b = descriptor(stage_address(operands.b, stage));
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float of_stage[kColumns / 2];
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        wgmma_fp8<kColumns, kA, DType::e4m3>(of_stage, advance(a, h * kWarpgroupTileBytes + step * 32),
                                             advance(b, step * 32), step > 0);
      wgmma_commit();
      wgmma_wait<0>(of_stage);
      promote<kScales>(sums[h], of_stage, s.a_scales[thread.warpgroup][stage] + h * 64,
                       s.b_scales[thread.warpgroup][stage], b_block, thread);
    }
    __syncwarp();  // all lanes have read the scales
    if (thread.lane < kCluster) ring.release_at(slot, thread.lane);
  }
}

template <class Order, DType kA, StageScales kScales, class Out>
__device__ __forceinline__ void compute_tiles(Fp8Shared& s, const Fp8Params& p, const Thread& thread) {
  const GroupedParams& gemm = p.gemm;
  const int count = Order::count(s.ranges, gemm);
  const int first = static_cast<int>(blockIdx.x) / kCluster * kConsumers + thread.warpgroup;
  Ring<kStages>::Consumer at;
  for (int i = first; i < count; i += static_cast<int>(gridDim.x) / kCluster * kConsumers) {
    const GroupedTile tile = Order::tile(s.ranges, gemm, i);
    const int64_t first_row =
        std::is_same_v<Order, WgradOrder<kColumns>> ? static_cast<int64_t>(tile.expert) * gemm.m : 0;
    Accumulators<kColumns> sums = {};
    multiply<Order, kA, kScales>(s, p, tile, sums, at, thread);
    if (tile.depth == 0 && gemm.accumulate) continue;
    if constexpr (kScales == StageScales::none) {
      const float scale = p.a.data[tile.expert] * p.b.data[tile.expert];
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
#pragma unroll
        for (float& sum : sums[h]) sum *= scale;
    }
    store_tile<kColumns, Out>(gemm, tile, first_row, sums, thread);
  }
}

template <class Order, DType kA, StageScales kScales, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_fp8_kernel(const __grid_constant__ Fp8Maps maps, const __grid_constant__ Fp8Params p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Fp8Shared*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) {
    for (Ring<kStages>& ring : s.rings) ring.init(1, kWarps * kCluster);
    fence_mbarrier_init();
  }
  read_offsets(s.ranges, p.gemm);
  sync_cluster();
  if (thread.is_producer()) {
    setmaxnreg_dec<40>();
    if (thread.warp < kConsumers && thread.lane == 0) load_tiles<Order, kScales>(s, p, maps, thread.warp);
    __syncwarp();
  } else {
    setmaxnreg_inc<232>();
    compute_tiles<Order, kA, kScales, Out>(s, p, thread);
  }
  sync_cluster();  // the other block may still signal this one's barriers
}

/// Whether values can be copied in boxes, and vector scales in bulk.
bool fits_loads(const Matrix& matrix) {
  const bool vectors = matrix.layout == ScaleLayout::vectors;
  return fits_tma(matrix.values) && (!vectors || (matrix.rows() % 4 == 0 && matrix.scale_stride % 4 == 0 &&
                                                  is_aligned(matrix.scales.data, 16)));
}

/// Boxes of `box_rows` of m x a block of the rows of [m, rows].
CUtensorMap boxes_of_row_blocks(const Tensor& tensor, int64_t box_rows) {
  const int64_t m = tensor.rows(), rows = tensor.cols();
  return tensor_map(tensor.data,
                    {.dims = {kRowBlock, m, rows / kRowBlock},
                     .strides = {1, kRowBlock, m * kRowBlock},
                     .box = {kRowBlock, box_rows, 1}},
                    tensor.dtype);
}

/// `b_layout`: of b if a has vectors.
bool fits(const Matrix& a, const Matrix& b, ScaleLayout b_layout, const RowRanges& ranges,
          const Tensor& out) {
  const bool one = a.layout == ScaleLayout::tensor;
  if (!one && (a.layout != ScaleLayout::vectors || b.layout != b_layout)) return false;
  return is_fp8(a.dtype()) && b.dtype() == DType::e4m3 && fits_loads(a) && fits_loads(b) &&
         fits_store(out, ranges);
}

/// b_rows, b_columns: of one expert in b, for blocks.
Fp8Scales scales_of(const Matrix& matrix, int64_t rows = 0, int64_t columns = 0) {
  const bool vectors = matrix.layout == ScaleLayout::vectors;
  return {.data = matrix.scales.as<float>(),
          .stride = !vectors                  ? matrix.scales.cols()
                    : matrix.scale_stride > 0 ? matrix.scale_stride
                                              : matrix.rows(),
          .count = static_cast<int>(matrix.rows()),
          .expert_rows = static_cast<int>(rows / kScaleBlock),
          .expert_columns = static_cast<int>(columns / kScaleBlock)};
}

/// Launches the kernel for the dtypes of the operands and the result.
template <class Order, StageScales kScales>
void launch(const Context& context, int64_t max_tiles, const Fp8Maps& maps, const Fp8Params& params, DType a,
            DType out) {
  // A cluster works on two pairs at a time.
  const int clusters =
      static_cast<int>(std::min<int64_t>(ceil_div(max_tiles, kConsumers), std::numeric_limits<int>::max()));
  if (clusters == 0) return;
  const auto run = [&]<DType kA, class Out>() {
    launch_persistent<grouped_fp8_kernel<Order, kA, kScales, Out>, Fp8Shared, kCluster>(context, clusters,
                                                                                        maps, params);
  };
  const bool f32 = out == DType::f32;
  if (a == DType::e4m3)
    f32 ? run.template operator()<DType::e4m3, float>()
        : run.template operator()<DType::e4m3, __nv_bfloat16>();
  else
    f32 ? run.template operator()<DType::e5m2, float>()
        : run.template operator()<DType::e5m2, __nv_bfloat16>();
}

}  // namespace

bool grouped_gemm_fp8_hopper(const Context& context, const GroupedGemm& args) {
  const Matrix &a = args.a, &b = args.b;
  const RowRanges ranges = ranges_of(args.offsets);
  if (!fits(a, b, ScaleLayout::blocks, ranges, args.out)) return false;
  const int64_t experts = ranges.experts, n = args.out.cols(), k = a.cols();
  // b is [E * n, k], or transposed [n, E * k].
  const CUtensorMap b_map = args.trans_b ? boxes_of(b.values, experts, kColumns / kCluster)
                                         : tensor_map(b.values.data,
                                                      {.dims = {k, experts, n},
                                                       .strides = {1, k, experts * k},
                                                       .box = {kDepth, 1, kColumns / kCluster}},
                                                      DType::e4m3);
  const Fp8Params params{.gemm = params_of(ranges, args.out, 0, k, args.accumulate),
                         .a = scales_of(a),
                         .b = args.trans_b ? scales_of(b, n, 0) : scales_of(b, 0, k),
                         .transposed = !args.trans_b};
  const int64_t max_tiles = row_tiles<kColumns>(a.rows(), ranges, args.out);
  const Fp8Maps maps{.a = boxes_of(a.values, 1, kRows), .b = b_map};
  using Order = RowOrder<kColumns>;
  if (a.layout == ScaleLayout::tensor)
    launch<Order, StageScales::none>(context, max_tiles, maps, params, a.dtype(), args.out.dtype);
  else
    launch<Order, StageScales::rows>(context, max_tiles, maps, params, a.dtype(), args.out.dtype);
  return true;
}

bool grouped_wgrad_fp8_hopper(const Context& context, const GroupedWgrad& args) {
  const Matrix &a = args.a, &b = args.b;
  const RowRanges ranges = ranges_of(args.offsets);
  if (args.alignment % kRowBlock != 0 || a.cols() % kRowBlock != 0 ||
      !fits(a, b, ScaleLayout::vectors, ranges, args.out))
    return false;
  const int64_t m = a.rows();
  const Fp8Params params{.gemm = params_of(ranges, args.out, m, 0, args.accumulate),
                         .a = scales_of(a),
                         .b = scales_of(b),
                         .transposed = false};
  const int64_t max_tiles = wgrad_tiles<kColumns>(m, ranges, args.out);
  const Fp8Maps maps{.a = boxes_of_row_blocks(a.values, kRows),
                     .b = boxes_of_row_blocks(b.values, kColumns / kCluster)};
  using Order = WgradOrder<kColumns>;
  if (a.layout == ScaleLayout::tensor)
    launch<Order, StageScales::none>(context, max_tiles, maps, params, a.dtype(), args.out.dtype);
  else
    launch<Order, StageScales::rows_columns>(context, max_tiles, maps, params, a.dtype(), args.out.dtype);
  return true;
}

}  // namespace te::kernels::cuda
