// Grouped GEMMs on Hopper's tensor cores whose sums stay in their accumulators: BF16, and FP8 with fast accumulation
// (grouped_gemm.h; core: kernels/hopper/hopper.cuh; tiles: grouped_tiles.cuh).
//
// One persistent kernel computes the tiles of all experts. Each of the two blocks of a cluster loads half of the column
// operand and multicasts it to both. In a block, one thread loads the operands, and two warpgroups alternate
// (ping-pong), each with a tile of its own: while one multiplies, the other stores its results.
//
// Some pairs of tiles in turn use the same columns of a weight, which stay in the L2 cache. In wgrad, sums stop at the
// end of an expert's range, a multiple of 16 rows (one instruction).
#include <limits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"
#include "kernels/moe/grouped_tiles.cuh"

namespace te::kernels::cuda {
namespace {

using namespace grouped;

constexpr int kColumns = 192;                ///< of a tile
constexpr int kDepth = 64;                   ///< summed BF16 values per stage
constexpr int kStepDepth = 16;               ///< summed BF16 values per instruction
constexpr int kSteps = kDepth / kStepDepth;  ///< per stage
constexpr int kStages = 5;
constexpr int kOrderBarrier = 1;  ///< the first of two named barriers
constexpr int kColumnTiles = kColumns / 64;

// An operand b that is summed over its rows is stored as the shares of the two blocks, each with its rows of all
// column tiles, so that one copy loads a share.
constexpr int kShareRows = kDepth / kCluster;
constexpr uint32_t kColumnTileBytes = kShareRows * kTileRowBytes,
                   kShareBytes = kColumnTiles * kColumnTileBytes;

struct GroupedShared {
  uint8_t a[kStages][kRows * kTileRowBytes];
  uint8_t b[kStages][kColumns * kTileRowBytes];
  Ring<kStages> operands;
  ExpertRanges ranges;
};

struct GroupedMaps {
  /// rows: [rows, k] in boxes of kRows x kDepth; wgrad: [rows, m] as [m / 64, rows, 64] in boxes of kHalves x kDepth x
  /// 64, or of kDepth x 64 if m is not a multiple of 64.
  CUtensorMap a;
  /// Boxes of a block's share. rows: [E, n, k] in boxes of kColumns / 2 x kDepth (trans_b), or [E, k, n]; wgrad:
  /// [1, rows, n]. The latter two as [E, n / 64, k, 64] in boxes of kColumnTiles x kShareRows x 64, or of kShareRows x
  /// 64 if n is not a multiple of 64.
  CUtensorMap b;
  bool whole_a, whole_shares;
};

/// Loads this block's share of b, which is summed over its rows, for both blocks.
__device__ __forceinline__ void load_rows_of_b(const GroupedMaps& maps, uint8_t* to, uint64_t* full,
                                               int column, int row, int expert) {
  const int rank = static_cast<int>(cluster_rank());
  to += rank * kShareBytes;
  row += rank * kShareRows;
  if (maps.whole_shares) {
    tma_load_multicast(kAllBlocks, to, &maps.b, full, 0, row, column / 64, expert);
    return;
  }
  for (int c = 0; c < kColumnTiles; ++c)
    tma_load_multicast(kAllBlocks, to + c * kColumnTileBytes, &maps.b, full, column + c * 64, row, expert);
}

/// Tiles of the rows of all experts. kMajor: of b.
template <Major kMajor, DType kType = DType::bf16>
struct RowTiles : RowOrder<kColumns> {
  static constexpr Major kA = Major::k, kB = kMajor;
  static constexpr bool kFp8 = kType == DType::e4m3;

  static __device__ void load_a(const GroupedMaps& maps, uint8_t* to, uint64_t* full, const GroupedTile& tile,
                                int depth) {
    tma_load(to, &maps.a, full, depth, tile.row, 0);
  }
  static __device__ void load_b(const GroupedMaps& maps, uint8_t* to, uint64_t* full, const GroupedTile& tile,
                                int depth) {
    if constexpr (kB == Major::k) {
      const int own = static_cast<int>(cluster_rank()) * (kColumns / kCluster);
      tma_load_multicast(kAllBlocks, to + own * kTileRowBytes, &maps.b, full, depth, tile.column + own,
                         tile.expert);
    } else {
      load_rows_of_b(maps, to, full, tile.column, depth, tile.expert);
    }
  }
};

/// Tiles of the weight gradients of all experts.
struct WgradTiles : WgradOrder<kColumns> {
  static constexpr Major kA = Major::mn, kB = Major::mn;
  static constexpr bool kFp8 = false;

