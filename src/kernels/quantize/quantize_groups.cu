// Quantization with group scales on the GPU. A block of 256 threads processes a tile of 128 x 128 values, the extent of
// a vector's or block's scale: it reads the tile once into registers, computes the amax of its rows, its columns or the
// whole tile, and writes both layouts. A warp holds 16 rows, and a lane 4 columns of them.
//
// Rows that are copies of tokens are read from them. Their tiles are in the order of columns, so that copies of a token
// are read from the L2 cache.
//
// Rows (ScaleLayout::rows) are longer than a tile: a separate pass over x stores the amax of every row and column where
// their scales will be, the quantization kernel reads it there, and a final launch converts it to inverse scales.
#include <type_traits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/row_blocks.h"
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels::cuda {
namespace {

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
  bool row_blocks;        ///< of columnwise
  const int32_t* source;  ///< null: the rows of x
  unsigned topk;
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
};
template <>
struct Quad<__nv_bfloat16> {
  uint2 value;
  __device__ void load(const __nv_bfloat16* p) { value = *reinterpret_cast<const uint2*>(p); }
  __device__ void clear() { value = make_uint2(0, 0); }
  __device__ float get(int j) const {
    const uint32_t word = j < 2 ? value.x : value.y;
    return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
};

/// Rows and columns of a thread. They lie completely inside or outside of the matrix (multiples of 16).
struct ThreadPosition {
  int warp, lane;
  int64_t tile_row, tile_col, row, col;
  bool inside;
  __device__ explicit ThreadPosition(const Target& target) {
    const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kSide - 1) / kSide); };
    const bool by_columns = target.source != nullptr;
    const unsigned length = tiles(by_columns ? target.rows : target.cols);
    const unsigned first = blockIdx.x / length, second = blockIdx.x % length;
    warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
    tile_row = int64_t{by_columns ? second : first} * kSide;
    tile_col = int64_t{by_columns ? first : second} * kSide;
    row = tile_row + warp * kRows, col = tile_col + lane * kCols;
    inside = row < target.rows && col < target.cols;
  }
};

template <class T>
__device__ void load_tile(const T* x, const Target& target, const ThreadPosition& place,
                          Quad<T> (&values)[kRows]) {
  if (target.source != nullptr) {
    const int64_t row = place.row + place.lane;
    int from = place.lane < kRows && row < target.rows ? target.source[row] : -1;
    if (from >= 0) from = static_cast<int>(static_cast<unsigned>(from) / target.topk);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int token = __shfl_sync(0xffffffffu, from, i);
      if (place.inside && token >= 0)
        values[i].load(x + int64_t{token} * target.cols + place.col);
      else
        values[i].clear();
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (place.inside)
      values[i].load(x + (place.row + i) * target.cols + place.col);
    else
      values[i].clear();
  }
}

template <class T>
__device__ uint32_t amax_of(const Quad<T>& values) {
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kCols; ++j) largest = max(largest, abs_bits(values.get(j)));
  return largest;
}

/// Computes the amax of the tile's columns over the block, in column_amax[0]. All threads must call it.
template <class T>
__device__ void reduce_columns(const Quad<T> (&values)[kRows], const ThreadPosition& place, Shared& shared) {
#pragma unroll
  for (int j = 0; j < kCols; ++j) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) largest = max(largest, abs_bits(values[i].get(j)));
    shared.column_amax[place.warp][place.lane * kCols + j] = largest;
  }
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
__device__ uint32_t reduce_tile(const ThreadPosition& place, Shared& shared) {
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kCols; ++j) largest = max(largest, shared.column_amax[0][place.lane * kCols + j]);
  return __reduce_max_sync(0xffffffffu, largest);
}

