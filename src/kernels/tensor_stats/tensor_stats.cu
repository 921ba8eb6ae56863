// Quantization statistics on the GPU: kStatsParts blocks on any device, so that the order of all sums depends only on
// the shape. A block iterates over its groups. With current scaling it first computes a group's amax, then the sums,
// which each thread keeps in FP64 registers until the end. A tree reduction combines the threads' sums, and a second
// launch the blocks' sums.
#include <cuda_fp16.h>

#include <cmath>

#include "kernels/common/cuda_common.cuh"
#include "kernels/scale_update/scale_formula.h"
#include "kernels/tensor_stats/tensor_stats_cuda.h"
#include "kernels/tensor_stats/tensor_stats_math.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 128;

struct StatsArgs {
  StatsTiles tiles;
  const float* scale;  // null: current scaling, or no quantization
  float margin_factor;
  bool quantizes, power_of_two, columnwise;
  const void* dequantized;
  TensorSums* partial;
};

/// Maximum over the block, returned to all threads. `shared`: one word per warp.
__device__ uint32_t block_max(uint32_t bits, uint32_t* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  bits = __reduce_max_sync(kAllLanes, bits);
  __syncthreads();  // the previous group's maximum has been read
  if (lane == 0) shared[warp] = bits;
  __syncthreads();
  bits = 0;
  for (int i = 0; i < kThreads / kWarpSize; ++i) bits = max(bits, shared[i]);
  return bits;
}

/// Sums over all threads, in shared[0] for thread 0.
__device__ void block_add(const TensorSums& own, TensorSums* shared) {
  shared[threadIdx.x] = own;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) add_sums(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
}

template <DType format>
__device__ float decoded(uint8_t q) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(q, kInterpretation<format>)));
}

template <class T, DType format>
__global__ void __launch_bounds__(kThreads) stats_kernel(const T* x, StatsArgs args) {
  __shared__ uint32_t largest[kThreads / kWarpSize];
  __shared__ TensorSums shared[kThreads];
  TensorSums sums{};
  for (int64_t index = blockIdx.x; index < args.tiles.count; index += gridDim.x) {
    const StatsTiles::Tile tile = args.tiles.tile(index);
    const T* first = x + tile.row * args.tiles.cols + tile.col;
    const int64_t count = tile.height * tile.width;
    const auto at = [&](int64_t i) {
      return load_float(first + i / tile.width * args.tiles.cols + i % tile.width);
    };
    float scale = args.scale != nullptr ? *args.scale : 1.0f;
    if (args.tiles.current_scaling) {
      uint32_t bits = 0;
      for (int64_t i = threadIdx.x; i < count; i += kThreads) bits = max(bits, abs_bits(at(i)));
      bits = block_max(bits, largest);
      scale = group_scale(__uint_as_float(bits), fp8_max(format), args.margin_factor, args.power_of_two);
    }
    if (args.quantizes && threadIdx.x == 0) add_scale(sums, scale);
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      const float value = at(i);
      ++sums.count;
      if (!isfinite(value)) {
        ++sums.nonfinite;
        continue;
      }
      add_moments(sums, value);
      if (args.dequantized != nullptr) {
        const int64_t row = tile.row + i / tile.width, col = tile.col + i % tile.width;
        add_error(sums, value,
                  load_float(static_cast<const T*>(args.dequantized) +
                             args.tiles.dequantized_index(args.columnwise, row, col)));
      }
      if (args.quantizes)
        add_quantized(sums, value, scale, decoded<format>(to_fp8<format>(value * scale)), fp8_max(format));
    }
  }
  block_add(sums, shared);
  if (threadIdx.x == 0) args.partial[blockIdx.x] = shared[0];
}

__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const TensorSums* partial, const Fp8Counters* counters, TensorSums* into) {
  __shared__ TensorSums shared[kThreads];
  TensorSums sums{};
  for (int64_t part = threadIdx.x; part < kStatsParts; part += kThreads) add_sums(sums, partial[part]);
  block_add(sums, shared);
  if (threadIdx.x != 0) return;
  add_sums(*into, shared[0]);
  if (counters != nullptr) add_counters(*into, *counters);
}

/// One block per pair of rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    alignment_kernel(const T* x, float* out, int64_t n, int64_t cols) {
  __shared__ double shared[3][kThreads];
  const T* gate = x + int64_t{blockIdx.x} * cols;
  const T* up = gate + n * cols;
  double sums[3] = {0, 0, 0};
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const double a = load_float(gate + c), b = load_float(up + c);
    sums[0] += a * b;
    sums[1] += a * a;
    sums[2] += b * b;
  }
  for (int k = 0; k < 3; ++k) shared[k][threadIdx.x] = sums[k];
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      for (int k = 0; k < 3; ++k) shared[k][threadIdx.x] += shared[k][threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  const double lengths = shared[1][0] * shared[2][0];
  out[blockIdx.x] = lengths > 0 ? static_cast<float>(shared[0][0] / sqrt(lengths)) : 0.0f;
}

}  // namespace

void tensor_stats(const Context& context, const TensorStats& args) {
  const auto stream = static_cast<cudaStream_t>(context.stream());
  const StatsArgs device{.tiles = stats_tiles(args),
                         .scale = args.scale,
                         .margin_factor = ldexpf(1.0f, -args.margin),
                         .quantizes = args.layout != ScaleLayout::none,
                         .power_of_two = args.power_of_two,
                         .columnwise = args.columnwise,
                         .dequantized = args.dequantized.data,
                         .partial = args.scratch.as<TensorSums>()};
  visit_high_precision(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    if (device.quantizes && args.format == DType::e5m2) {
      stats_kernel<T, DType::e5m2><<<kStatsParts, kThreads, 0, stream>>>(args.x.as<const T>(), device);
    } else {
      stats_kernel<T, DType::e4m3><<<kStatsParts, kThreads, 0, stream>>>(args.x.as<const T>(), device);
    }
    TE_CUDA_CHECK_LAUNCH();
  });
  add_parts_kernel<<<1, kThreads, 0, stream>>>(device.partial, args.counters, args.into);
  TE_CUDA_CHECK_LAUNCH();
}

void row_alignment(const Context& context, const RowAlignment& args) {
  const int64_t n = args.x.rows() / 2;
  if (n == 0) return;
  visit_high_precision(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    alignment_kernel<T>
        <<<static_cast<unsigned>(n), kThreads, 0, static_cast<cudaStream_t>(context.stream())>>>(
            args.x.as<const T>(), args.out.as<float>(), n, args.x.cols());
    TE_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace te::kernels::cuda
