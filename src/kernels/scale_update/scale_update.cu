// Scale updates on the GPU: the lanes of a warp process consecutive tensors, and its warps divide the rows of the
// history.
#include <cmath>

#include "kernels/common/cuda_common.cuh"
#include "kernels/scale_update/scale_formula.h"
#include "kernels/scale_update/scale_update.h"

namespace te::kernels::cuda {
namespace {

constexpr int kStrands = 16;  // rows of the history that are read in parallel

struct DelayedArgs {
  float* amax;
  float* history;
  const int32_t* position;
  float* scale;
  const float* fp8_max;
  const int32_t* skip;
  int64_t len, n;
  float margin_factor;
  AmaxAlgo compute;
};

__global__ void delayed_scale_kernel(DelayedArgs args) {
  __shared__ float strand[kStrands][kWarpSize];
  const int64_t i = int64_t{blockIdx.x} * kWarpSize + threadIdx.x;
  const bool valid = i < args.n;
  const bool skip = args.skip != nullptr && *args.skip != 0;
  const int64_t position = *args.position;
  const bool look_back = args.compute == AmaxAlgo::max && !skip;
  float largest = 0.0f;
  if (valid && look_back)
    for (int64_t row = threadIdx.y; row < args.len; row += kStrands)
      if (row != position) largest = fmaxf(largest, args.history[row * args.n + i]);
  strand[threadIdx.y][threadIdx.x] = largest;
  __syncthreads();
  if (threadIdx.y != 0 || !valid) return;
  const float amax = args.amax[i];
  args.amax[i] = 0.0f;
  if (skip) return;
  const float entry = isfinite(amax) ? amax : 0.0f;
  args.history[position * args.n + i] = entry;
  float reference = amax;
  if (look_back) {
    reference = entry;
    for (int y = 0; y < kStrands; ++y) reference = fmaxf(reference, strand[y][threadIdx.x]);
  }
  args.scale[i] = scale_of(reference, args.fp8_max[i], args.margin_factor, args.scale[i]);
}

/// Separate launch after the update, because every block of the update reads the position.
__global__ void advance_position_kernel(int32_t* position, int64_t len, const int32_t* skip) {
  if (skip == nullptr || *skip == 0) *position = static_cast<int32_t>((*position + 1) % len);
}

__global__ void current_scale_kernel(const float* amax, float* scale, int64_t n, float fp8_max,
                                     float margin_factor, bool power_of_two) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) scale[i] = group_scale(amax[i], fp8_max, margin_factor, power_of_two);
}

__global__ void current_scales_kernel(const float* amax, const float* fp8_max, const uint8_t* power_of_two,
                                      float* scale, int64_t n, float margin_factor) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) scale[i] = group_scale(amax[i], fp8_max[i], margin_factor, power_of_two[i] != 0);
}

/// A single thread. All other writers of the state are earlier launches.
__global__ void record_current_scale_kernel(RecordCurrentScale args) {
  const float amax = *args.found_amax, scale = *args.found_scale;
  // Non-negative floats are ordered like their bits, with infinity and NaN above the finite values.
  if (args.amax != nullptr)
    *args.amax = __uint_as_float(max(__float_as_uint(*args.amax), __float_as_uint(amax) & 0x7fffffffu));
  if (args.current_amax != nullptr) *args.current_amax = amax;
  if (args.scale != nullptr) *args.scale = scale;
  if (args.scale_inv != nullptr) *args.scale_inv = 1.0f / scale;
}

}  // namespace

void delayed_scale_update(const Context& context, const DelayedScaleUpdate& args) {
  const int64_t n = args.amax.numel(), len = args.history.dim(0);
  if (n > 0) {
    const DelayedArgs device{args.amax.as<float>(),
                             args.history.as<float>(),
                             args.position.as<int32_t>(),
                             args.scale.as<float>(),
                             args.fp8_max.as<float>(),
                             args.skip,
                             len,
                             n,
                             std::ldexp(1.0f, -args.margin),
                             args.compute};
    delayed_scale_kernel<<<ceil_div(n, kWarpSize), dim3(kWarpSize, kStrands), 0, cuda_stream(context)>>>(
        device);
    TE_CUDA_CHECK_LAUNCH();
  }
  advance_position_kernel<<<1, 1, 0, cuda_stream(context)>>>(args.position.as<int32_t>(), len, args.skip);
  TE_CUDA_CHECK_LAUNCH();
}

void current_scale(const Context& context, const CurrentScale& args) {
  const int64_t n = args.amax.numel();
  if (n == 0) return;
  current_scale_kernel<<<ceil_div(n, 128), 128, 0, cuda_stream(context)>>>(
      args.amax.as<float>(), args.scale.as<float>(), n, args.fp8_max, std::ldexp(1.0f, -args.margin),
      args.power_of_two);
  TE_CUDA_CHECK_LAUNCH();
}

void current_scales(const Context& context, const CurrentScales& args) {
  const int64_t n = args.amax.numel();
  if (n == 0) return;
  current_scales_kernel<<<ceil_div(n, 128), 128, 0, cuda_stream(context)>>>(
      args.amax.as<float>(), args.fp8_max.as<float>(), args.power_of_two.as<uint8_t>(),
      args.scale.as<float>(), n, std::ldexp(1.0f, -args.margin));
  TE_CUDA_CHECK_LAUNCH();
}

void record_current_scale(const Context& context, const RecordCurrentScale& args) {
  record_current_scale_kernel<<<1, 1, 0, cuda_stream(context)>>>(args);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
