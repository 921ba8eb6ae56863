// Grouped GEMMs in BF16 on Hopper's tensor cores (grouped_gemm.h; core: kernels/hopper/hopper.cuh).
//
// One persistent kernel computes the tiles of all experts. A cluster of two blocks works on vertically adjacent tiles
// of 128 x 192 of one expert; each block loads half of the column operand and multicasts it to both. Row ranges of
// experts are read on the device: a block first counts the pairs of row tiles of each expert, and finds the expert of a
// pair by binary search. In a block, one thread loads the operands, and two warpgroups alternate (ping-pong), each with
// a tile of its own: while one multiplies, the other stores its results.
//
//   rows    fprop, dgrad: a tile has rows of one expert. Rows of the next expert, which the loads of an expert's last
//           tiles include, are multiplied, too, but not stored. Some pairs in turn use the same columns of a weight,
//           which stay in the L2 cache.
//   wgrad   a tile has rows and columns of one expert's gradient, and sums over the rows of the expert. Sums stop at
//           the end of its range, a multiple of 16 rows (one instruction).
//
// Results go from registers to global memory in whole sectors of 32 bytes.
#include <limits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/hopper/hopper.cuh"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"
#include "kernels/moe/moe_cuda.h"

namespace te::kernels::cuda {
namespace {

using namespace hopper;

constexpr int kCluster = 2;
constexpr int kRows = 128, kColumns = 192;   ///< of a tile
constexpr int kDepth = 64;                   ///< summed values per stage
constexpr int kStepDepth = 16;               ///< summed values per instruction
constexpr int kSteps = kDepth / kStepDepth;  ///< per stage
constexpr int kStages = 5;
constexpr int kHalves = kRows / 64;  ///< 64-row halves of a tile, one instruction each
constexpr int kPairsTogether = 4;    ///< that use the same columns of a weight in turn
constexpr int kOrderBarrier = 1;     ///< the first of two named barriers
constexpr uint32_t kColumnTileBytes =
    kDepth * kTileRowBytes;  ///< 64 columns of an operand that is summed over rows

struct GroupedShared {
  uint8_t a[kStages][kRows * kTileRowBytes];
  uint8_t b[kStages][kColumns * kTileRowBytes];
  Ring<kStages> operands;
  int32_t offsets[kMaxExperts + 1];      ///< first row of each expert
  int32_t first_pairs[kMaxExperts + 1];  ///< first pair of row tiles of each expert
};

struct GroupedMaps {
  CUtensorMap a;  ///< rows: [rows, k] in boxes of kRows x kDepth; wgrad: [rows, m] in boxes of kDepth x 64
  /// Boxes of a block's share. rows: [E, n, k] in boxes of kColumns / 2 x kDepth (trans_b), or [E, k, n] in boxes of
  /// kDepth / 2 x 64; wgrad: [rows, n] in boxes of kDepth / 2 x 64.
  CUtensorMap b;
};

struct GroupedParams {
  const int32_t* offsets;
  int experts;
  int m, n;   ///< of one expert's result; rows: m is not used
  int depth;  ///< rows: k
  void* out;  ///< [rows, n], or [E * m, n]
  bool accumulate;
};

__device__ __forceinline__ int ceil_of(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

/// The tile of this block.
struct GroupedTile {
  int expert, column;
  int row, row_end;        ///< rows of out that are stored
  int first_depth, depth;  ///< wgrad: rows of the operands; rows: 0, k
  __device__ int stages() const { return (depth + kDepth - 1) / kDepth; }
  /// Instructions of the last stage.
  __device__ int last_steps() const {
    return (depth - (stages() - 1) * kDepth + kStepDepth - 1) / kStepDepth;
  }
};

/// Order of the tiles of a matrix of pairs x columns: some pairs in turn for each column, so that operands are reused
/// from the L2 cache.
struct PairOrder {
  int pair, column;
  __device__ PairOrder(int at, int pairs, int columns) {
    const int together = kPairsTogether * columns, group = at / together, within = at - group * together;
    const int first = group * kPairsTogether, rows = min(kPairsTogether, pairs - first);
    pair = first + within % rows;
    column = within / rows;
  }
};

constexpr uint16_t kAllBlocks = (1 << kCluster) - 1;

/// Loads this block's half of the rows of b that is summed over its rows, for both blocks: 64 columns at a time.
__device__ __forceinline__ void load_rows_of_b(const CUtensorMap* map, uint8_t* to, uint64_t* full,
                                               int column, int row, int z) {
  constexpr int kShare = kDepth / kCluster;
  const int own = static_cast<int>(cluster_rank()) * kShare;
  for (int c = 0; c < kColumns / 64; ++c)
    tma_load_multicast(kAllBlocks, to + c * kColumnTileBytes + own * kTileRowBytes, map, full,
                       column + c * 64, row + own, z);
}

/// Tiles of the rows of all experts. kMajor: of b.
template <Major kMajor>
struct RowTiles {
  static constexpr Major kA = Major::k, kB = kMajor;

  static __device__ int count(const GroupedShared& s, const GroupedParams& p) {
    return s.first_pairs[p.experts] * ceil_of(p.n, kColumns);
  }
  static __device__ GroupedTile tile(const GroupedShared& s, const GroupedParams& p, int at) {
    const PairOrder order(at, s.first_pairs[p.experts], ceil_of(p.n, kColumns));
    int low = 0, high = p.experts;  // the last expert whose first pair is not after this one
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (s.first_pairs[middle] <= order.pair ? low : high) = middle;
    }
    return {.expert = low,
            .column = order.column * kColumns,
            .row = s.offsets[low] +
                   ((order.pair - s.first_pairs[low]) * kCluster + static_cast<int>(cluster_rank())) * kRows,
            .row_end = s.offsets[low + 1],
            .first_depth = 0,
            .depth = p.depth};
  }
  static __device__ void load_a(const CUtensorMap* map, uint8_t* to, uint64_t* full, const GroupedTile& tile,
                                int depth) {
    tma_load(to, map, full, depth, tile.row, 0);
  }
  static __device__ void load_b(const CUtensorMap* map, uint8_t* to, uint64_t* full, const GroupedTile& tile,
                                int depth) {
    if constexpr (kB == Major::k) {
      const int own = static_cast<int>(cluster_rank()) * (kColumns / kCluster);
      tma_load_multicast(kAllBlocks, to + own * kTileRowBytes, map, full, depth, tile.column + own,
                         tile.expert);
    } else {
      load_rows_of_b(map, to, full, tile.column, depth, tile.expert);
    }
  }
};

/// Tiles of the weight gradients of all experts.
struct WgradTiles {
  static constexpr Major kA = Major::mn, kB = Major::mn;

