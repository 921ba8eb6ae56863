// Backward pass of RMSNorm and LayerNorm. A block processes one or two rows at a time, and a thread the same columns of
// every row, so one pass over dy and x gives dx and the block's sums for dgamma, dbeta (in registers) and dbias (in
// shared memory, because no registers are left). The number of blocks and their rows depend only on the shape, and a
// second kernel adds the blocks' sums in order, so gradients are deterministic. norm_backward_fp8.cu, or a quantization
// after this kernel, writes dx in FP8.
#include <algorithm>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/norm/norm_backward_rows.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/quantize/requantize.h"

namespace te::kernels::cuda {

namespace {

constexpr int kMaxThreads = 1024;

/// kAhead: two rows per iteration, and the next iteration's loads are in flight during the current one. FP32, and rows
/// of more than 512 threads, have registers for only one row at a time. dx may be dy or dresidual, because a row is
/// written only after it was read. kAmax: also record the amax of dx.
template <class T, NormKind kKind, bool kAhead, bool kBias, bool kAmax>
__global__ void __launch_bounds__(kAhead ? kAheadThreads : kMaxThreads, 1)
    norm_backward_rows(const __grid_constant__ BackwardParams<T> p) {
  constexpr int kRows = kAhead ? 2 : 1;
  using Thread = BackwardThread<T, kKind, kRows, kBias>;
  if constexpr (kAmax) launch_dependent_grids();
  __shared__ typename BlockSums<Thread::kSums>::Shared shared;
  __shared__ uint32_t words[kAmax ? kWarpSize : 1];
  extern __shared__ float4 dx_sums[];
  Thread thread(p, shared, dx_sums);
  typename Thread::Rows rows, next;
  uint32_t largest = 0;
  const int64_t first = int64_t{blockIdx.x} * kRows, step = int64_t{gridDim.x} * kRows;
  if constexpr (kAhead) thread.load(first, next);
  for (int64_t row = first; row < p.rows; row += step) {
    if constexpr (kAhead) rows = next;
    thread.load(kAhead ? row + step : row, kAhead ? next : rows);
    thread.sum(rows);
    thread.write(row, rows, [&](int, const Vec8<T>& dx) {
      if constexpr (kAmax) dx.update_amax(largest);
    });
  }
  thread.write_sums();
  if constexpr (kAmax) block_update_amax(Vec8<T>::amax_bits(largest), p.fp8.amax, words);
}

/// Any width and alignment. The block's sums accumulate in global memory, where each column belongs to one thread.
template <class T>
__global__ void __launch_bounds__(1024) norm_backward_elements(BackwardParams<T> p) {
  __shared__ BlockReducer::Shared shared;
  BlockReducer reducer(shared);
  float* partial_gamma = p.partial_gamma + blockIdx.x * p.hidden;
  float* partial_beta = p.partial_beta + blockIdx.x * p.hidden;
  float* partial_bias = p.partial_bias + blockIdx.x * p.hidden;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const bool first = row == blockIdx.x;
    const int64_t start = row * p.hidden;
    const float rstd = p.rstd[row], mean = p.layer ? p.mean[row] : 0.0f;
    float2 sums = {0.0f, 0.0f};
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      const float x_hat = (load_float(p.x + start + c) - mean) * rstd, dy = load_float(p.dy + start + c);
      const float g = __fmul_rn(dy, norm_gain(p.zero_centered, load_float(p.gamma + c)));
      partial_gamma[c] = (first ? 0.0f : partial_gamma[c]) + dy * x_hat;
      if (p.layer) partial_beta[c] = (first ? 0.0f : partial_beta[c]) + dy;
      sums.x += g;
      sums.y += g * x_hat;
    }
    const float2 means = row_means(p, reducer.sum(sums));
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      const float x_hat = (load_float(p.x + start + c) - mean) * rstd;
      const float gain = norm_gain(p.zero_centered, load_float(p.gamma + c));
      float value = dx_element(load_float(p.dy + start + c), gain, x_hat, rstd, means.x, means.y);
      if (p.dresidual != nullptr) value += load_float(p.dresidual + start + c);
      store_float(p.dx + start + c, value);
      if (p.partial_bias != nullptr) partial_bias[c] = (first ? 0.0f : partial_bias[c]) + round_to<T>(value);
    }
  }
}

/// Up to three gradients with the blocks' column sums.
template <class Grad>
struct PartialSums {
  const float* partial[3];
  Grad* gradient[3];
  int count = 0;
  void add(const float* sums, const Tensor& to) {
    partial[count] = sums;
    gradient[count++] = to.as<Grad>();
  }
};

