// Quantization to NVFP4 on the GPU: a launch finds the amaxes of both layouts, a second one quantizes, and a third
// replaces the amaxes with the factors. A block holds a tile of 32 x 32 values in shared memory; a warp takes rows,
// then columns, and each half of it has a group. The kernels are simple rather than fast.
#include "kernels/common/cuda_common.cuh"
#include "kernels/quantize/nvfp4_formula.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kSide = kWarpSize;
constexpr int kGroup = static_cast<int>(kNvfp4Group);
constexpr int kGroups = kSide / kGroup;
constexpr int kWarps = 8;

struct LayoutTarget {
  void* values;     ///< null: not requested
  float* factor;    ///< the amax, then the factor
  uint8_t* scales;  ///< of codes; null: values times their scale
};

struct Target {
  LayoutTarget rowwise, columnwise;
  bool blocks, hadamard, stochastic, restore;
  uint64_t seed, stream;
  int margin;
  float* amax;
  Fp8Counters* counters;
  int64_t rows, cols;
  unsigned across;  ///< tiles in a row of tiles
};

struct Shared {
  float tile[kSide][kSide + 1];
  uint32_t block_amax[kGroups][kGroups];
  uint32_t words[kWarpSize];
};

/// Position of a tile and a thread in it.
struct Place {
  int64_t top, left;
  int lane, warp;
  explicit __device__ Place(unsigned across) {
    top = int64_t{blockIdx.x / across} * kSide, left = int64_t{blockIdx.x % across} * kSide;
    lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  }
};

/// Maximum over the lane's group.
__device__ uint32_t group_max(uint32_t bits) {
#pragma unroll
  for (int h = 1; h < kGroup; h *= 2) bits = max(bits, __shfl_xor_sync(kAllLanes, bits, h));
  return bits;
}

/// Hadamard transform of the lane's group.
__device__ float transformed(float value, int lane) {
#pragma unroll
  for (int h = 1; h < kGroup; h *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, h);
    value = (lane & h) != 0 ? other - value : value + other;
  }
  return value * 0.25f;
}

/// The value of a column's row top + lane, transformed if requested. All lanes must call it.
template <class T>
__device__ float column_value(const Shared& shared, const Target& target, const Place& place, int i) {
  const float value = shared.tile[place.lane][i];
  if (!target.hadamard) return value;
  const float changed = round_to<T>(transformed(value * nvfp4_sign(place.lane % kGroup), place.lane));
  return place.top + place.lane / kGroup * kGroup + kGroup <= target.rows ? changed : value;
}

/// Loads the tile, with zeros outside, and the amaxes of its blocks. Returns the bits of the thread's amax.
template <class T>
__device__ uint32_t load_tile(const T* x, const Target& target, const Place& place, Shared& shared) {
  if (threadIdx.x < kGroups * kGroups) shared.block_amax[threadIdx.x / kGroups][threadIdx.x % kGroups] = 0;
  __syncthreads();
  uint32_t largest = 0;
  for (int i = place.warp; i < kSide; i += kWarps) {
    const int64_t row = place.top + i, col = place.left + place.lane;
    const float value =
        row < target.rows && col < target.cols ? load_float(x + row * target.cols + col) : 0.0f;
    shared.tile[i][place.lane] = value;
    largest = max(largest, abs_bits(value));
    if (target.blocks)
      atomicMax(&shared.block_amax[i / kGroup][place.lane / kGroup], magnitude_without_nan(value));
  }
  __syncthreads();
  return largest;
}

