// Quantization with group scales on the GPU: a block processes a tile of 128 x 128 values (group_tile.cuh), which it
// reads once.
//
// Rows that are copies of tokens are read from them. Their tiles are in the order of columns, so that copies of a token
// are read from the L2 cache.
//
// Rows (ScaleLayout::rows) are longer than a tile: a separate pass over x stores the amax of every row and column where
// their scales will be, the quantization kernel reads it there, and a final launch converts it to inverse scales.
#include <type_traits>

#include "kernels/quantize/group_tile.cuh"

namespace te::kernels::cuda {
namespace {

using namespace group_tile;

/// The rows of x [, cols], or with `source` copies of them.
template <class T>
struct Input {
  const T* x;
  const int32_t* source;
  unsigned topk;
};

/// The tile of this block.
template <class T>
__device__ ThreadPosition position(const Input<T>& in, const Target& target) {
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kSide - 1) / kSide); };
  const bool by_columns = in.source != nullptr;
  const unsigned length = tiles(by_columns ? target.rows : target.cols);
  const unsigned first = blockIdx.x / length, second = blockIdx.x % length;
  return {target, int64_t{by_columns ? second : first} * kSide, int64_t{by_columns ? first : second} * kSide};
}

template <class T>
__device__ void load_tile(const Input<T>& in, const Target& target, const ThreadPosition& place,
                          Quad<T> (&values)[kRows]) {
  if (in.source != nullptr) {
    const int64_t row = place.row + place.lane;
    int from = place.lane < kRows && row < target.rows ? in.source[row] : -1;
    if (from >= 0) from = static_cast<int>(static_cast<unsigned>(from) / in.topk);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int token = __shfl_sync(kAllLanes, from, i);
      if (place.inside && token >= 0)
        values[i].load(in.x + int64_t{token} * target.cols + place.col);
      else
        values[i].clear();
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (place.inside)
      values[i].load(in.x + (place.row + i) * target.cols + place.col);
    else
      values[i].clear();
  }
}

template <class T, DType kFormat, ScaleLayout kLayout>
__global__ void __launch_bounds__(kThreads)
    quantize_groups_kernel(Input<T> in, const __grid_constant__ Target target) {
  __shared__ Shared shared;
  const ThreadPosition place = position(in, target);
  Quad<T> values[kRows];
  load_tile(in, target, place, values);
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
  write_layouts<T, kFormat, kLayout>(values, tile_amax, target, place, shared, counters);
  // 3. Counters and amax
  if (target.counters != nullptr) add_counters(counters, place.inside ? kRows * kCols : 0, target.counters);
  if (target.amax != nullptr) block_update_amax(tile_amax, target.amax, shared.words);
}

/// Amax of whole rows and columns, in memory that was zeroed, with integer maxima in any order.
template <class T>
__global__ void __launch_bounds__(kThreads) amax_kernel(Input<T> in, const __grid_constant__ Target target) {
  __shared__ Shared shared;
  const ThreadPosition place = position(in, target);
  Quad<T> values[kRows];
  load_tile(in, target, place, values);
  if (target.rowwise.values != nullptr) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t amax = __reduce_max_sync(kAllLanes, values[i].amax());
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
  const Target target = target_of(args, quantized_rows(args), args.x.cols());
  TE_CHECK(is_aligned(args.x.data, 16) && is_aligned(target.rowwise.values, 4) &&
               is_aligned(target.columnwise.values, 16),
           "quantize_groups: x, rowwise and columnwise must be aligned to 16 bytes");
  const unsigned tiles = ceil_div(target.rows, kSide) * ceil_div(target.cols, kSide);
  const cudaStream_t stream = cuda_stream(context);
  dispatch(args.x.dtype, some.dtype(), [&]<class T, DType kFormat>() {
    const Input<T> in{args.x.as<T>(), args.source.as<int32_t>(), static_cast<unsigned>(args.topk)};
    if (some.layout == ScaleLayout::vectors) {
      quantize_groups_kernel<T, kFormat, ScaleLayout::vectors><<<tiles, kThreads, 0, stream>>>(in, target);
    } else if (some.layout == ScaleLayout::blocks) {
      quantize_groups_kernel<T, kFormat, ScaleLayout::blocks><<<tiles, kThreads, 0, stream>>>(in, target);
    } else {
      if (args.rowwise) context.zero(args.rowwise.scales);
      if (args.columnwise) context.zero(args.columnwise.scales);
      amax_kernel<T><<<tiles, kThreads, 0, stream>>>(in, target);
      quantize_groups_kernel<T, kFormat, ScaleLayout::rows><<<tiles, kThreads, 0, stream>>>(in, target);
      invert_kernel<<<ceil_div(std::max(target.rows, target.cols), kThreads), kThreads, 0, stream>>>(target);
    }
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