__device__ float scale_for(uint32_t amax, const Target& target) {
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
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float scaled[kCols];
#pragma unroll
    for (int j = 0; j < kCols; ++j) scaled[j] = values[i].get(j) * scale[i];
    const uint32_t bytes = pack<kFormat>(scaled[0], scaled[1], scaled[2], scaled[3]);
    *reinterpret_cast<uint32_t*>(target.rowwise.values + (place.row + i) * target.cols + place.col) = bytes;
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
      const uint32_t of_row = __reduce_max_sync(0xffffffffu, amax_of(values[i]));
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
    scale[i] = kLayout == ScaleLayout::blocks ? own : __shfl_sync(0xffffffffu, own, i);
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
__device__ void write_block_scale(uint32_t tile_amax, const Target& target, const ThreadPosition& place) {
  if (threadIdx.x != 0) return;
  const int64_t down = place.tile_row / kSide, across = place.tile_col / kSide;
  const float inverse = 1.0f / scale_for(tile_amax, target);
  if (target.rowwise.values != nullptr)
    target.rowwise.scales[down * target.rowwise.stride + across] = inverse;
  if (target.columnwise.values != nullptr)
    target.columnwise.scales[across * target.columnwise.stride + down] = inverse;
}

template <class T, DType kFormat, ScaleLayout kLayout>
__global__ void __launch_bounds__(kThreads)
    quantize_groups_kernel(const T* x, const __grid_constant__ Target target) {
  __shared__ Shared shared;
  const ThreadPosition place(target);
  Quad<T> values[kRows];
  load_tile(x, target, place, values);
  // 1. Amax of the groups in the tile; that of whole rows and columns was computed by amax_kernel
  uint32_t tile_amax = 0;
  if (kLayout == ScaleLayout::blocks || target.amax != nullptr ||
      (kLayout == ScaleLayout::vectors && target.columnwise.values != nullptr)) {
    reduce_columns(values, place, shared);
    tile_amax = reduce_tile(place, shared);
  }
  if constexpr (kLayout == ScaleLayout::blocks) write_block_scale(tile_amax, target, place);
  // 2. Quantization to both layouts
  ThreadCounters counters;
  const bool both = target.rowwise.values != nullptr;
  if (both) {
    float scale[kRows];
    row_scales<T, kLayout>(values, tile_amax, target, place, scale);
    write_rows<T, kFormat>(values, scale, target, place, counters);
  }
  if (target.columnwise.values != nullptr) {
    column_scales<kLayout>(tile_amax, target, place, shared);
    write_columns<T, kFormat>(values, target, place, shared, !both && target.counters != nullptr, counters);
  }
  // 3. Counters and amax
  if (target.counters != nullptr) add_counters(counters, place.inside ? kRows * kCols : 0, target.counters);
  if (target.amax != nullptr) block_update_amax(tile_amax, target.amax, shared.words);
}

/// Amax of whole rows and columns, in memory that was zeroed, with integer maxima in any order.
template <class T>
__global__ void __launch_bounds__(kThreads) amax_kernel(const T* x, const __grid_constant__ Target target) {
  __shared__ Shared shared;
  const ThreadPosition place(target);
  Quad<T> values[kRows];
  load_tile(x, target, place, values);
  if (target.rowwise.values != nullptr) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t amax = __reduce_max_sync(0xffffffffu, amax_of(values[i]));
      if (place.lane == 0 && place.row + i < target.rows)
        atomicMax(reinterpret_cast<uint32_t*>(target.rowwise.scales) + place.row + i, amax);
    }
  }
  if (target.columnwise.values == nullptr) return;
  reduce_columns(values, place, shared);
  const int64_t column = place.tile_col + threadIdx.x;
  if (threadIdx.x < kSide && column < target.cols)
    atomicMax(reinterpret_cast<uint32_t*>(target.columnwise.scales) + column,
              shared.column_amax[0][threadIdx.x]);
}

/// Converts amax values to inverse scales, in place.
__global__ void invert_kernel(const __grid_constant__ Target target) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto invert = [&](float* amax) { *amax = 1.0f / scale_for(__float_as_uint(*amax), target); };
  if (target.rowwise.values != nullptr && i < target.rows) invert(target.rowwise.scales + i);
  if (target.columnwise.values != nullptr && i < target.cols) invert(target.columnwise.scales + i);
}

LayoutOutput layout_output(const Matrix& matrix) {
  if (!matrix) return {};
  return {matrix.values.as<uint8_t>(), matrix.scales.as<float>(), matrix.scales.cols()};
}

/// Calls launch.template operator()<T, kFormat>().
template <class Launch>
void dispatch(DType type, DType format, Launch&& launch) {
  const auto with = [&]<class T>(std::type_identity<T>) {
    format == DType::e4m3 ? launch.template operator()<T, DType::e4m3>()
                          : launch.template operator()<T, DType::e5m2>();
  };
  type == DType::f32 ? with(std::type_identity<float>{}) : with(std::type_identity<__nv_bfloat16>{});
}

}  // namespace

void quantize_groups(const Context& context, const QuantizeGroups& args) {
  if (args.x.numel() == 0) return;
  const Matrix& some = args.rowwise ? args.rowwise : args.columnwise;
  const Target target{.rowwise = layout_output(args.rowwise),
                      .columnwise = layout_output(args.columnwise),
                      .fp8_max = fp8_max(some.dtype()),
                      .margin = std::ldexp(1.0f, -args.margin),
                      .power_of_two = args.power_of_two,
                      .amax = args.amax,
                      .counters = args.counters,
                      .rows = quantized_rows(args),
                      .cols = args.x.cols(),
                      .row_blocks = args.row_blocks,
                      .source = args.source.as<int32_t>(),
                      .topk = static_cast<unsigned>(args.topk)};
  TE_CHECK(is_aligned(args.x.data, 16) && is_aligned(target.rowwise.values, 4) &&
               is_aligned(target.columnwise.values, 16),
           "quantize_groups: x, rowwise and columnwise must be aligned to 16 bytes");
  const unsigned tiles = ceil_div(target.rows, kSide) * ceil_div(target.cols, kSide);
  const cudaStream_t stream = cuda_stream(context);
  dispatch(args.x.dtype, some.dtype(), [&]<class T, DType kFormat>() {
    const T* x = args.x.as<T>();
    if (some.layout == ScaleLayout::vectors) {
      quantize_groups_kernel<T, kFormat, ScaleLayout::vectors><<<tiles, kThreads, 0, stream>>>(x, target);
    } else if (some.layout == ScaleLayout::blocks) {
      quantize_groups_kernel<T, kFormat, ScaleLayout::blocks><<<tiles, kThreads, 0, stream>>>(x, target);
    } else {
      if (args.rowwise) context.zero(args.rowwise.scales);
      if (args.columnwise) context.zero(args.columnwise.scales);
      amax_kernel<T><<<tiles, kThreads, 0, stream>>>(x, target);
      quantize_groups_kernel<T, kFormat, ScaleLayout::rows><<<tiles, kThreads, 0, stream>>>(x, target);
      invert_kernel<<<ceil_div(std::max(target.rows, target.cols), kThreads), kThreads, 0, stream>>>(target);
    }
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