__device__ void update_max(float* amax, uint32_t bits) {
  bits = __reduce_max_sync(kAllLanes, bits);
  if (threadIdx.x % kWarpSize == 0) atomicMax(reinterpret_cast<unsigned int*>(amax), bits);
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    amax_kernel(const T* x, const __grid_constant__ Target target) {
  __shared__ Shared shared;
  const Place place(target.across);
  const uint32_t largest = load_tile(x, target, place, shared);
  uint32_t rows = 0, columns = 0;
  for (int i = place.warp; i < kSide; i += kWarps) {
    rows = max(rows, magnitude_without_nan(shared.tile[i][place.lane]));
    columns = max(columns, magnitude_without_nan(column_value<T>(shared, target, place, i)));
  }
  if (target.rowwise.values != nullptr) update_max(target.rowwise.factor, rows);
  if (target.columnwise.values != nullptr) update_max(target.columnwise.factor, columns);
  if (target.amax != nullptr) block_update_amax(largest, target.amax, shared.words);
}

/// Quantizes the lane's value of a group, at `index` of a layout. All lanes must call it.
__device__ Nvfp4Value quantized(float x, uint32_t amax_bits, const Nvfp4Tensor& tensor, const Target& target,
                                bool columnwise, int64_t index, bool counts, ThreadCounters& counters) {
  const Nvfp4Group group = nvfp4_group(amax_bits, tensor);
  const uint32_t word =
      target.stochastic ? nvfp4_random(target.seed, target.stream, columnwise, static_cast<uint64_t>(index))
                        : 0;
  const Nvfp4Value result = nvfp4_value(x, group, target.stochastic ? &word : nullptr);
  if (counts) {
    counters.saturated += result.saturated ? 1u : 0u;
    counters.flushed += result.flushed ? 1u : 0u;
  }
  return result;
}

/// Writes the codes and the scale of the lane's group in row `row` of a layout [rows, cols], from column `col` of the
/// lane. All lanes must call it. Groups outside have the scale 0, with which they fill up the last tile of scales.
__device__ void write_codes(const LayoutTarget& out, float code, bool nan, uint32_t amax_bits,
                            const Nvfp4Tensor& tensor, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  const bool any_nan = group_max(nan ? 1u : 0u) != 0;
  const uint32_t own = e2m1_code(code), next = __shfl_down_sync(kAllLanes, own, 1);
  const int64_t group = col / kGroup, groups = (cols + kGroup - 1) / kGroup;
  if (col % kGroup == 0 && group < (groups + 3) / 4 * 4) {
    const uint32_t bits = row < rows ? amax_bits : 0;  // a block of 16 x 16 values may go over the last row
    const float scale = any_nan ? std::bit_cast<float>(0x7fffffffu) : nvfp4_group(bits, tensor).scale;
    out.scales[mx_scale_index(row, group, groups)] = to_fp8<DType::e4m3>(scale);
  }
  if (col % 2 == 0 && row < rows && col < cols)
    static_cast<uint8_t*>(out.values)[(row * cols + col) / 2] = static_cast<uint8_t>(own | next << 4);
}

template <class T>
__device__ void write_rows(const Target& target, const Place& place, const Shared& shared,
                           ThreadCounters& counters) {
  const float amax = *target.rowwise.factor;
  const Nvfp4Tensor tensor = nvfp4_tensor(amax, target.margin);
  for (int i = place.warp; i < kSide; i += kWarps) {
    const int64_t row = place.top + i, col = place.left + place.lane, index = row * target.cols + col;
    const float x = shared.tile[i][place.lane];
    const uint32_t bits = target.blocks ? shared.block_amax[i / kGroup][place.lane / kGroup]
                                        : group_max(magnitude_without_nan(x));
    const bool inside = row < target.rows && col < target.cols;
    const Nvfp4Value result = quantized(x, bits, tensor, target, false, index, inside, counters);
    if (target.rowwise.scales != nullptr) {
      write_codes(target.rowwise, result.code, x != x, bits, tensor, row, col, target.rows, target.cols);
      continue;
    }
    float value = result.value;
    if (target.restore) value = rounded_product(value, nvfp4_factor(amax, target.margin));
    if (inside) store_float(static_cast<T*>(target.rowwise.values) + index, value);
  }
}

template <class T>
__device__ void write_columns(const Target& target, const Place& place, const Shared& shared, bool counts,
                              ThreadCounters& counters) {
  const float amax = *target.columnwise.factor;
  const Nvfp4Tensor tensor = nvfp4_tensor(amax, target.margin);
  for (int i = place.warp; i < kSide; i += kWarps) {
    const int64_t row = place.top + place.lane, col = place.left + i, index = col * target.rows + row;
    const float x = column_value<T>(shared, target, place, i);
    const uint32_t bits = target.blocks ? shared.block_amax[place.lane / kGroup][i / kGroup]
                                        : group_max(magnitude_without_nan(x));
    const bool inside = row < target.rows && col < target.cols;
    const Nvfp4Value result = quantized(x, bits, tensor, target, true, index, counts && inside, counters);
    if (target.columnwise.scales != nullptr) {
      write_codes(target.columnwise, result.code, x != x, bits, tensor, col, row, target.cols, target.rows);
      continue;
    }
    float value = result.value;
    if (target.restore) {
      value = rounded_product(value, nvfp4_factor(amax, target.margin));
      const float back = transformed(value, place.lane) * nvfp4_sign(place.lane % kGroup);
      if (target.hadamard && place.top + place.lane / kGroup * kGroup + kGroup <= target.rows) value = back;
    }
    if (inside) store_float(static_cast<T*>(target.columnwise.values) + index, value);
  }
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    quantize_nvfp4_kernel(const T* x, const __grid_constant__ Target target) {
  __shared__ Shared shared;
  const Place place(target.across);
  load_tile(x, target, place, shared);
  ThreadCounters counters;
  const bool rowwise = target.rowwise.values != nullptr;
  if (rowwise) write_rows<T>(target, place, shared, counters);
  if (target.columnwise.values != nullptr) write_columns<T>(target, place, shared, !rowwise, counters);
  if (target.counters == nullptr) return;
  const int64_t rows = max(int64_t{0}, min(int64_t{kSide}, target.rows - place.top));
  const int64_t cols = max(int64_t{0}, min(int64_t{kSide}, target.cols - place.left));
  // A thread's share of the tile's elements only matters in the sum.
  add_counters(counters, threadIdx.x == 0 ? static_cast<unsigned>(rows * cols) : 0, target.counters);
}

__global__ void factor_kernel(const __grid_constant__ Target target) {
  const LayoutTarget& layout = threadIdx.x == 0 ? target.rowwise : target.columnwise;
  if (layout.values != nullptr) *layout.factor = nvfp4_factor(*layout.factor, target.margin);
}

LayoutTarget layout_target(const Matrix& matrix) {
  const bool native = matrix.layout == ScaleLayout::nvfp4;
  return {matrix.values.data, matrix ? matrix.tensor_factor().as<float>() : nullptr,
          native ? matrix.scales.as<uint8_t>() : nullptr};
}

}  // namespace

void quantize_nvfp4(const Context& context, const QuantizeNvfp4& args) {
  if (args.x.numel() == 0) return;
  // Tiles of scales cover up to 128 x 128 values.
  const bool native =
      args.rowwise.layout == ScaleLayout::nvfp4 || args.columnwise.layout == ScaleLayout::nvfp4;
  const int64_t extent = native ? kScaleBlock : kSide, per_extent = extent / kSide;
  const Target target{.rowwise = layout_target(args.rowwise),
                      .columnwise = layout_target(args.columnwise),
                      .blocks = args.blocks,
                      .hadamard = args.hadamard,
                      .stochastic = args.stochastic,
                      .restore = args.restore,
                      .seed = args.seed,
                      .stream = args.stream,
                      .margin = args.margin,
                      .amax = args.amax,
                      .counters = args.counters,
                      .rows = args.x.rows(),
                      .cols = args.x.cols(),
                      .across = static_cast<unsigned>(ceil_div(args.x.cols(), extent) * per_extent)};
  const unsigned tiles = static_cast<unsigned>(ceil_div(target.rows, extent) * per_extent) * target.across;
  const cudaStream_t stream = cuda_stream(context);
  for (const Matrix* output : {&args.rowwise, &args.columnwise})
    if (*output) context.zero(output->tensor_factor());
  visit_grad(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const T* x = args.x.as<const T>();
    amax_kernel<T><<<tiles, kWarps * kWarpSize, 0, stream>>>(x, target);
    for (const Matrix* output : {&args.rowwise, &args.columnwise})
      if (*output && args.all_reduce_amax) args.all_reduce_amax(context, output->tensor_factor());
    quantize_nvfp4_kernel<T><<<tiles, kWarps * kWarpSize, 0, stream>>>(x, target);
  });
  factor_kernel<<<1, 2, 0, stream>>>(target);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