/// gradient[column] += the blocks' sums of a column: 32 threads each add every 32nd block in order, then their sums are
/// added in order. blockIdx.y: index of the gradient.
template <class Grad>
__global__ void __launch_bounds__(1024)
    add_partials(const __grid_constant__ PartialSums<Grad> all, int blocks, int64_t hidden) {
  __shared__ float sums[kWarpSize][kWarpSize + 1];
  const float* partial = all.partial[blockIdx.y];
  Grad* gradient = all.gradient[blockIdx.y];
  const int64_t column = int64_t{blockIdx.x} * kWarpSize + threadIdx.x;
  float sum = 0.0f;
  if (column < hidden)
    for (int block = threadIdx.y; block < blocks; block += kWarpSize) sum += partial[block * hidden + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= hidden) return;
  float total = 0.0f;
  for (int i = 0; i < kWarpSize; ++i) total += sums[i][threadIdx.x];
  store_float(gradient + column, load_float(gradient + column) + total);
}

template <class T>
using RowsKernel = void (*)(BackwardParams<T>);
template <class T, NormKind kKind, bool kAhead, bool kAmax>
RowsKernel<T> rows_kernel(bool bias) {
  return bias ? norm_backward_rows<T, kKind, kAhead, true, kAmax>
              : norm_backward_rows<T, kKind, kAhead, false, kAmax>;
}
template <class T, NormKind kKind>
RowsKernel<T> rows_kernel(bool ahead, bool bias, bool amax) {
  if constexpr (sizeof(T) == 2) {
    if (amax) return rows_kernel<T, kKind, true, true>(bias);
    if (ahead) return rows_kernel<T, kKind, true, false>(bias);
  }
  return rows_kernel<T, kKind, false, false>(bias);
}
template <class T>
RowsKernel<T> rows_kernel(const BackwardParams<T>& p, bool ahead, bool bias, bool amax) {
  if (p.layer) return rows_kernel<T, NormKind::layer>(ahead, bias, amax);
  return p.zero_centered ? rows_kernel<T, NormKind::rms_zero_centered>(ahead, bias, amax)
                         : rows_kernel<T, NormKind::rms>(ahead, bias, amax);
}

/// Result of launch_rows(): number of blocks, and whether the amax of dx has been recorded.
struct RowsLaunch {
  int blocks = 0;
  bool amax = false;
};

/// Computes dx and the blocks' sums. If an FP8 output requests only the amax, the kernel may record that as well.
template <class T>
RowsLaunch launch_rows(const Context& context, const BackwardParams<T>& p) {
  const int blocks = static_cast<int>(std::min(norm_partial_blocks(p.hidden), p.rows));
  const bool fast = p.hidden % 8 == 0 && p.hidden <= 8 * kMaxThreads &&
                    all_aligned(16, {p.dy, p.x, p.gamma, p.dresidual, p.dx, p.partial_bias});
  const cudaStream_t stream = cuda_stream(context);
  bool amax = false;
  const auto whole_warps = [](int64_t work) {
    return static_cast<unsigned>(std::min<int64_t>(1024, ceil_div(work, kWarpSize) * int64_t{kWarpSize}));
  };
  if (fast) {
    const unsigned threads = whole_warps(p.hidden / 8);
    const bool bias = p.partial_bias != nullptr, ahead = threads <= kAheadThreads;
    amax = sizeof(T) == 2 && ahead && p.fp8.wanted && !p.fp8.data;
    const auto kernel = rows_kernel<T>(p, ahead, bias, amax);
    kernel<<<blocks, threads, bias ? threads * DxSums::kBytes : 0, stream>>>(p);
  } else {
    norm_backward_elements<T><<<blocks, whole_warps(p.hidden), 0, stream>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
  return {blocks, amax};
}

template <class T>
void launch_backward(const Context& context, const NormBackward& a) {
  NormBackward first = a;  // dx is stored for a second launch
  first.dx_fp8 = first_quantization(a.dx_fp8);
  const BackwardParams<T> p = backward_params<T>(first);
  int blocks = a.dx_fp8 ? norm_backward_fp8(context, first) : 0;
  if (blocks == 0) {
    const RowsLaunch rows = launch_rows(context, p);
    blocks = rows.blocks;
    if (a.dx_fp8 && !rows.amax) quantize(context, {.x = a.dx, .out = first.dx_fp8});
  }
  requantize(context, a.dx, a.dx_fp8);
  if (!a.dgamma && !a.dbeta && !a.dbias) return;
  visit_grad(grad_dtype(a), [&](auto zero) {
    using Grad = typename DeviceType<decltype(zero)>::type;
    PartialSums<Grad> all;
    if (a.dgamma) all.add(p.partial_gamma, a.dgamma);
    if (p.layer && a.dbeta) all.add(p.partial_beta, a.dbeta);
    if (a.dbias) all.add(p.partial_bias, a.dbias);
    const dim3 grid(ceil_div(p.hidden, kWarpSize), static_cast<unsigned>(all.count));
    add_partials<Grad><<<grid, dim3(kWarpSize, kWarpSize), 0, cuda_stream(context)>>>(all, blocks, p.hidden);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void norm_backward(const Context& context, const NormBackward& args) {
  visit_high_precision(args.x.dtype, [&](auto zero) {
    launch_backward<typename DeviceType<decltype(zero)>::type>(context, args);
  });
}

}  // namespace te::kernels::cuda
