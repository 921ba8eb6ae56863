// Casts of small tensors with the scale that they ask for themselves: amax, scale and cast in one launch of one block,
// where the general way (an amax pass, current_scale(), a cast) is four launches that each take longer than the work.
// What generation casts is a few rows.
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int64_t kMostElements = int64_t{128} * 1024;
constexpr int kWidth = 8;  ///< elements of a thread at a time

struct SmallCast {
  uint8_t* out;
  float *amax, *scale, *scale_inv;
  int64_t elements;
  float margin_factor;
};

template <class T, DType kFormat>
__global__ void __launch_bounds__(kThreads) quantize_small_kernel(const T* x, SmallCast p) {
  __shared__ uint32_t of_warps[kWarpSize];
  allow_dependents();
  // 1. The largest magnitude; NaN > inf > finite.
  uint32_t largest = 0;
  for (int64_t i = int64_t{threadIdx.x} * kWidth; i < p.elements; i += kThreads * kWidth) {
    const Vector<T, kWidth> values = load_vector<T, kWidth>(x + i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) largest = max(largest, abs_bits(load_float(&values.v[j])));
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  largest = __reduce_max_sync(0xffffffffu, of_warps[threadIdx.x % kWarpSize]);
  // 2. The scale.
  const float amax = __uint_as_float(largest),
              scale = scale_of(amax, fp8_max(kFormat), p.margin_factor, 1.0f);
  if (threadIdx.x == 0) *p.amax = amax, *p.scale = scale, *p.scale_inv = 1.0f / scale;
  // 3. The cast.
  for (int64_t i = int64_t{threadIdx.x} * kWidth; i < p.elements; i += kThreads * kWidth) {
    const Vector<T, kWidth> values = load_vector<T, kWidth>(x + i);
    Vector<uint8_t, kWidth> bytes;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) bytes.v[j] = to_fp8<kFormat>(load_float(&values.v[j]) * scale);
    store_vector<uint8_t, kWidth>(p.out + i, bytes);
  }
}

}  // namespace

bool quantize_with_own_scale(const Context& context, const QuantizeWithOwnScale& args) {
  const int64_t elements = args.x.numel();
  if (elements == 0 || elements > kMostElements || elements % kWidth != 0 || !is_aligned(args.x.data, 32) ||
      !is_aligned(args.out.data, kWidth))
    return false;
  const SmallCast p{.out = args.out.as<uint8_t>(),
                    .amax = args.amax,
                    .scale = args.scale,
                    .scale_inv = args.scale_inv,
                    .elements = elements,
                    .margin_factor = ldexpf(1.0f, -args.margin)};
  visit_hp(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const auto kernel = args.out.dtype == DType::e4m3 ? quantize_small_kernel<T, DType::e4m3>
                                                      : quantize_small_kernel<T, DType::e5m2>;
    kernel<<<1, kThreads, 0, cuda_stream(context)>>>(args.x.as<T>(), p);
  });
  TE_CUDA_CHECK_LAUNCH();
  return true;
}

}  // namespace te::kernels::cuda
