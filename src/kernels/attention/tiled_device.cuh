// Building blocks of the tiled attention kernels (tiled_attention.h).
//
// A block owns 64 rows (queries or keys of one head) and iterates over tiles of the other kind. All tiles are in shared
// memory as FP32. The 256 threads form a 16 x 16 grid (ty, tx). In a tile of scores, a thread has rows ty, ty + 16, ...
// and columns tx, tx + 16, .... In a sum of rows of head_dim values, it has the same rows and four columns of every 64,
// starting at 4 tx. Rows in shared memory are padded by four floats, so that the 16-byte reads of neighboring rows use
// different banks.
#pragma once

#include <climits>
#include <cmath>

#include "core/random.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/first_key.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda::tiled {

constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;
constexpr int kPad = 4;

/// Shared memory of a block that large tiles need.
constexpr int kLargeTilesBytes = 220 * 1024;

/// Tile sizes for heads of up to kDimension values; narrower heads are padded with zeros. kSmall: for 99 KiB of shared
/// memory.
template <int kDimension, bool kSmall>
struct Tiles {
  static constexpr int kDim = kDimension;
  /// Rows of the block (queries; keys for dk and dv), and rows of a tile of the other kind that it iterates over.
  static constexpr int kBlockM = !kSmall ? 64 : kDim > 128 ? 16 : 32;
  static constexpr int kBlockN = kSmall ? kBlockM : kDim > 128 ? 32 : 64;
  static constexpr int kRows = kBlockM / kSide;       ///< rows per thread
  static constexpr int kCols = kBlockN / kSide;       ///< columns per thread in a tile of scores
  static constexpr int kChunks = kDim / (4 * kSide);  ///< groups of four columns per thread in a sum of rows
  static constexpr int kStride = kDim + kPad;         ///< stride of rows of head_dim values in shared memory
  static constexpr int kWeightStride = kBlockN + kPad;  ///< stride of rows of scores
  static_assert(kDim % (4 * kSide) == 0);
};

__device__ __forceinline__ int thread_x() {
  return static_cast<int>(threadIdx.x) % kSide;
}
__device__ __forceinline__ int thread_y() {
  return static_cast<int>(threadIdx.x) / kSide;
}

// --- layout of a call's tensors ---------------------------------------------------------------------------------

/// Element offsets of a head's data. q, k and v are in the packed buffer; with a query range, k and v are in a buffer
/// of their own. Queries are counted from 0 within the call.
struct Layout {
  int batch, heads, groups, dim;
  int queries, keys;  ///< queries and keys per sample in this call
  int position;       ///< position of query 0 in the sequence
  int64_t qkv_row, kv_row, o_row;
  int64_t rows, first;       ///< rows per sample in qkv and o; row of query 0
  int64_t kv_rows;           ///< rows per sample in kv
  int64_t first_k, first_v;  ///< columns in a row of kv

  explicit Layout(const AttentionShape& s) {
    const bool range = s.has_range();
    batch = static_cast<int>(s.batch), heads = static_cast<int>(s.num_heads);
    groups = static_cast<int>(s.num_query_groups), dim = static_cast<int>(s.head_dim);
    queries = static_cast<int>(s.queries());
    keys = static_cast<int>(s.keys());
    position = static_cast<int>(s.range.position);
    qkv_row = (s.num_heads + 2 * s.num_query_groups) * s.head_dim;
    kv_row = range ? 2 * s.num_query_groups * s.head_dim : qkv_row;
    o_row = s.num_heads * s.head_dim;
    rows = s.rows(), first = s.range.first, kv_rows = s.seq;
    first_k = range ? 0 : s.num_heads * s.head_dim;
    first_v = first_k + s.num_query_groups * s.head_dim;
  }
  __device__ int64_t q(int b, int head, int i) const {
    return (b * rows + first + i) * qkv_row + int64_t{head} * dim;
  }
  __device__ int64_t o(int b, int head, int i) const {
    return (b * rows + first + i) * o_row + int64_t{head} * dim;
  }
  __device__ int64_t k(int b, int group, int j) const {
    return (b * kv_rows + j) * kv_row + first_k + int64_t{group} * dim;
  }
  __device__ int64_t v(int b, int group, int j) const {
    return (b * kv_rows + j) * kv_row + first_v + int64_t{group} * dim;
  }
  /// Offset in lse and in other arrays with one element per query and head.
  __device__ int64_t of_query(int b, int head, int i) const {
    return (int64_t{b} * heads + head) * queries + i;
  }
};

