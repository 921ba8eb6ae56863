// Quantization to MXFP8 on the GPU. A block holds a tile of 32 x 32 values in shared memory, the extent of a scale in
// both layouts: a warp quantizes rows, then columns. It is simple rather than fast.
#include "kernels/common/cuda_common.cuh"
#include "kernels/quantize/mx_formula.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kSide = static_cast<int>(kMxGroup);
constexpr int kWarps = 8;
static_assert(kSide == kWarpSize, "a group has a lane per value");

/// A layout [rows, cols]: codes with scales, or dequantized values without.
struct MxOutput {
  void* values;
  uint8_t* scales;
  int64_t rows, cols;
};

struct Target {
  MxOutput rowwise, columnwise;
  DType type;
  SmallFloat format;
  int margin;
  float* amax;
  Fp8Counters* counters;
  int64_t rows, cols;
  unsigned across;  ///< tiles in a row of tiles
};

/// Quantizes 32 values of row `row` from column `first`, one per lane; counts if `counts`. All lanes must call it. A
/// group outside the layout has the scale 0, with which it fills up the last tile of scales.
template <class T>
__device__ void write_group(float x, const MxOutput& out, int64_t row, int64_t first, const Target& target,
                            bool counts, ThreadCounters& counters) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const uint32_t amax = __reduce_max_sync(kAllLanes, magnitude_without_nan(x));
  const uint32_t code = mx_scale_code(amax, target.format, target.margin);
  const MxValue result = mx_value(x, code, target.format);
  if (counts) {
    counters.saturated += result.saturated ? 1u : 0u;
    counters.flushed += result.flushed ? 1u : 0u;
  }
  if (out.scales != nullptr && lane == 0)
    out.scales[mx_scale_index(row, first / kSide, (out.cols + kSide - 1) / kSide)] =
        static_cast<uint8_t>(code);
  if (row >= out.rows || first + lane >= out.cols) return;
  const int64_t at = row * out.cols + first + lane;
  if (out.scales == nullptr)
    store_float(static_cast<T*>(out.values) + at, result.value);
  else if (target.type == DType::e4m3)
    static_cast<__nv_fp8_storage_t*>(out.values)[at] = to_fp8<DType::e4m3>(result.code);
  else
    static_cast<__nv_fp8_storage_t*>(out.values)[at] = to_fp8<DType::e5m2>(result.code);
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    quantize_mx_kernel(const T* x, const __grid_constant__ Target target) {
  __shared__ float tile[kSide][kSide + 1];
  __shared__ uint32_t words[kWarpSize];
  const unsigned across = target.across;
  const int64_t top = int64_t{blockIdx.x / across} * kSide, left = int64_t{blockIdx.x % across} * kSide;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize,
            warp = static_cast<int>(threadIdx.x) / kWarpSize;
  ThreadCounters counters;
  uint32_t largest = 0;
  unsigned elements = 0;
  // 1. Rows
  for (int i = warp; i < kSide; i += kWarps) {
    const int64_t row = top + i, col = left + lane;
    const bool inside = row < target.rows && col < target.cols;
    const float value = inside ? load_float(x + row * target.cols + col) : 0.0f;
    tile[i][lane] = value;
    largest = max(largest, abs_bits(value));
    elements += inside ? 1u : 0u;
    if (target.rowwise.values == nullptr) continue;
    write_group<T>(value, target.rowwise, row, left, target, true, counters);
  }
  // 2. Columns
  if (target.columnwise.values != nullptr) {
    __syncthreads();
    for (int i = warp; i < kSide; i += kWarps)
      write_group<T>(tile[lane][i], target.columnwise, left + i, top, target,
                     target.rowwise.values == nullptr, counters);
  }
  // 3. Counters and amax
  if (target.counters != nullptr) add_counters(counters, elements, target.counters);
  if (target.amax != nullptr) block_update_amax(largest, target.amax, words);
}

}  // namespace

void quantize_mx(const Context& context, const QuantizeMx& args) {
  if (args.x.numel() == 0) return;
  const auto output = [](const Matrix& matrix) {
    const bool native = matrix.layout == ScaleLayout::mx;
    return MxOutput{.values = matrix.values.data,
                    .scales = native ? matrix.scales.as<uint8_t>() : nullptr,
                    .rows = matrix ? matrix.rows() : 0,
                    .cols = matrix ? matrix.cols() : 0};
  };
  // Tiles of scales cover 128 x 128 values.
  const bool native = args.rowwise.layout == ScaleLayout::mx || args.columnwise.layout == ScaleLayout::mx;
  const int64_t extent = native ? kScaleBlock : kSide, per_extent = extent / kSide;
  const Target target{.rowwise = output(args.rowwise),
                      .columnwise = output(args.columnwise),
                      .type = args.format,
                      .format = small_float(args.format),
                      .margin = args.margin,
                      .amax = args.amax,
                      .counters = args.counters,
                      .rows = args.x.rows(),
                      .cols = args.x.cols(),
                      .across = static_cast<unsigned>(ceil_div(args.x.cols(), extent) * per_extent)};
  const unsigned tiles = static_cast<unsigned>(ceil_div(target.rows, extent) * per_extent) * target.across;
  visit_grad(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    quantize_mx_kernel<T>
        <<<tiles, kWarps * kWarpSize, 0, cuda_stream(context)>>>(args.x.as<const T>(), target);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