  static __device__ void load_a(const GroupedMaps& maps, uint8_t* to, uint64_t* full, const GroupedTile& tile,
                                int depth) {
    if (maps.whole_a) return tma_load(to, &maps.a, full, 0, tile.first_depth + depth, tile.row / 64);
    for (int h = 0; h < kHalves; ++h)
      tma_load(to + h * kWarpgroupTileBytes, &maps.a, full, tile.row + h * 64, tile.first_depth + depth, 0);
  }
  static __device__ void load_b(const GroupedMaps& maps, uint8_t* to, uint64_t* full, const GroupedTile& tile,
                                int depth) {
    load_rows_of_b(maps, to, full, tile.column, tile.first_depth + depth, 0);
  }
};

/// Summed values per stage.
template <class Tiles>
constexpr int kStageDepth = Tiles::kFp8 ? 2 * kDepth : kDepth;
template <class Tiles>
__device__ __forceinline__ int stages_of(int depth) {
  return ceil_of(depth, kStageDepth<Tiles>);
}

template <class Tiles>
__device__ void load_tiles(GroupedShared& s, const GroupedParams& p, const GroupedMaps& maps) {
  const int count = Tiles::count(s.ranges, p);
  Ring<kStages>::Producer at;
  for (int i = blockIdx.x / kCluster; i < count; i += gridDim.x / kCluster) {
    const GroupedTile tile = Tiles::tile(s.ranges, p, i);
    const int stages = stages_of<Tiles>(tile.depth);
    for (int k = 0; k < stages; ++k, at.next()) {
      const auto slot = s.operands.acquire(at);
      uint64_t* const full = s.operands.full(slot);
      s.operands.commit(slot, sizeof(s.a[0]) + sizeof(s.b[0]));
      Tiles::load_a(maps, s.a[slot.stage()], full, tile, k * kStageDepth<Tiles>);
      Tiles::load_b(maps, s.b[slot.stage()], full, tile, k * kStageDepth<Tiles>);
    }
  }
}

/// One instruction per half: sums over kStepDepth values.
template <class Tiles>
__device__ __forceinline__ void multiply_step(Accumulators<kColumns>& sums, uint64_t a, uint64_t b,
                                              int step) {
  constexpr uint32_t kNextA = Tiles::kA == Major::k ? 32 : kStepDepth * kTileRowBytes;
  constexpr int kShareSteps = kShareRows / kStepDepth;
  const uint32_t b_at = Tiles::kB == Major::k ? step * 32
                                              : step / kShareSteps * kShareBytes +
                                                    step % kShareSteps * kStepDepth * kTileRowBytes;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const uint64_t a_half = advance(a, h * kWarpgroupTileBytes + step * kNextA);
    if constexpr (Tiles::kFp8)
      wgmma_fp8<kColumns, DType::e4m3, DType::e4m3>(sums[h], a_half, advance(b, b_at), true);
    else
      wgmma<kColumns, Tiles::kA, Tiles::kB>(sums[h], a_half, advance(b, b_at), true);
  }
}

/// GEMM of a tile. Lets the other warpgroup continue as soon as all instructions have been issued.
template <class Tiles>
__device__ __forceinline__ void multiply(GroupedShared& s, const GroupedTile& tile,
                                         Accumulators<kColumns>& sums, Ring<kStages>::Consumer& at,
                                         const Thread& thread, const OrderedSequenceBarrier& order) {
  using Slot = Ring<kStages>::FullSlot;
  constexpr uint32_t kNextTile = Tiles::kB == Major::k ? 0 : kColumnTileBytes;
  const auto release = [&](Slot slot) {
    if (thread.lane < kCluster) s.operands.release_at(slot, thread.lane);
  };
  const auto a_of = [&](Slot slot) { return descriptor(stage_address(s.a, slot.stage())); };
  const auto b_of = [&](Slot slot) { return descriptor(stage_address(s.b, slot.stage()), kNextTile); };
  // TMA fills what is beyond k with zeros, but not what is beyond an expert's rows.
  const int stages = stages_of<Tiles>(tile.depth),
            partial = Tiles::kA == Major::mn && tile.depth % kDepth != 0 ? 1 : 0;
  Slot before = Slot::none();
#pragma unroll 1
  for (int k = 0; k < stages - partial; ++k, at.next()) {
    const Slot slot = s.operands.wait(at);
    const uint64_t a = a_of(slot), b = b_of(slot);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) multiply_step<Tiles>(sums, a, b, step);
    wgmma_commit();
    wgmma_wait<1>();
    if (k > 0) release(before);
    before = slot;
  }
  if (partial == 0) order.arrive();
  wgmma_wait<0>(sums[0], sums[1]);
  if (stages > partial) release(before);
  if (partial == 0) return;
  const Slot slot = s.operands.wait(at);
  const uint64_t a = a_of(slot), b = b_of(slot);
#pragma unroll 1
  for (int step = 0; step < tile.last_steps<kDepth, kStepDepth>(); ++step) {
    wgmma_fence();
    multiply_step<Tiles>(sums, a, b, step);
    wgmma_commit();
    wgmma_wait<0>(sums[0], sums[1]);
  }
  order.arrive();
  release(slot);
  at.next();
}

