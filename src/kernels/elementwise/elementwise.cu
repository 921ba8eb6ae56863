// Elementwise operations on the GPU: eight elements per thread, in 16-byte accesses if the alignment allows.
#include "core/random.h"
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/granule.h"
#include "kernels/common/soft_cap.h"
#include "kernels/common/vec8.cuh"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned vec8_blocks(int64_t count) {
  return ceil_div((count + 7) / 8, kThreads);
}

/// Loads or stores this thread's Vec8 of a vector, of which the last one may be partial.
template <bool kAligned, class T>
__device__ __forceinline__ Vec8<T> load_vec(const T* p, int64_t valid) {
  return kAligned && valid >= 8 ? load_vec8<true>(p, valid) : load_vec8<false>(p, valid);
}
template <bool kAligned, class T>
__device__ __forceinline__ void store_vec(const Vec8<T>& vec, T* p, int64_t valid) {
  if (kAligned && valid >= 8) {
    store_vec8<true>(vec, p, valid);
  } else {
    store_vec8<false>(vec, p, valid);
  }
}

template <class T, bool kAligned>
__global__ void add_kernel(const T* a, const T* b, T* out, int64_t count) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (at >= count) return;
  const Vec8<T> x = load_vec<kAligned>(a + at, count - at), y = load_vec<kAligned>(b + at, count - at);
  Vec8<T> sum;
#pragma unroll
  for (int j = 0; j < 8; j += 2) sum.set_pair(j, x.get(j) + y.get(j), x.get(j + 1) + y.get(j + 1));
  store_vec<kAligned>(sum, out + at, count - at);
}

template <class T, bool kAligned>
__global__ void scale_kernel(T* x, float factor, int64_t count) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (at >= count) return;
  Vec8<T> values = load_vec<kAligned>(x + at, count - at);
#pragma unroll
  for (int j = 0; j < 8; j += 2) values.set_pair(j, values.get(j) * factor, values.get(j + 1) * factor);
  store_vec<kAligned>(values, x + at, count - at);
}

template <class T>
__global__ void soft_cap_kernel(T* x, float cap, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) store_float(x + i, soft_cap(load_float(x + i), cap));
}

template <class From, class To, bool kAligned>
__global__ void cast_kernel(const From* x, To* out, int64_t count) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (at >= count) return;
  const Vec8<From> in = load_vec<kAligned>(x + at, count - at);
  Vec8<To> result;
#pragma unroll
  for (int j = 0; j < 8; j += 2) result.set_pair(j, in.get(j), in.get(j + 1));
  store_vec<kAligned>(result, out + at, count - at);
}

template <class T>
__global__ void fill_value_kernel(T* x, float value, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) store_float(x + i, value);
}

__global__ void fill_normal_kernel(float* x, int64_t count, float std, uint64_t seed, uint64_t stream,
                                   uint64_t first_index) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) x[i] = std * normal(seed, stream, first_index + static_cast<uint64_t>(i));
}

__global__ void fill_region_kernel(float* x, int64_t count, float std, uint64_t seed, uint64_t stream,
                                   ParameterRegion region) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) x[i] = std * normal(seed, stream, region.index(i));
}

/// A warp reads the flags of 32 granules and zeroes the flagged ones one after another.
template <class T>
__global__ void zero_granules_kernel(T* x, const uint8_t* flags, int64_t granules) {
  constexpr int kPerLane = kAdamWGranule / kWarpSize;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, lane = threadIdx.x % kWarpSize;
  unsigned left = __ballot_sync(kAllLanes, i < granules && (flags[i] & kGranuleZeroed) != 0);
  for (; left != 0; left &= left - 1) {
    const int64_t granule = i - lane + __ffs(left) - 1;
    store_vector(x + granule * kAdamWGranule + lane * kPerLane, Vector<T, kPerLane>{});
  }
}

template <class T>
void launch_add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out) {
  const bool aligned = is_aligned(a.data, 16) && is_aligned(b.data, 16) && is_aligned(out.data, 16);
  const auto kernel = aligned ? add_kernel<T, true> : add_kernel<T, false>;
  kernel<<<vec8_blocks(a.numel()), kThreads, 0, cuda_stream(context)>>>(a.as<T>(), b.as<T>(), out.as<T>(),
                                                                        a.numel());
}

