// Tiles of quantization with group scales (quantize_groups.h), shared with the kernels that fuse it. A block of 256
// threads has the 128 x 128 values of a tile in registers, the extent of a vector's or block's scale: it computes the
// amax of the tile's rows, its columns or the whole tile, and writes both layouts. A warp holds 16 rows, and a lane 4
// columns of them.
#pragma once

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/row_blocks.h"
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels::cuda::group_tile {

constexpr int kSide = static_cast<int>(kScaleBlock);  ///< of a tile
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kRows = kSide / kWarps;     ///< per warp
constexpr int kCols = kSide / kWarpSize;  ///< per lane
constexpr int kUnits = kSide / 16;        ///< 16-byte units per column of the tile's bytes
static_assert(kRows == 16 && kCols == 4, "a lane's rows of one column are one 16-byte unit");

/// One layout of the output; null pointers mean that it is not requested.
struct LayoutOutput {
  uint8_t* values;
  float* scales;
  int64_t stride;  ///< vectors: stride between groups of 128 columns; blocks: between rows of scales
};

struct Target {
  LayoutOutput rowwise, columnwise;
  float fp8_max, margin;
  bool power_of_two;
  float* amax;
  Fp8Counters* counters;
  int64_t rows, cols;
  bool row_blocks;  ///< of columnwise
};

struct Shared {
  uint4 transposed[kSide * kUnits];
  uint32_t column_amax[kWarps][kSide];
  float column_scale[kSide];
  uint32_t words[kWarpSize];
};

/// A lane's four columns of one row.
template <class T>
struct Quad;
template <>
struct Quad<float> {
  float4 value;
  __device__ void load(const float* p) { value = *reinterpret_cast<const float4*>(p); }
  __device__ void clear() { value = make_float4(0, 0, 0, 0); }
  __device__ float get(int j) const {
    return j == 0 ? value.x : j == 1 ? value.y : j == 2 ? value.z : value.w;
  }
  __device__ uint32_t amax() const {
    return max(max(abs_bits(value.x), abs_bits(value.y)), max(abs_bits(value.z), abs_bits(value.w)));
  }
  /// Amax of each column of some rows.
  template <int kCount>
  static __device__ void column_amax(const Quad (&rows)[kCount], uint32_t (&largest)[kCols]) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      largest[j] = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) largest[j] = max(largest[j], abs_bits(rows[i].get(j)));
    }
  }
};
template <>
struct Quad<__nv_bfloat16> {
  uint2 value;
  __device__ void load(const __nv_bfloat16* p) { value = *reinterpret_cast<const uint2*>(p); }
  __device__ void clear() { value = make_uint2(0, 0); }
  /// Rounds.
  __device__ void set(const float (&x)[kCols]) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(x[0], x[1]), high = __floats2bfloat162_rn(x[2], x[3]);
    value = {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
  }
  __device__ float get(int j) const {
    const uint32_t word = j < 2 ? value.x : value.y;
    return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
  // BF16 bits without the sign are ordered like integers, so two values are compared at once.
  __device__ uint32_t amax() const {
    const uint32_t both = __vmaxu2(value.x & kMagnitudes, value.y & kMagnitudes);
    return max(both << 16, both & 0xffff0000u);
  }
  template <int kCount>
  static __device__ void column_amax(const Quad (&rows)[kCount], uint32_t (&largest)[kCols]) {
    uint2 both = make_uint2(0, 0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      both.x = __vmaxu2(both.x, rows[i].value.x & kMagnitudes);
      both.y = __vmaxu2(both.y, rows[i].value.y & kMagnitudes);
    }
    largest[0] = both.x << 16, largest[1] = both.x & 0xffff0000u;
    largest[2] = both.y << 16, largest[3] = both.y & 0xffff0000u;
  }

 private:
  static constexpr uint32_t kMagnitudes = 0x7fff7fffu;
};

/// Rows and columns of a thread. They lie completely inside or outside of the matrix (multiples of 16).
struct ThreadPosition {
  int warp, lane;
  int64_t tile_row, tile_col, row, col;
  bool inside;
  __device__ ThreadPosition(const Target& target, int64_t first_row, int64_t first_col)
      : warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize),
        tile_row(first_row),
        tile_col(first_col),
        row(first_row + warp * kRows),
        col(first_col + lane * kCols),
        inside(row < target.rows && col < target.cols) {}
};