/// Dropout masks, equal to those of attention_cpu.cpp: word j % 4 of philox(seed, 0, (row * ceil4(seq) + j) / 4).
struct Dropout {
  float kept;  ///< 1 / (1 - probability), or 0 without dropout
  uint64_t threshold, seed;
  int64_t calls_per_row, seq;
  int first_head, total_heads;

  Dropout(const AttentionShape& s, uint64_t dropout_seed)
      : kept(s.dropout > 0.0f ? 1.0f / (1.0f - s.dropout) : 0.0f),
        threshold(static_cast<uint64_t>(double{s.dropout} * 4294967296.0)),
        seed(dropout_seed),
        calls_per_row((s.seq + 3) / 4),
        seq(s.seq),
        first_head(static_cast<int>(s.first_head)),
        total_heads(static_cast<int>(s.total_heads > 0 ? s.total_heads : s.num_heads)) {}
  __device__ bool wanted() const { return kept != 0.0f; }

  /// keep[query][key] = 1 or 0 for queries from `position` on and keys from `key` on (a multiple of 4).
  template <int kQueries, int kKeys>
  __device__ void fill(uint8_t* keep, int b, int head, int position, int key) const {
    const int64_t row = (int64_t{b} * total_heads + first_head + head) * seq + position;
    for (int i = static_cast<int>(threadIdx.x); i < kQueries * kKeys / 4; i += kThreads) {
      const int query = i / (kKeys / 4), four = i % (kKeys / 4);
      const Philox4 random =
          philox(seed, 0, static_cast<uint64_t>((row + query) * calls_per_row + key / 4 + four));
      uchar4 kept4;
      kept4.x = random.word[0] >= threshold, kept4.y = random.word[1] >= threshold;
      kept4.z = random.word[2] >= threshold, kept4.w = random.word[3] >= threshold;
      *reinterpret_cast<uchar4*>(keep + query * kKeys + four * 4) = kept4;
    }
  }
  __device__ float factor(uint8_t keep) const { return keep != 0 ? kept : 0.0f; }
};

// --- tiles -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float4 load_quad(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
template <class T>
__device__ __forceinline__ float4 load_quad(const T* p) {
  const Vector<T, 4> x = load_vector<T, 4>(p);
  return make_float4(load_float(&x.v[0]), load_float(&x.v[1]), load_float(&x.v[2]), load_float(&x.v[3]));
}
template <class T>
__device__ __forceinline__ void store_quad(T* p, float4 x) {
  Vector<T, 4> rounded;
  store_float(&rounded.v[0], x.x), store_float(&rounded.v[1], x.y);
  store_float(&rounded.v[2], x.z), store_float(&rounded.v[3], x.w);
  store_vector(p, rounded);
}

/// Loads kRows rows of a head into shared memory: `count` rows, `stride` elements apart, then zeros.
template <int kRows, int kDim, class T>
__device__ __forceinline__ void load_tile(float* to, const T* from, int64_t stride, int count, int dim) {
  constexpr int kQuads = kDim / 4;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kQuads; i += kThreads) {
    const int row = i / kQuads, col = i % kQuads * 4;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row < count && col < dim) x = load_quad(from + row * stride + col);
    *reinterpret_cast<float4*>(to + row * (kDim + kPad) + col) = x;
  }
}

/// sums[i][j] = dot product of row ty + 16 i of a and row tx + 16 j of b.
template <class G>
__device__ __forceinline__ void multiply_rows(const float* a, const float* b,
                                              float (&sums)[G::kRows][G::kCols]) {
  const float* const a_row = a + thread_y() * G::kStride;
  const float* const b_row = b + thread_x() * G::kStride;
#pragma unroll
  for (int i = 0; i < G::kRows; ++i)
#pragma unroll
    for (int j = 0; j < G::kCols; ++j) sums[i][j] = 0.0f;
#pragma unroll 2
  for (int d = 0; d < G::kDim; d += 4) {
    float4 x[G::kRows], y[G::kCols];
#pragma unroll
    for (int i = 0; i < G::kRows; ++i) x[i] = load_quad(a_row + i * kSide * G::kStride + d);
#pragma unroll
    for (int j = 0; j < G::kCols; ++j) y[j] = load_quad(b_row + j * kSide * G::kStride + d);
#pragma unroll
    for (int i = 0; i < G::kRows; ++i)
#pragma unroll
      for (int j = 0; j < G::kCols; ++j) {
        sums[i][j] = fmaf(x[i].x, y[j].x, sums[i][j]);
        sums[i][j] = fmaf(x[i].y, y[j].y, sums[i][j]);
        sums[i][j] = fmaf(x[i].z, y[j].z, sums[i][j]);
        sums[i][j] = fmaf(x[i].w, y[j].w, sums[i][j]);
      }
  }
}

