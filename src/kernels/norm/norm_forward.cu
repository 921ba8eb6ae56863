// Forward pass of RMSNorm and LayerNorm where the fast kernel (norm_forward_rows.cu) does not apply: FP32, unaligned or
// very long rows, E5M2. A block processes one row at a time and reads it from the cache again in each phase. Amax and
// counters are written to memory once per block.
#include <algorithm>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_device.cuh"
#include "kernels/quantize/requantize.h"

namespace te::kernels::cuda {

namespace {

/// One element of x; with delta, of x + delta, which is also stored to sum.
template <class T>
__device__ __forceinline__ float load_input(const NormForwardParams<T>& p, int64_t offset) {
  const float x = load_float(p.x + offset);
  if (p.delta == nullptr) return x;
  const float sum = round_to<T>(x + load_float(p.delta + offset));
  store_float(p.sum + offset, sum);
  return sum;
}

/// Any width and alignment. A thread reads back only elements that it wrote itself.
template <class T>
__global__ void __launch_bounds__(1024) norm_forward_elements(NormForwardParams<T> p) {
  launch_dependent_grids();
  __shared__ BlockReducer::Shared shared;
  BlockReducer reducer(shared);
  NormFp8Sums sums;
  const float scale = p.fp8.scale != nullptr ? *p.fp8.scale : 1.0f;
  const T* input = p.delta != nullptr ? p.sum : p.x;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t start = row * p.hidden;
    float total = 0.0f, squares = 0.0f, mean = 0.0f;
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      total += load_input(p, start + c);
    }
    if (p.layer) mean = reducer.sum(total) / static_cast<float>(p.hidden);
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      const float x = load_float(input + start + c);
      squares += (x - mean) * (x - mean);
    }
    const float rstd = 1.0f / sqrtf(reducer.sum(squares) / static_cast<float>(p.hidden) + p.eps);
    if (threadIdx.x == 0) {
      p.rstd[row] = rstd;
      if (p.layer) p.mean[row] = mean;
    }
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      const float beta = p.layer ? load_float(p.beta + c) : 0.0f;
      const float gain = norm_gain(p.zero_centered, load_float(p.gamma + c));
      const float y =
          round_to<T>(norm_element(p.layer, load_float(input + start + c), mean, rstd, gain, beta));
      if (p.y != nullptr) store_float(p.y + start + c, y);
      if (p.fp8.wanted) sums.add(p.fp8, y, scale, start + c);
    }
  }
  sums.finish(p.fp8, scale, p.rows * p.hidden);
}

template <class T>
void launch_elements(const Context& context, const NormForward& a) {
  const NormForwardParams<T> p = norm_forward_params<T>(a);
  const int threads = static_cast<int>(std::min<int64_t>(1024, ceil_div(p.hidden, 32) * int64_t{32}));
  const int64_t resident = int64_t{sm_count(context)} * (2048 / threads);
  const auto blocks = static_cast<unsigned>(std::max<int64_t>(1, std::min(resident, p.rows)));
  norm_forward_elements<T><<<blocks, threads, 0, cuda_stream(context)>>>(p);
  TE_CUDA_CHECK_LAUNCH();
  if (a.y_fp8.columnwise) norm_columnwise(context, a);
}

}  // namespace

void norm_forward(const Context& context, const NormForward& args) {
  NormForward first = args;
  first.y_fp8 = first_quantization(args.y_fp8);
  if (!norm_forward_rows(context, first))
    visit_high_precision(args.x.dtype, [&](auto zero) {
      launch_elements<typename DeviceType<decltype(zero)>::type>(context, first);
    });
  if (args.y_fp8.requantize.state != nullptr) norm_requantize(context, args);
}

}  // namespace te::kernels::cuda
