// Tiles of grouped GEMMs on Hopper (grouped_gemm.h): their order, experts and number, and the stores of results. A
// cluster of two blocks works on vertically adjacent tiles of kRows x kColumns of one expert, which use the same
// columns.
//
//   rows    fprop, dgrad: a tile has rows of one expert. Rows of the next expert, which the loads of an expert's last
//           tiles include, are multiplied, too, but not stored.
//   wgrad   a tile has rows and columns of one expert's gradient, and sums over the rows of the expert.
//
// Row ranges of experts are read on the device: a block first counts the pairs of row tiles of each expert, and finds
// the expert of a pair by binary search. Results go from registers to global memory in whole sectors of 32 bytes.
#pragma once

#include "kernels/hopper/hopper.cuh"
#include "kernels/moe/moe_cuda.h"

namespace te::kernels::grouped {

using namespace hopper;

constexpr int kCluster = 2;
constexpr int kRows = 128;           ///< of a tile
constexpr int kHalves = kRows / 64;  ///< 64-row halves of a tile, one instruction each
constexpr int kPairsTogether = 4;    ///< that use the same columns of a weight in turn
constexpr uint16_t kAllBlocks = (1 << kCluster) - 1;

struct ExpertRanges {
  int32_t offsets[kMaxExperts + 1];      ///< first row of each expert
  int32_t first_pairs[kMaxExperts + 1];  ///< first pair of row tiles of each expert
};

struct GroupedParams {
  const int32_t* offsets;  ///< null: expert e has rows from e * expert_rows on, up to `rows`
  int expert_rows, rows;
  int experts;
  int m, n;   ///< of one expert's result; rows: m is not used
  int depth;  ///< rows: k
  void* out;  ///< [rows, n], or [E * m, n]
  bool accumulate;
  const float *a_scales = nullptr, *b_scales = nullptr;  ///< FP8: inverse scales, one per expert
};

__device__ __forceinline__ int ceil_of(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

/// The tile of this block. kDepth: summed values per stage.
struct GroupedTile {
  int expert, column;
  int row, row_end;        ///< rows of out that are stored
  int first_depth, depth;  ///< wgrad: rows of the operands; rows: 0, k
  template <int kDepth>
  __device__ int stages() const {
    return (depth + kDepth - 1) / kDepth;
  }
  /// Instructions of the last stage, each of which sums over kStepDepth values.
  template <int kDepth, int kStepDepth>
  __device__ int last_steps() const {
    return (depth - (stages<kDepth>() - 1) * kDepth + kStepDepth - 1) / kStepDepth;
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

/// Order of the tiles of the rows of all experts.
template <int kColumns>
struct RowOrder {
  static __device__ int count(const ExpertRanges& s, const GroupedParams& p) {
    return s.first_pairs[p.experts] * ceil_of(p.n, kColumns);
  }
  /// Summed values of a tile, cheaper than the tile.
  static __device__ int depth(const ExpertRanges&, const GroupedParams& p, int) { return p.depth; }
  static __device__ GroupedTile tile(const ExpertRanges& s, const GroupedParams& p, int at) {
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
};

/// Order of the tiles of the weight gradients of all experts.
template <int kColumns>
struct WgradOrder {
  static __device__ int of_expert(const GroupedParams& p) {
    return ceil_of(p.m, kRows * kCluster) * ceil_of(p.n, kColumns);
  }
  static __device__ int count(const ExpertRanges&, const GroupedParams& p) {
    return p.experts * of_expert(p);
  }
  static __device__ int depth(const ExpertRanges& s, const GroupedParams& p, int at) {
    const int expert = at / of_expert(p);
    return s.offsets[expert + 1] - s.offsets[expert];
  }
  static __device__ GroupedTile tile(const ExpertRanges& s, const GroupedParams& p, int at) {
    const int expert = at / of_expert(p);
    const PairOrder order(at % of_expert(p), ceil_of(p.m, kRows * kCluster), ceil_of(p.n, kColumns));
    return {.expert = expert,
            .column = order.column * kColumns,
            .row = (order.pair * kCluster + static_cast<int>(cluster_rank())) * kRows,
            .row_end = p.m,
            .first_depth = s.offsets[expert],
            .depth = s.offsets[expert + 1] - s.offsets[expert]};
  }
};

/// Reads the experts' ranges and counts their pairs of row tiles. Called by all threads; the block must synchronize
/// afterwards.
inline __device__ void read_offsets(ExpertRanges& s, const GroupedParams& p) {
  for (int e = threadIdx.x; e <= p.experts; e += blockDim.x)
    s.offsets[e] = p.offsets != nullptr ? p.offsets[e] : min(e * p.expert_rows, p.rows);
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  const int lane = threadIdx.x;
  int before = 0;  // pairs of the experts before this chunk
  for (int chunk = 0; chunk < p.experts; chunk += kWarpSize) {
    const int e = chunk + lane;
    const int own = e < p.experts ? ceil_of(s.offsets[e + 1] - s.offsets[e], kRows * kCluster) : 0;
    int sum = own;  // inclusive scan
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (e < p.experts) s.first_pairs[e] = before + sum - own;
    before += __shfl_sync(kAllLanes, sum, kWarpSize - 1);
  }
  if (lane == 0) s.first_pairs[p.experts] = before;
}

/// Transposes words among the four threads of a row: word g of thread q becomes word q of thread g. A thread then has
/// 16 bytes that belong together. By selections, as branches would differ among the threads, and several groups at a
/// time, as shuffles take long.
template <int kGroups>
__device__ __forceinline__ void transpose_words(uint32_t (&words)[kGroups][4], int q) {
  const auto exchange = [](uint32_t& low, uint32_t& high, bool has_high, int distance) {
    const uint32_t received = __shfl_xor_sync(kAllLanes, has_high ? low : high, distance);
    low = has_high ? received : low;
    high = has_high ? high : received;
  };
#pragma unroll
  for (auto& w : words) exchange(w[0], w[1], q % 2 != 0, 1), exchange(w[2], w[3], q % 2 != 0, 1);
#pragma unroll
  for (auto& w : words) exchange(w[0], w[2], q >= 2, 2), exchange(w[1], w[3], q >= 2, 2);
}

/// BF16: 16 bytes of a row per thread, 64 of four threads.
template <int kColumns>
__device__ __forceinline__ void store_row(__nv_bfloat16* line, const float* sums, int column, int n,
                                          bool stored, bool accumulate, const Thread& thread) {
  constexpr int kTogether = 2;  // groups of 32 columns
  const int q = thread.lane % 4;
#pragma unroll
  for (int block = 0; block < kColumns / 32; block += kTogether) {
    uint32_t words[kTogether][4];
#pragma unroll
    for (int i = 0; i < kTogether * 4; ++i) {
      const float* const pair = sums + (block * 4 + i) * 4;
      words[i / 4][i % 4] = pack_bf16(pair[0], pair[1]);
    }
    transpose_words(words, q);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int first = column + (block + i) * 32 + q * 8;
      if (!stored || first >= n) continue;
      auto* const to = reinterpret_cast<uint4*>(line + first);
      uint32_t(&w)[4] = words[i];
      if (accumulate) {
        const uint4 old = *to;
        const auto add = [](uint32_t& a, uint32_t b) {
          a = pack_bf16(low_bf16(a) + low_bf16(b), high_bf16(a) + high_bf16(b));
        };
        add(w[0], old.x), add(w[1], old.y), add(w[2], old.z), add(w[3], old.w);
      }
      *to = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

/// FP32: 8 bytes of a row per thread, 32 of four threads. Many old values are read at a time.
template <int kColumns>
__device__ __forceinline__ void store_row(float* line, const float* sums, int column, int n, bool stored,
                                          bool accumulate, const Thread& thread) {
  constexpr int kTogether = kColumns == 128 ? 16 : 12;  // as registers allow
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

/// Accumulators of both halves of a tile (wgmma.cuh).
template <int kColumns>
using Accumulators = float[kHalves][kColumns / 2];

template <int kColumns, class Out>
__device__ __forceinline__ void store_tile(const GroupedParams& p, const GroupedTile& tile, int64_t first_row,
                                           const Accumulators<kColumns>& sums, const Thread& thread) {
#pragma unroll
  for (int h = 0; h < kHalves; ++h)
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int row = tile.row + h * 64 + eight * 8 + thread.row();
      store_row<kColumns>(static_cast<Out*>(p.out) + (first_row + row) * p.n, sums[h] + eight * 2,
                          tile.column, p.n, row < tile.row_end, p.accumulate, thread);
    }
}

// --- launches, on the host ----------------------------------------------------------------------------------

/// The rows of each expert: offsets on the device, or ranges of `each` of all rows.
struct RowRanges {
  const int32_t* offsets = nullptr;
  int64_t experts = 1, each = 0, rows = 0;
};
inline RowRanges ranges_of(const Tensor& offsets) {
  return {.offsets = offsets.as<int32_t>(), .experts = offsets.numel() - 1};
}

inline GroupedParams params_of(const RowRanges& ranges, const Tensor& out, int64_t m, int64_t depth,
                               bool accumulate) {
  return {.offsets = ranges.offsets,
          .expert_rows = static_cast<int>(ranges.each),
          .rows = static_cast<int>(ranges.rows),
          .experts = static_cast<int>(ranges.experts),
          .m = static_cast<int>(m),
          .n = static_cast<int>(out.cols()),
          .depth = static_cast<int>(depth),
          .out = out.data,
          .accumulate = accumulate};
}

inline bool fits_store(const Tensor& out, const RowRanges& ranges) {
  return out.cols() % 8 == 0 && is_aligned(out.data, 16) &&
         (out.dtype == DType::f32 || out.dtype == DType::bf16) && ranges.experts <= kMaxExperts;
}

/// Tiles of a cluster, at most: of the rows of all experts, of their weight gradients [E * m, n].
template <int kColumns>
int64_t row_tiles(int64_t rows, const RowRanges& ranges, const Tensor& out) {
  return (ceil_div(rows, kRows * kCluster) + ranges.experts) * ceil_div(out.cols(), kColumns);
}
template <int kColumns>
int64_t wgrad_tiles(int64_t m, const RowRanges& ranges, const Tensor& out) {
  return ranges.experts * ceil_div(m, kRows * kCluster) * ceil_div(out.cols(), kColumns);
}

}  // namespace te::kernels::grouped