__device__ __forceinline__ void add_product(float4& sum, float weight, float4 x) {
  sum.x = fmaf(weight, x.x, sum.x), sum.y = fmaf(weight, x.y, sum.y);
  sum.z = fmaf(weight, x.z, sum.z), sum.w = fmaf(weight, x.w, sum.w);
}

/// A thread's part of kBlockM sums of rows.
template <class G>
struct RowSums {
  float4 at[G::kRows][G::kChunks];

  __device__ __forceinline__ RowSums() {
#pragma unroll
    for (int i = 0; i < G::kRows; ++i)
#pragma unroll
      for (int c = 0; c < G::kChunks; ++c) at[i][c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  __device__ __forceinline__ void scale(int i, float factor) {
#pragma unroll
    for (int c = 0; c < G::kChunks; ++c)
      at[i][c] =
          make_float4(at[i][c].x * factor, at[i][c].y * factor, at[i][c].z * factor, at[i][c].w * factor);
  }
  /// Adds to row r the sum over j of weights[r][j] times row j of `rows`.
  __device__ __forceinline__ void add(const float* weights, const float* rows) {
    const float* const mine = weights + thread_y() * G::kWeightStride;
#pragma unroll 2
    for (int j = 0; j < G::kBlockN; j += 4) {
      float4 w[G::kRows];
#pragma unroll
      for (int i = 0; i < G::kRows; ++i) w[i] = load_quad(mine + i * kSide * G::kWeightStride + j);
#pragma unroll
      for (int c = 0; c < G::kChunks; ++c) {
        const float* const columns = rows + j * G::kStride + c * 4 * kSide + thread_x() * 4;
        const float4 x0 = load_quad(columns), x1 = load_quad(columns + G::kStride);
        const float4 x2 = load_quad(columns + 2 * G::kStride), x3 = load_quad(columns + 3 * G::kStride);
#pragma unroll
        for (int i = 0; i < G::kRows; ++i) {
          add_product(at[i][c], w[i].x, x0);
          add_product(at[i][c], w[i].y, x1);
          add_product(at[i][c], w[i].z, x2);
          add_product(at[i][c], w[i].w, x3);
        }
      }
    }
  }
  /// Stores each row r below `count` to `to` + r * stride.
  template <class T>
  __device__ __forceinline__ void store(T* to, int64_t stride, int count, int dim) const {
#pragma unroll
    for (int i = 0; i < G::kRows; ++i) {
      const int row = thread_y() + i * kSide;
      if (row >= count) continue;
#pragma unroll
      for (int c = 0; c < G::kChunks; ++c) {
        const int col = c * 4 * kSide + thread_x() * 4;
        if (col < dim) store_quad(to + row * stride + col, at[i][c]);
      }
    }
  }
};

/// Reductions over the 16 threads of one ty, which are half a warp.
__device__ __forceinline__ float side_sum(float x) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ __forceinline__ float side_max(float x) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

template <bool kSmall, class Launch>
void dispatch(DType dtype, int64_t head_dim, Launch& launch) {
  visit_high_precision(dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    if (head_dim <= 64) return launch.template operator()<T, Tiles<64, kSmall>>();
    if (head_dim <= 128) return launch.template operator()<T, Tiles<128, kSmall>>();
    launch.template operator()<T, Tiles<256, kSmall>>();
  });
}
/// Calls launch.template operator()<T, Tiles<...>>() for a dtype, head_dim and GPU.
template <class Launch>
void dispatch(const Context& context, DType dtype, int64_t head_dim, Launch&& launch) {
  const bool small = device_caps(context).shared_bytes < kLargeTilesBytes;
  small ? dispatch<true>(dtype, head_dim, launch) : dispatch<false>(dtype, head_dim, launch);
}

/// The tile of a block. The grid has one dimension, because the others have at most 65,535 blocks: for each tile all
/// heads (or groups) of all samples.
struct BlockTask {
  int batch, head, tile, tiles;
  __device__ BlockTask(int samples, int heads) {
    const int block = static_cast<int>(blockIdx.x), lines = samples * heads;
    batch = block % lines / heads, head = block % heads;
    tile = block / lines, tiles = static_cast<int>(gridDim.x) / lines;
  }
};

/// Launches the kernel with a `Shared` in dynamic shared memory.
template <class Shared, class Params>
void launch_tiles(const Context& context, void (*kernel)(Params), int64_t blocks, const Params& params) {
  allow_shared_memory(context, kernel, sizeof(Shared));
  kernel<<<static_cast<unsigned>(blocks), kThreads, sizeof(Shared), cuda_stream(context)>>>(params);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda::tiled