/// Computes the amax of the tile's columns over the block, in column_amax[0]. All threads must call it.
template <class T>
__device__ void reduce_columns(const Quad<T> (&values)[kRows], const ThreadPosition& place, Shared& shared) {
  uint32_t largest_of[kCols];
  Quad<T>::column_amax(values, largest_of);
#pragma unroll
  for (int j = 0; j < kCols; ++j) shared.column_amax[place.warp][place.lane * kCols + j] = largest_of[j];
  __syncthreads();
  if (threadIdx.x < kSide) {
    uint32_t largest = shared.column_amax[0][threadIdx.x];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) largest = max(largest, shared.column_amax[w][threadIdx.x]);
    shared.column_amax[0][threadIdx.x] = largest;
  }
  __syncthreads();
}

/// Amax of the tile, from those of its columns. All threads must call it.
inline __device__ uint32_t reduce_tile(const ThreadPosition& place, Shared& shared) {
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kCols; ++j) largest = max(largest, shared.column_amax[0][place.lane * kCols + j]);
  return __reduce_max_sync(kAllLanes, largest);
}

inline __device__ float scale_for(uint32_t amax, const Target& target) {
  return group_scale(__uint_as_float(amax), target.fp8_max, target.margin, target.power_of_two);
}

template <DType kFormat>
__device__ uint32_t pack(float a, float b, float c, float d) {
  return uint32_t{to_fp8x2<kFormat>(a, b)} | uint32_t{to_fp8x2<kFormat>(c, d)} << 16;
}

/// Writes the rowwise layout of a thread's rows; the scale of a row is the same in all lanes of its warp.
template <class T, DType kFormat>
__device__ void write_rows(const Quad<T> (&values)[kRows], const float (&scale)[kRows], const Target& target,
                           const ThreadPosition& place, ThreadCounters& counters) {
  if (!place.inside) return;
  uint8_t* to = target.rowwise.values + place.row * target.cols + place.col;
#pragma unroll
  for (int i = 0; i < kRows; ++i, to += target.cols) {
    float scaled[kCols];
#pragma unroll
    for (int j = 0; j < kCols; ++j) scaled[j] = values[i].get(j) * scale[i];
    const uint32_t bytes = pack<kFormat>(scaled[0], scaled[1], scaled[2], scaled[3]);
    *reinterpret_cast<uint32_t*>(to) = bytes;
    if (target.counters == nullptr) continue;
#pragma unroll
    for (int j = 0; j < kCols; ++j)
      count_value<kFormat>(values[i].get(j), scaled[j], static_cast<uint8_t>(bytes >> (8 * j)), counters);
  }
}

/// Writes the columnwise layout: a lane's 16 rows of a column are one unit in shared memory, and a column of 128 bytes
/// is stored in eight units. Units are permuted (xor with the lane that wrote them) to avoid bank conflicts. All
/// threads must call it.
template <class T, DType kFormat>
__device__ void write_columns(const Quad<T> (&values)[kRows], const Target& target,
                              const ThreadPosition& place, Shared& shared, bool counts,
                              ThreadCounters& counters) {
#pragma unroll
  for (int j = 0; j < kCols; ++j) {
    const int column = place.lane * kCols + j;
    const float scale = shared.column_scale[column];
    uint32_t word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float scaled[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) scaled[i] = values[4 * k + i].get(j) * scale;
      word[k] = pack<kFormat>(scaled[0], scaled[1], scaled[2], scaled[3]);
      if (!counts) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        count_value<kFormat>(values[4 * k + i].get(j), scaled[i], static_cast<uint8_t>(word[k] >> (8 * i)),
                             counters);
    }
    shared.transposed[column * kUnits + (place.warp ^ (place.lane % kUnits))] =
        make_uint4(word[0], word[1], word[2], word[3]);
  }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < kSide * kUnits / kThreads; ++pass) {
    const int index = static_cast<int>(threadIdx.x) + pass * kThreads;
    const int column = index / kUnits, unit = index % kUnits;
    const int64_t c = place.tile_col + column, r = place.tile_row + unit * 16;
    if (c >= target.cols || r >= target.rows) continue;
    const int64_t at =
        target.row_blocks ? row_block_index(c, r, target.cols, target.rows) : c * target.rows + r;
    *reinterpret_cast<uint4*>(target.columnwise.values + at) =
        shared.transposed[column * kUnits + (unit ^ (column / kCols % kUnits))];
  }
}