template <class Tiles, class Out>
__device__ __forceinline__ void compute_tiles(GroupedShared& s, const GroupedParams& p,
                                              const Thread& thread) {
  const OrderedSequenceBarrier order(kOrderBarrier, thread.warpgroup);
  const int count = Tiles::count(s.ranges, p), stride = static_cast<int>(gridDim.x) / kCluster;
  Ring<kStages>::Consumer at;
  for (int i = static_cast<int>(blockIdx.x) / kCluster, own = 0; i < count; i += stride, own ^= 1) {
    if (own != thread.warpgroup) {
      at.skip(stages_of<Tiles>(Tiles::depth(s.ranges, p, i)));
      continue;
    }
    const GroupedTile tile = Tiles::tile(s.ranges, p, i);
    const int64_t first_row = Tiles::kA == Major::k ? 0 : static_cast<int64_t>(tile.expert) * p.m;
    Accumulators<kColumns> sums = {};
    order.wait();
    multiply<Tiles>(s, tile, sums, at, thread, order);
    if constexpr (Tiles::kFp8) {
      const float scale = p.a_scales[tile.expert] * p.b_scales[tile.expert];
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
#pragma unroll
        for (float& sum : sums[h]) sum *= scale;
    }
    if (tile.depth > 0 || !p.accumulate) store_tile<kColumns, Out>(p, tile, first_row, sums, thread);
  }
}

template <class Tiles, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_kernel(const __grid_constant__ GroupedMaps maps, const __grid_constant__ GroupedParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<GroupedShared*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) {
    s.operands.init(1, kWarps * kCluster);
    fence_mbarrier_init();
  }
  read_offsets(s.ranges, p);
  sync_cluster();
  if (thread.is_producer()) {
    setmaxnreg_dec<40>();
    if (thread.index == 0) load_tiles<Tiles>(s, p, maps);
    __syncwarp();
  } else {
    setmaxnreg_inc<232>();
    compute_tiles<Tiles, Out>(s, p, thread);
  }
  sync_cluster();  // the other block may still signal this one's barriers
}

bool fits(const Tensor& a, const Tensor& b, DType dtype, const RowRanges& ranges, const Tensor& out) {
  return fits_tma(a, dtype) && fits_tma(b, dtype) && fits_store(out, ranges);
}

template <class Tiles>
void launch(const Context& context, int64_t max_tiles, const GroupedMaps& maps, const GroupedParams& params,
            DType out) {
  const int tiles = static_cast<int>(std::min<int64_t>(max_tiles, std::numeric_limits<int>::max()));
  if (tiles == 0) return;
  if (out == DType::f32)
    launch_persistent<grouped_kernel<Tiles, float>, GroupedShared, kCluster>(context, tiles, maps, params);
  else
    launch_persistent<grouped_kernel<Tiles, __nv_bfloat16>, GroupedShared, kCluster>(context, tiles, maps,
                                                                                     params);
}

