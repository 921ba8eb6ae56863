#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/cuda_check.h"
#include "parallel/rank_sum.h"

namespace te::parallel {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;

struct Parts {
  std::array<const void*, kMaxAddends> data;
  int count;
};

__device__ float value(float x) {
  return x;
}
__device__ float value(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ float value(__half x) {
  return __half2float(x);
}
__device__ void put(float& x, float sum) {
  x = sum;
}
__device__ void put(__nv_bfloat16& x, float sum) {
  x = __float2bfloat16_rn(sum);
}
__device__ void put(__half& x, float sum) {
  x = __float2half_rn(sum);
}

/// 16 bytes of elements, for vectorized loads and stores.
template <class T>
struct alignas(16) Vector {
  static constexpr int kCount = 16 / sizeof(T);
  T at[kCount];
};

template <class T>
__device__ T element_sum(const Parts& parts, int64_t i) {
  float sum = value(static_cast<const T*>(parts.data[0])[i]);
  for (int part = 1; part < parts.count; ++part) sum += value(static_cast<const T*>(parts.data[part])[i]);
  T rounded;
  put(rounded, sum);
  return rounded;
}

template <class T>
__global__ void __launch_bounds__(kThreads) sum_kernel(Parts parts, T* out, int64_t count) {
  constexpr int kCount = Vector<T>::kCount;
  const int64_t vectors = count / kCount, stride = int64_t{gridDim.x} * kThreads;
  const int64_t begin = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t v = begin; v < vectors; v += stride) {
    float sums[kCount];
    const Vector<T> first = static_cast<const Vector<T>*>(parts.data[0])[v];
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = value(first.at[i]);
    for (int part = 1; part < parts.count; ++part) {
      const Vector<T> next = static_cast<const Vector<T>*>(parts.data[part])[v];
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += value(next.at[i]);
    }
    Vector<T> rounded;
#pragma unroll
    for (int i = 0; i < kCount; ++i) put(rounded.at[i], sums[i]);
    reinterpret_cast<Vector<T>*>(out)[v] = rounded;
  }
  for (int64_t i = vectors * kCount + begin; i < count; i += stride) out[i] = element_sum<T>(parts, i);
}

template <class T>
void launch(const Context& context, const Parts& parts, const Tensor& out) {
  const int64_t vectors = (out.numel() + Vector<T>::kCount - 1) / Vector<T>::kCount;
  const int64_t blocks = std::clamp<int64_t>((vectors + kThreads - 1) / kThreads, 1, kMaxBlocks);
  sum_kernel<T>
      <<<static_cast<unsigned>(blocks), kThreads, 0, cuda_stream(context)>>>(parts, out.as<T>(), out.numel());
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void sum_of_ranks(const Context& context, const std::vector<const void*>& parts, const Tensor& out) {
  TE_CHECK(!parts.empty() && parts.size() <= kMaxAddends, "sum of ranks with {} addends", parts.size());
  Parts addends{};
  addends.count = static_cast<int>(parts.size());
  std::copy(parts.begin(), parts.end(), addends.data.begin());
  bool aligned = reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
  for (const void* part : parts) aligned = aligned && reinterpret_cast<uintptr_t>(part) % 16 == 0;
  TE_CHECK(aligned, "sum of ranks of shape {}: memory is not aligned to 16 bytes", out.shape.str());
  switch (out.dtype) {
    case DType::f32:
      return launch<float>(context, addends, out);
    case DType::bf16:
      return launch<__nv_bfloat16>(context, addends, out);
    case DType::f16:
      return launch<__half>(context, addends, out);
    default:
      TE_CHECK(false, "sum of ranks of dtype {}", dtype_name(out.dtype));
  }
}

}  // namespace te::parallel