  static __device__ int of_expert(const GroupedParams& p) {
    return ceil_of(p.m, kRows * kCluster) * ceil_of(p.n, kColumns);
  }
  static __device__ int count(const GroupedShared&, const GroupedParams& p) {
    return p.experts * of_expert(p);
  }
  static __device__ GroupedTile tile(const GroupedShared& s, const GroupedParams& p, int at) {
    const int expert = at / of_expert(p);
    const PairOrder order(at % of_expert(p), ceil_of(p.m, kRows * kCluster), ceil_of(p.n, kColumns));
    return {.expert = expert,
            .column = order.column * kColumns,
            .row = (order.pair * kCluster + static_cast<int>(cluster_rank())) * kRows,
            .row_end = p.m,
            .first_depth = s.offsets[expert],
            .depth = s.offsets[expert + 1] - s.offsets[expert]};
  }
  static __device__ void load_a(const CUtensorMap* map, uint8_t* to, uint64_t* full, const GroupedTile& tile,
                                int depth) {
    for (int h = 0; h < kHalves; ++h)
      tma_load(to + h * kWarpgroupTileBytes, map, full, tile.row + h * 64, tile.first_depth + depth, 0);
  }
  static __device__ void load_b(const CUtensorMap* map, uint8_t* to, uint64_t* full, const GroupedTile& tile,
                                int depth) {
    load_rows_of_b(map, to, full, tile.column, tile.first_depth + depth, 0);
  }
};

/// Reads the experts' ranges and counts their pairs of row tiles. Called by all threads; the block must synchronize
/// afterwards.
__device__ void read_offsets(GroupedShared& s, const GroupedParams& p) {
  for (int e = threadIdx.x; e <= p.experts; e += blockDim.x) s.offsets[e] = p.offsets[e];
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  const int lane = threadIdx.x;
  int before = 0;  // pairs of the experts before this chunk
  for (int chunk = 0; chunk < p.experts; chunk += kWarpSize) {
    const int e = chunk + lane;
    const int own = e < p.experts ? ceil_of(s.offsets[e + 1] - s.offsets[e], kRows * kCluster) : 0;
    int sum = own;  // inclusive scan
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (e < p.experts) s.first_pairs[e] = before + sum - own;
    before += __shfl_sync(0xffffffffu, sum, kWarpSize - 1);
  }
  if (lane == 0) s.first_pairs[p.experts] = before;
}

template <class Tiles>
__device__ void load_tiles(GroupedShared& s, const GroupedParams& p, const GroupedMaps& maps) {
  const int count = Tiles::count(s, p);
  Ring<kStages>::Producer at;
  for (int i = blockIdx.x / kCluster; i < count; i += gridDim.x / kCluster) {
    const GroupedTile tile = Tiles::tile(s, p, i);
    const int stages = tile.stages();
    for (int k = 0; k < stages; ++k, at.next()) {
      const auto slot = s.operands.acquire(at);
      uint64_t* const full = s.operands.full(slot);
      s.operands.commit(slot, sizeof(s.a[0]) + sizeof(s.b[0]));
      Tiles::load_a(&maps.a, s.a[slot.stage()], full, tile, k * kDepth);
      Tiles::load_b(&maps.b, s.b[slot.stage()], full, tile, k * kDepth);
    }
  }
}

/// Accumulators of both halves of a tile (wgmma.cuh).
using Accumulators = float[kHalves][kColumns / 2];

/// One instruction per half: sums over kStepDepth values.
template <class Tiles>
__device__ __forceinline__ void multiply_step(Accumulators& sums, uint64_t a, uint64_t b, int step) {
  constexpr uint32_t kNextA = Tiles::kA == Major::k ? 32 : kStepDepth * kTileRowBytes;
  constexpr uint32_t kNextB = Tiles::kB == Major::k ? 32 : kStepDepth * kTileRowBytes;
#pragma unroll
  for (int h = 0; h < kHalves; ++h)
    wgmma<kColumns, Tiles::kA, Tiles::kB>(sums[h], advance(a, h * kWarpgroupTileBytes + step * kNextA),
                                          advance(b, step * kNextB), true);
}

/// GEMM of a tile. Lets the other warpgroup continue as soon as all instructions have been issued.
template <class Tiles>
__device__ __forceinline__ void multiply(GroupedShared& s, const GroupedTile& tile, Accumulators& sums,
                                         Ring<kStages>::Consumer& at, const Thread& thread,
                                         const OrderedSequenceBarrier& order) {
  using Slot = Ring<kStages>::FullSlot;
  constexpr uint32_t kNextTile = Tiles::kB == Major::k ? 0 : kColumnTileBytes;
  const auto release = [&](Slot slot) {
    if (thread.lane < kCluster) s.operands.release_at(slot, thread.lane);
  };
  const auto a_of = [&](Slot slot) { return descriptor(stage_address(s.a, slot.stage())); };
  const auto b_of = [&](Slot slot) { return descriptor(stage_address(s.b, slot.stage()), kNextTile); };
  // TMA fills what is beyond k with zeros, but not what is beyond an expert's rows.
  const int stages = tile.stages(), partial = Tiles::kA == Major::mn && tile.depth % kDepth != 0 ? 1 : 0;
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
  for (int step = 0; step < tile.last_steps(); ++step) {
    wgmma_fence();
    multiply_step<Tiles>(sums, a, b, step);
    wgmma_commit();
    wgmma_wait<0>(sums[0], sums[1]);
  }
  order.arrive();
  release(slot);
  at.next();
}

/// Results of a thread in 32 of a row's columns: word(g) has two of the columns 8 g to 8 g + 7, of which the four
/// threads of a row have a quarter each. Returns all of the columns 8 q to 8 q + 7 for thread q of the four.
template <class Word>
__device__ __forceinline__ uint4 gather_row(const Word& word, int q) {
  uint32_t own[4];
#pragma unroll
  for (int distance = 0; distance < 4; ++distance) {
    const int g = q ^ distance;  // sent to thread g, which sends its word of 8 q
    const uint32_t sent = g < 2 ? (g == 0 ? word(0) : word(1)) : (g == 2 ? word(2) : word(3));
    own[distance] = __shfl_xor_sync(0xffffffffu, sent, distance);
  }
  const auto from = [&](int thread) {
    const int distance = q ^ thread;
    return distance < 2 ? (distance == 0 ? own[0] : own[1]) : (distance == 2 ? own[2] : own[3]);
  };
  return make_uint4(from(0), from(1), from(2), from(3));
}

/// BF16: 16 bytes of a row per thread, 64 of four threads.
__device__ __forceinline__ void store_row(__nv_bfloat16* line, const float* sums, int column, int n,
                                          bool stored, bool accumulate, const Thread& thread) {
  const int q = thread.lane % 4;
#pragma unroll
  for (int block = 0; block < kColumns / 32; ++block) {
    uint4 words = gather_row(
        [&](int g) {
          const float* const pair = sums + (block * 4 + g) * 4;
          return pack_bf16(pair[0], pair[1]);
        },
        q);
    const int first = column + block * 32 + q * 8;
    if (!stored || first >= n) continue;
    auto* const to = reinterpret_cast<uint4*>(line + first);
    if (accumulate) {
      const uint4 old = *to;
      const auto add = [](uint32_t& a, uint32_t b) {
        a = pack_bf16(low_bf16(a) + low_bf16(b), high_bf16(a) + high_bf16(b));
      };
      add(words.x, old.x), add(words.y, old.y), add(words.z, old.z), add(words.w, old.w);
    }
    *to = words;
  }
}

/// FP32: 8 bytes of a row per thread, 32 of four threads. Old values are read eight at a time.
__device__ __forceinline__ void store_row(float* line, const float* sums, int column, int n, bool stored,
                                          bool accumulate, const Thread& thread) {
  constexpr int kTogether = 8;
  if (!stored) return;
#pragma unroll
  for (int block = 0; block < kColumns / 8; block += kTogether) {
    float2* const to = reinterpret_cast<float2*>(line + column + block * 8 + thread.column());
    const int left = n - (column + block * 8 + thread.column());
    float2 old[kTogether] = {};
    if (accumulate) {
#pragma unroll
      for (int g = 0; g < kTogether; ++g)
        if (g * 8 < left) old[g] = to[g * 4];
    }
#pragma unroll
    for (int g = 0; g < kTogether; ++g) {
      const float* const pair = sums + (block + g) * 4;
      if (g * 8 < left) to[g * 4] = {pair[0] + old[g].x, pair[1] + old[g].y};
    }
  }
}

/// Starts reading a tile's old values to the L2 cache; each thread of a warpgroup does a row.
template <class Out>
__device__ __forceinline__ void prefetch_tile(const GroupedParams& p, const GroupedTile& tile,
                                              int64_t first_row, const Thread& thread) {
  const int row = tile.row + thread.index;
  if (row >= tile.row_end) return;
  const Out* const line = static_cast<const Out*>(p.out) + (first_row + row) * p.n;
  prefetch_bulk(line + tile.column, min(kColumns, p.n - tile.column) * sizeof(Out));
}

template <class Out>
__device__ __forceinline__ void store_tile(const GroupedParams& p, const GroupedTile& tile, int64_t first_row,
                                           const Accumulators& sums, const Thread& thread) {
#pragma unroll
  for (int h = 0; h < kHalves; ++h)
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int row = tile.row + h * 64 + eight * 8 + thread.row();
      store_row(static_cast<Out*>(p.out) + (first_row + row) * p.n, sums[h] + eight * 2, tile.column, p.n,
                row < tile.row_end, p.accumulate, thread);
    }
}

template <class Tiles, class Out>
__device__ __forceinline__ void compute_tiles(GroupedShared& s, const GroupedParams& p,
                                              const Thread& thread) {
  const OrderedSequenceBarrier order(kOrderBarrier, thread.warpgroup);
  const int count = Tiles::count(s, p), stride = static_cast<int>(gridDim.x) / kCluster;
  Ring<kStages>::Consumer at;
  for (int i = static_cast<int>(blockIdx.x) / kCluster, own = 0; i < count; i += stride, own ^= 1) {
    const GroupedTile tile = Tiles::tile(s, p, i);
    if (own != thread.warpgroup) {
      at.skip(tile.stages());
      continue;
    }
    const int64_t first_row = Tiles::kA == Major::k ? 0 : static_cast<int64_t>(tile.expert) * p.m;
    Accumulators sums = {};
    order.wait();
    if (p.accumulate) prefetch_tile<Out>(p, tile, first_row, thread);
    multiply<Tiles>(s, tile, sums, at, thread, order);
    if (tile.depth > 0 || !p.accumulate) store_tile<Out>(p, tile, first_row, sums, thread);
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
  read_offsets(s, p);
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

/// TMA requires addresses and row strides in multiples of 16 bytes, and 32-bit coordinates.
bool fits_tma(const Tensor& tensor) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  return tensor.dtype == DType::bf16 && tensor.cols() % 8 == 0 && is_aligned(tensor.data, 16) &&
         tensor.rows() <= kMax && tensor.cols() <= kMax;
}

bool fits(const Matrix& a, const Matrix& b, const Tensor& offsets, const Tensor& out) {
  return fits_tma(a.values) && fits_tma(b.values) && out.cols() % 8 == 0 && is_aligned(out.data, 16) &&
         (out.dtype == DType::f32 || out.dtype == DType::bf16) && offsets.numel() - 1 <= kMaxExperts;
}

template <class Tiles>
void launch(const Context& context, int64_t most, const GroupedMaps& maps, const GroupedParams& params,
            DType out) {
  const int tiles = static_cast<int>(std::min<int64_t>(most, std::numeric_limits<int>::max()));
  if (tiles == 0) return;
  if (out == DType::f32)
    launch_persistent<grouped_kernel<Tiles, float>, GroupedShared, kCluster>(context, tiles, maps, params);
  else
    launch_persistent<grouped_kernel<Tiles, __nv_bfloat16>, GroupedShared, kCluster>(context, tiles, maps,
                                                                                     params);
}

}  // namespace

bool grouped_gemm_hopper(const Context& context, const GroupedGemm& args) {
  if (!fits(args.a, args.b, args.offsets, args.out)) return false;
  const Tensor &a = args.a.values, &b = args.b.values;
  const int64_t experts = args.offsets.numel() - 1, n = args.out.cols();
  const GroupedParams params{.offsets = args.offsets.as<int32_t>(),
                             .experts = static_cast<int>(experts),
                             .m = 0,
                             .n = static_cast<int>(n),
                             .depth = static_cast<int>(a.cols()),
                             .out = args.out.data,
                             .accumulate = false};
  const int64_t most = (ceil_div(a.rows(), kRows * kCluster) + experts) * ceil_div(n, kColumns);
  const CUtensorMap a_map = boxes_of(a, 1, kRows);
  if (args.trans_b)
    launch<RowTiles<Major::k>>(context, most, {.a = a_map, .b = boxes_of(b, experts, kColumns / kCluster)},
                               params, args.out.dtype);
  else
    launch<RowTiles<Major::mn>>(context, most, {.a = a_map, .b = boxes_of(b, experts, kDepth / kCluster)},
                                params, args.out.dtype);
  return true;
}

bool grouped_wgrad_hopper(const Context& context, const GroupedWgrad& args) {
  if (args.alignment % kStepDepth != 0 || !fits(args.a, args.b, args.offsets, args.out)) return false;
  const Tensor &a = args.a.values, &b = args.b.values;
  const int64_t experts = args.offsets.numel() - 1, m = a.cols(), n = b.cols();
  const GroupedParams params{.offsets = args.offsets.as<int32_t>(),
                             .experts = static_cast<int>(experts),
                             .m = static_cast<int>(m),
                             .n = static_cast<int>(n),
                             .depth = 0,
                             .out = args.out.data,
                             .accumulate = args.accumulate};
  const int64_t most = experts * ceil_div(m, kRows * kCluster) * ceil_div(n, kColumns);
  launch<WgradTiles>(context, most, {.a = boxes_of(a, 1, kDepth), .b = boxes_of(b, 1, kDepth / kCluster)},
                     params, args.out.dtype);
  return true;
}

}  // namespace te::kernels::cuda