/// Sets the boxes of b [experts * rows, n], which is summed over its rows.
void set_shares(GroupedMaps& maps, const Tensor& b, int64_t experts) {
  const int64_t rows = b.rows() / experts, n = b.cols();
  maps.whole_shares = n % 64 == 0;
  maps.b = maps.whole_shares ? tensor_map(b.data, BoxesOf<4>{.dims = {64, rows, n / 64, experts},
                                                             .strides = {1, n, 64, rows * n},
                                                             .box = {64, kShareRows, kColumnTiles, 1}})
                             : boxes_of(b, experts, kShareRows);
}

/// BF16, or E4M3 with a scale per expert.
bool gemm_of_rows(const Context& context, const Matrix& a, const Matrix& b, bool trans_b,
                  const RowRanges& ranges, const Tensor& out, bool accumulate) {
  const bool fp8 = a.dtype() == DType::e4m3;
  if (fp8 && (!trans_b || a.layout != ScaleLayout::tensor || b.layout != ScaleLayout::tensor)) return false;
  if (!fits(a.values, b.values, fp8 ? DType::e4m3 : DType::bf16, ranges, out)) return false;
  GroupedParams params = params_of(ranges, out, 0, a.cols(), accumulate);
  if (fp8) params.a_scales = a.scales.as<float>(), params.b_scales = b.scales.as<float>();
  const int64_t max_tiles = row_tiles<kColumns>(a.rows(), ranges, out);
  GroupedMaps maps{.a = boxes_of(a.values, 1, kRows), .b = {}, .whole_a = false, .whole_shares = false};
  if (!trans_b) {
    set_shares(maps, b.values, ranges.experts);
    launch<RowTiles<Major::mn>>(context, max_tiles, maps, params, out.dtype);
    return true;
  }
  maps.b = boxes_of(b.values, ranges.experts, kColumns / kCluster);
  if (fp8)
    launch<RowTiles<Major::k, DType::e4m3>>(context, max_tiles, maps, params, out.dtype);
  else
    launch<RowTiles<Major::k>>(context, max_tiles, maps, params, out.dtype);
  return true;
}

bool wgrad_of_rows(const Context& context, const Tensor& a, const Tensor& b, const RowRanges& ranges,
                   const Tensor& out, bool accumulate) {
  if (!fits(a, b, DType::bf16, ranges, out)) return false;
  const int64_t m = a.cols();
  GroupedMaps maps{.a = {}, .b = {}, .whole_a = m % 64 == 0, .whole_shares = false};
  maps.a =
      maps.whole_a
          ? tensor_map(a.data,
                       {.dims = {64, a.rows(), m / 64}, .strides = {1, m, 64}, .box = {64, kDepth, kHalves}})
          : boxes_of(a, 1, kDepth);
  set_shares(maps, b, 1);
  launch<WgradTiles>(context, wgrad_tiles<kColumns>(m, ranges, out), maps,
                     params_of(ranges, out, m, 0, accumulate), out.dtype);
  return true;
}

}  // namespace

bool grouped_gemm_hopper(const Context& context, const GroupedGemm& args) {
  const bool promotes = is_fp8(args.a.dtype()) && !args.fast_accumulation;
  return !promotes && gemm_of_rows(context, args.a, args.b, args.trans_b, ranges_of(args.offsets), args.out,
                                   args.accumulate);
}

bool grouped_wgrad_hopper(const Context& context, const GroupedWgrad& args) {
  return args.alignment % kStepDepth == 0 &&
         wgrad_of_rows(context, args.a.values, args.b.values, ranges_of(args.offsets), args.out,
                       args.accumulate);
}

bool dense_gemm_hopper(const Context& context, const Tensor& a, const Tensor& b, bool trans_b,
                       const Tensor& out, bool accumulate) {
  return gemm_of_rows(context, a, b, trans_b, {.each = a.rows(), .rows = a.rows()}, out, accumulate);
}

bool dense_wgrad_hopper(const Context& context, const Tensor& a, const Tensor& b, int64_t part,
                        const Tensor& out, bool accumulate) {
  const RowRanges ranges{.experts = ceil_div(a.rows(), part), .each = part, .rows = a.rows()};
  return part % kStepDepth == 0 && wgrad_of_rows(context, a, b, ranges, out, accumulate);
}

}  // namespace te::kernels::cuda