/// Computes the scales of a warp's 16 rows; with vectors, also stores them. A lane computes that of one row.
template <class T, ScaleLayout kLayout>
__device__ void row_scales(const Quad<T> (&values)[kRows], uint32_t tile_amax, const Target& target,
                           const ThreadPosition& place, float (&scale)[kRows]) {
  const int64_t row = place.row + place.lane;
  const bool has_row = place.lane < kRows && row < target.rows;
  uint32_t amax = tile_amax;
  if constexpr (kLayout == ScaleLayout::vectors) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t of_row = __reduce_max_sync(kAllLanes, values[i].amax());
      if (place.lane == i) amax = of_row;
    }
  } else if constexpr (kLayout == ScaleLayout::rows) {  // the amax is stored in place of the scale
    amax = has_row ? __float_as_uint(target.rowwise.scales[row]) : 0;
  }
  const float own = scale_for(amax, target);
  if (kLayout == ScaleLayout::vectors && has_row)
    target.rowwise.scales[place.tile_col / kSide * target.rowwise.stride + row] = 1.0f / own;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    scale[i] = kLayout == ScaleLayout::blocks ? own : __shfl_sync(kAllLanes, own, i);
}

/// Computes the scales of the tile's columns in shared memory; with vectors, also stores them. All threads must call
/// it.
template <ScaleLayout kLayout>
__device__ void column_scales(uint32_t tile_amax, const Target& target, const ThreadPosition& place,
                              Shared& shared) {
  const int64_t column = place.tile_col + threadIdx.x;
  if (threadIdx.x < kSide) {
    float scale = 1.0f;
    if constexpr (kLayout == ScaleLayout::vectors) {
      scale = scale_for(shared.column_amax[0][threadIdx.x], target);
      if (column < target.cols)
        target.columnwise.scales[place.tile_row / kSide * target.columnwise.stride + column] = 1.0f / scale;
    } else if constexpr (kLayout == ScaleLayout::blocks) {
      scale = scale_for(tile_amax, target);
    } else if (column < target.cols) {
      scale = scale_for(__float_as_uint(target.columnwise.scales[column]), target);
    }
    shared.column_scale[threadIdx.x] = scale;
  }
  __syncthreads();
}

/// Blocks: stores the tile's scale for both layouts.
inline __device__ void write_block_scale(uint32_t tile_amax, const Target& target,
                                         const ThreadPosition& place) {
  if (threadIdx.x != 0) return;
  const int64_t down = place.tile_row / kSide, across = place.tile_col / kSide;
  const float inverse = 1.0f / scale_for(tile_amax, target);
  if (target.rowwise.values != nullptr)
    target.rowwise.scales[down * target.rowwise.stride + across] = inverse;
  if (target.columnwise.values != nullptr)
    target.columnwise.scales[across * target.columnwise.stride + down] = inverse;
}

/// Both layouts of a tile whose columns, with vectors and a columnwise layout, have been reduced. All threads must call
/// it.
template <class T, DType kFormat, ScaleLayout kLayout>
__device__ void write_layouts(const Quad<T> (&values)[kRows], uint32_t tile_amax, const Target& target,
                              const ThreadPosition& place, Shared& shared, ThreadCounters& counters) {
  const bool rowwise = target.rowwise.values != nullptr;
  if (rowwise) {
    float scale[kRows];
    row_scales<T, kLayout>(values, tile_amax, target, place, scale);
    write_rows<T, kFormat>(values, scale, target, place, counters);
  }
  if (target.columnwise.values == nullptr) return;
  column_scales<kLayout>(tile_amax, target, place, shared);
  write_columns<T, kFormat>(values, target, place, shared, !rowwise && target.counters != nullptr, counters);
}

/// Both layouts of a tile with vectors, without amax and counters of the whole tensor. All threads must call it.
template <class T, DType kFormat>
__device__ void write_vectors(const Quad<T> (&values)[kRows], const Target& target,
                              const ThreadPosition& place, Shared& shared) {
  ThreadCounters none;
  if (target.columnwise.values != nullptr) reduce_columns(values, place, shared);
  write_layouts<T, kFormat, ScaleLayout::vectors>(values, 0, target, place, shared, none);
}

inline LayoutOutput layout_output(const Matrix& matrix) {
  if (!matrix) return {};
  return {matrix.values.as<uint8_t>(), matrix.scales.as<float>(), matrix.scales.cols()};
}

/// `args` without its input: of `rows` rows of `cols` values.
inline Target target_of(const QuantizeGroups& args, int64_t rows, int64_t cols) {
  const Matrix& some = args.rowwise ? args.rowwise : args.columnwise;
  return {.rowwise = layout_output(args.rowwise),
          .columnwise = layout_output(args.columnwise),
          .fp8_max = fp8_max(some.dtype()),
          .margin = std::ldexp(1.0f, -args.margin),
          .power_of_two = args.power_of_two,
          .amax = args.amax,
          .counters = args.counters,
          .rows = rows,
          .cols = cols,
          .row_blocks = args.row_blocks};
}

}  // namespace te::kernels::cuda::group_tile
