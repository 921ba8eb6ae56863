// Splits master weights on the GPU. Runs only when parameters are initialized, not in a step.
#include "kernels/common/cuda_common.cuh"
#include "kernels/param_split/param_split.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void split_kernel(const float* main_param, uint16_t* value, uint16_t* remainder, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const SplitFloat split = split_float(__float_as_uint(main_param[i]));
  value[i] = split.value;
  remainder[i] = split.remainder;
}

}  // namespace

void split_params(const Context& context, const ParamSplit& args) {
  const int64_t n = args.main_param.numel();
  split_kernel<<<ceil_div(n, kThreads), kThreads, 0, cuda_stream(context)>>>(
      args.main_param.as<float>(), args.value.as<uint16_t>(), args.remainder.as<uint16_t>(), n);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
