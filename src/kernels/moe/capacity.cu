// Capacity of experts on the GPU. A block finds the smallest kept key of its expert digit by digit (radix selection),
// then keeps larger ones, and equal ones in their order.
#include "kernels/common/cuda_common.cuh"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/prefix_sum.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kDigits = 256;

/// Keys of an expert's selections: the bits of their probabilities, which are in the order of the values.
struct Keys {
  const float* probs;
  const int32_t* source;  ///< of the expert's first row
  int count;
  __device__ uint32_t operator[](int i) const { return __float_as_uint(probs[source[i]]); }
};

/// The largest digit of keys with a prefix for which at least `wanted` keys have it or a larger one. `wanted` becomes
/// the number of those with this digit.
__device__ uint32_t next_digit(const Keys& keys, uint32_t prefix, uint32_t mask, int shift, int& wanted,
                               int* counts, int2& chosen) {
  for (int d = threadIdx.x; d < kDigits; d += kThreads) counts[d] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < keys.count; i += kThreads) {
    const uint32_t key = keys[i];
    if ((key & mask) == prefix) atomicAdd(&counts[key >> shift & (kDigits - 1)], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int digit = kDigits - 1, left = wanted;
    while (counts[digit] < left) left -= counts[digit--];
    chosen = make_int2(digit, left);
  }
  __syncthreads();
  wanted = chosen.y;
  return static_cast<uint32_t>(chosen.x) << shift;
}

__global__ void __launch_bounds__(kThreads)
    limit_kernel(const float* probs, const int32_t* offsets, const int32_t* source, int capacity,
                 double factor, int32_t* kept, float* dropped) {
  __shared__ int counts[kDigits], sums[kThreads / kWarpSize];
  __shared__ int2 chosen;
  const int e = static_cast<int>(blockIdx.x), first = offsets[e];
  const Keys keys{probs, source + first, offsets[e + 1] - first};
  const int all = offsets[gridDim.x];
  if (factor > 0.0)
    capacity = static_cast<int>(min(int64_t{capacity}, expert_capacity(all, gridDim.x, factor)));
  if (e == 0 && threadIdx.x == 0 && dropped != nullptr) atomicAdd(dropped + 1, static_cast<float>(all));
  uint32_t smallest = 0, mask = 0;
  int equal = keys.count;  // kept ones of the keys that equal the smallest
  if (keys.count > capacity) {
    equal = capacity;
    for (int shift = 24; shift >= 0; shift -= 8, mask = mask >> 8 | 0xff000000u)
      smallest |= next_digit(keys, smallest, mask, shift, equal, counts, chosen);
    if (threadIdx.x == 0 && dropped != nullptr) atomicAdd(dropped, static_cast<float>(keys.count - capacity));
  }
  for (int start = 0; start < keys.count; start += kThreads) {
    const int i = start + static_cast<int>(threadIdx.x);
    const uint32_t key = i < keys.count ? keys[i] : 0;
    const bool is_equal = i < keys.count && key == smallest;
    const int2 before = prefix_sum(is_equal ? 1 : 0, sums);
    if (i < keys.count) kept[keys.source[i]] = key > smallest || (is_equal && before.x < equal) ? e : -1;
    equal -= before.y;
    __syncthreads();
  }
}

}  // namespace

void limit_experts(const Context& context, const LimitExperts& a) {
  limit_kernel<<<static_cast<unsigned>(a.offsets.numel() - 1), kThreads, 0, cuda_stream(context)>>>(
      a.probs.as<float>(), a.offsets.as<int32_t>(), a.source.as<int32_t>(), static_cast<int>(a.capacity),
      a.factor, a.kept.as<int32_t>(), a.dropped);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
