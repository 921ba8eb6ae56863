// Current scaling of small tensors: amax, scale and quantization in one launch of a single block, or of one cluster
// whose blocks exchange their amax, if the GPU has clusters. Generation quantizes only a few rows, for which each of
// the general kernel's two launches takes longer than the work.
#include <cooperative_groups.h>

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kCluster = 8;
constexpr int64_t kOfOneBlock = int64_t{32} * 1024;  ///< elements
constexpr int kWidth = 8;                            ///< elements per thread and access

struct SmallQuantization {
  uint8_t* out;
  float *amax, *scale, *scale_inv;
  int64_t elements;
  float margin_factor;
  bool power_of_two;
};

template <class T, DType kFormat, int kBlocks>
__global__ void __launch_bounds__(kThreads) quantize_small_kernel(const T* x, SmallQuantization p) {
  __shared__ uint32_t of_warps[kWarpSize];
  wait_on_dependent_grids();
  launch_dependent_grids();
  constexpr int64_t kStep = int64_t{kBlocks} * kThreads * kWidth;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  // 1. Amax; NaN > inf > finite
  uint32_t largest = 0;
  for (int64_t i = first; i < p.elements; i += kStep) {
    const Vector<T, kWidth> values = load_vector<T, kWidth>(x + i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) largest = max(largest, abs_bits(load_float(&values.v[j])));
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  largest = __reduce_max_sync(kAllLanes, of_warps[threadIdx.x % kWarpSize]);
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) {
    __shared__ uint32_t of_block;
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) of_block = largest;
    cluster.sync();
    const int block = static_cast<int>(threadIdx.x) % kBlocks;
    largest = __reduce_max_sync(kAllLanes, *cluster.map_shared_rank(&of_block, block));
    cluster.sync();  // a block must not exit while others read its shared memory
  }
#endif
  // 2. Scale
  const float amax = __uint_as_float(largest);
  const float scale = group_scale(amax, fp8_max(kFormat), p.margin_factor, p.power_of_two);
  if (first == 0) *p.amax = amax, *p.scale = scale, *p.scale_inv = 1.0f / scale;
  // 3. Quantization
  for (int64_t i = first; i < p.elements; i += kStep) {
    const Vector<T, kWidth> values = load_vector<T, kWidth>(x + i);
    Vector<uint8_t, kWidth> bytes;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) bytes.v[j] = to_fp8<kFormat>(load_float(&values.v[j]) * scale);
    store_vector<uint8_t, kWidth>(p.out + i, bytes);
  }
}

template <class T, DType kFormat, int kBlocks>
void launch(const Context& context, const T* x, const SmallQuantization& p) {
  launch_dependent_clusters(context, quantize_small_kernel<T, kFormat, kBlocks>, kBlocks, kThreads, 0, true,
                            kBlocks, x, p);
}

template <class T, DType kFormat>
void launch_by_size(const Context& context, const T* x, const SmallQuantization& p) {
  const bool one_block = p.elements <= kOfOneBlock || !device_caps(context).clusters;
  one_block ? launch<T, kFormat, 1>(context, x, p) : launch<T, kFormat, kCluster>(context, x, p);
}

}  // namespace

bool quantize_current_scaling(const Context& context, const QuantizeCurrentScaling& args) {
  const int64_t elements = args.x.numel();
  if (elements == 0 || elements > kMaxSmallElements || elements % kWidth != 0 ||
      !is_aligned(args.x.data, 32) || !is_aligned(args.out.data, kWidth))
    return false;
  const SmallQuantization p{.out = args.out.as<uint8_t>(),
                            .amax = args.amax,
                            .scale = args.scale,
                            .scale_inv = args.scale_inv,
                            .elements = elements,
                            .margin_factor = ldexpf(1.0f, -args.margin),
                            .power_of_two = args.power_of_two};
  visit_high_precision(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const T* const x = args.x.as<T>();
    args.out.dtype == DType::e4m3 ? launch_by_size<T, DType::e4m3>(context, x, p)
                                  : launch_by_size<T, DType::e5m2>(context, x, p);
  });
  return true;
}

}  // namespace te::kernels::cuda
