// Gradient norm on the GPU: a fixed grid writes one FP64 partial sum per block, and a single block adds these in a
// fixed order. The result depends only on the input and its alignment, not on the device or on timing.
#include "kernels/common/cuda_common.cuh"
#include "kernels/grad_norm/grad_norm_rule.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // independent 16-byte loads in flight

__device__ __forceinline__ double warp_sum_f64(double x) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

/// Sum over the block; valid in thread 0. `shared` holds 32 doubles.
__device__ __forceinline__ double block_sum_f64(double x, double* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  x = warp_sum_f64(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return warp == 0 ? warp_sum_f64(lane < warps ? shared[lane] : 0.0) : 0.0;
}

/// Whether the granule of element i is counted; flags may be null.
__device__ __forceinline__ bool is_counted(const uint8_t* flags, int64_t i) {
  return flags == nullptr || (flags[i / kAdamWGranule] & kGranuleCounted) != 0;
}

/// T is float or __nv_bfloat16. One access has kWidth elements, which are 16 bytes if the alignment allows.
template <class T, bool vectors>
__global__ void __launch_bounds__(kThreads)
    partial_sums(const T* x, const uint8_t* flags, int64_t n, double* parts) {
  constexpr int kWidth = kVectorWidth<T>;
  // A vector lies within one granule: both begin at multiples of kWidth elements of x.
  static_assert(kAdamWGranule % kWidth == 0);
  __shared__ double shared[kWarpSize];
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  double total = 0.0;
  const int64_t whole = vectors ? n / kWidth : 0;
  // FP32 within one iteration, FP64 across iterations, so that the error does not grow with n.
  for (int64_t first = thread; first < whole; first += threads * kUnroll) {
    Vector<T, kWidth> values[kUnroll];
    bool counted[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * threads;
      counted[u] = i < whole && is_counted(flags, i * kWidth);
      if (counted[u]) values[u] = load_vector<T, kWidth>(x + i * kWidth);
    }
    float sum = 0.0f;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float value = counted[u] ? load_float(&values[u].v[k]) : 0.0f;
        sum = fmaf(value, value, sum);
      }
    total += static_cast<double>(sum);
  }
  for (int64_t i = whole * kWidth + thread; i < n; i += threads) {
    if (!is_counted(flags, i)) continue;
    const float value = load_float(x + i);
    total += static_cast<double>(value * value);
  }
  total = block_sum_f64(total, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kSumOfSquaresParts) add_parts(const double* parts, float* out) {
  __shared__ double shared[kWarpSize];
  const double total = block_sum_f64(parts[threadIdx.x], shared);
  if (threadIdx.x == 0) *out = static_cast<float>(static_cast<double>(*out) + total);
}

__global__ void clip_kernel(const float* sum, const float* loss, float clip, float largest_loss,
                            float unscale, float* grad_norm, float* multiplier, int32_t* skip) {
  const ClipResult result = clip_rule(*sum, loss != nullptr ? *loss : 0.0f, clip, largest_loss, unscale);
  *grad_norm = result.grad_norm;
  *multiplier = result.multiplier;
  *skip = result.skip;
}

}  // namespace

void sum_of_squares(const Context& context, const Tensor& x, const Tensor& out, const Tensor& scratch,
                    const Tensor& flags) {
  double* parts = scratch.as<double>();
  const cudaStream_t stream = cuda_stream(context);
  visit_high_precision(x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const auto kernel = is_aligned(x.data, 16) ? partial_sums<T, true> : partial_sums<T, false>;
    kernel<<<kSumOfSquaresParts, kThreads, 0, stream>>>(x.as<T>(), flags.as<uint8_t>(), x.numel(), parts);
  });
  TE_CUDA_CHECK_LAUNCH();
  add_parts<<<1, kSumOfSquaresParts, 0, stream>>>(parts, out.as<float>());
  TE_CUDA_CHECK_LAUNCH();
}

void clip_coefficient(const Context& context, const ClipCoefficient& args) {
  clip_kernel<<<1, 1, 0, cuda_stream(context)>>>(args.sum_of_squares.as<float>(), args.loss.as<float>(),
                                                 args.clip, args.largest_loss, 1.0f / args.gradient_scale,
                                                 args.grad_norm.as<float>(), args.multiplier.as<float>(),
                                                 args.skip.as<int32_t>());
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