template <class T>
void launch_scale(const Context& context, const Tensor& x, float factor) {
  const auto kernel = is_aligned(x.data, 16) ? scale_kernel<T, true> : scale_kernel<T, false>;
  kernel<<<vec8_blocks(x.numel()), kThreads, 0, cuda_stream(context)>>>(x.as<T>(), factor, x.numel());
}

template <class From, class To>
void launch_cast(const Context& context, const Tensor& x, const Tensor& out) {
  const bool aligned = is_aligned(x.data, 16) && is_aligned(out.data, 16);
  const auto kernel = aligned ? cast_kernel<From, To, true> : cast_kernel<From, To, false>;
  kernel<<<vec8_blocks(x.numel()), kThreads, 0, cuda_stream(context)>>>(x.as<From>(), out.as<To>(),
                                                                        x.numel());
}

/// Calls fn(element) with the device element type of an fp32, bf16 or fp16 tensor.
template <class Fn>
void with_type(DType type, Fn&& fn) {
  visit_high_precision(type, [&](auto zero) { fn(typename DeviceType<decltype(zero)>::type{}); });
}

}  // namespace

void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out) {
  if (a.numel() == 0) return;
  with_type(a.dtype, [&](auto element) { launch_add<decltype(element)>(context, a, b, out); });
  TE_CUDA_CHECK_LAUNCH();
}

void scale(const Context& context, const Tensor& x, float factor) {
  if (x.numel() == 0) return;
  with_type(x.dtype, [&](auto element) { launch_scale<decltype(element)>(context, x, factor); });
  TE_CUDA_CHECK_LAUNCH();
}

void soft_cap(const Context& context, const Tensor& x, float cap) {
  if (x.numel() == 0) return;
  with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    soft_cap_kernel<<<ceil_div(x.numel(), kThreads), kThreads, 0, cuda_stream(context)>>>(x.as<T>(), cap,
                                                                                          x.numel());
  });
  TE_CUDA_CHECK_LAUNCH();
}

void bias_gradient(const Context& context, const Tensor& dy, const Tensor& dbias, const Tensor& scratch) {
  quantize(context, {.x = dy, .dbias = dbias, .scratch = scratch});
}

void cast(const Context& context, const Tensor& x, const Tensor& out) {
  if (x.numel() == 0) return;
  with_type(x.dtype, [&](auto from) {
    with_type(out.dtype, [&](auto to) { launch_cast<decltype(from), decltype(to)>(context, x, out); });
  });
  TE_CUDA_CHECK_LAUNCH();
}

void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 uint64_t first_index) {
  if (x.numel() == 0) return;
  fill_normal_kernel<<<ceil_div(x.numel(), kThreads), kThreads, 0, cuda_stream(context)>>>(
      x.as<float>(), x.numel(), std, seed, stream, first_index);
  TE_CUDA_CHECK_LAUNCH();
}

void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 const ParameterRegion& region) {
  if (x.numel() == 0) return;
  fill_region_kernel<<<ceil_div(x.numel(), kThreads), kThreads, 0, cuda_stream(context)>>>(
      x.as<float>(), x.numel(), std, seed, stream, region);
  TE_CUDA_CHECK_LAUNCH();
}

void fill_value(const Context& context, const Tensor& x, float value) {
  if (x.numel() == 0) return;
  with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    fill_value_kernel<<<ceil_div(x.numel(), kThreads), kThreads, 0, cuda_stream(context)>>>(x.as<T>(), value,
                                                                                            x.numel());
  });
  TE_CUDA_CHECK_LAUNCH();
}

void zero_granules(const Context& context, const ZeroGranules& args) {
  const int64_t granules = args.flags.numel();
  if (granules == 0) return;
  with_type(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    zero_granules_kernel<<<ceil_div(granules, kThreads), kThreads, 0, cuda_stream(context)>>>(
        args.x.as<T>(), args.flags.as<uint8_t>(), granules);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
