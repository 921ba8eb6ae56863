// Quantization to MXFP8 on the GPU. A block holds a tile of 32 x 32 values in shared memory, the extent of a scale in
// both layouts: a warp quantizes rows, then columns. The recipe is emulated, so the kernel is simple rather than fast.
#include "kernels/common/cuda_common.cuh"
#include "kernels/quantize/mx_formula.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kSide = static_cast<int>(kMxGroup);
constexpr int kWarps = 8;
static_assert(kSide == kWarpSize, "a group has a lane per value");

struct Target {
  void *rowwise, *columnwise;
  SmallFloat format;
  int margin;
  float* amax;
  Fp8Counters* counters;
  int64_t rows, cols;
};

/// Quantizes a group, one value per lane; counts if `counts`. All lanes must call it.
__device__ float quantized(float x, const Target& target, bool counts, ThreadCounters& counters) {
  const uint32_t amax = __reduce_max_sync(0xffffffffu, magnitude_without_nan(x));
  const MxValue result = mx_value(x, mx_scale_code(amax, target.format, target.margin), target.format);
  if (counts) {
    counters.saturated += result.saturated ? 1u : 0u;
    counters.flushed += result.flushed ? 1u : 0u;
  }
  return result.value;
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    quantize_mx_kernel(const T* x, const __grid_constant__ Target target) {
  __shared__ float tile[kSide][kSide + 1];
  __shared__ uint32_t words[kWarpSize];
  const auto across = static_cast<unsigned>((target.cols + kSide - 1) / kSide);
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
    if (target.rowwise == nullptr) continue;
    const float result = quantized(value, target, true, counters);
    if (inside) store_float(static_cast<T*>(target.rowwise) + row * target.cols + col, result);
  }
  // 2. Columns
  if (target.columnwise != nullptr) {
    __syncthreads();
    for (int i = warp; i < kSide; i += kWarps) {
      const int64_t col = left + i, row = top + lane;
      const float result = quantized(tile[lane][i], target, target.rowwise == nullptr, counters);
      if (row < target.rows && col < target.cols)
        store_float(static_cast<T*>(target.columnwise) + col * target.rows + row, result);
    }
  }
  // 3. Counters and amax
  if (target.counters != nullptr) add_counters(counters, elements, target.counters);
  if (target.amax != nullptr) block_update_amax(largest, target.amax, words);
}

}  // namespace

void quantize_mx(const Context& context, const QuantizeMx& args) {
  if (args.x.numel() == 0) return;
  const Target target{.rowwise = args.rowwise.data,
                      .columnwise = args.columnwise.data,
                      .format = small_float(args.format),
                      .margin = args.margin,
                      .amax = args.amax,
                      .counters = args.counters,
                      .rows = args.x.rows(),
                      .cols = args.x.cols()};
  const unsigned tiles = ceil_div(target.rows, kSide) * ceil_div(target.cols, kSide);
  visit_grad(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    quantize_mx_kernel<T>
        <<<tiles, kWarps * kWarpSize, 0, cuda_stream(context)>>>(args.x.as<const T>(), target);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
