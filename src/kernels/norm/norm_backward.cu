// RMSNorm and LayerNorm backward. A block takes a row or two at a time and a thread the same columns of every row, so
// one pass over dy and x gives dx and the block's sums for dgamma, dbeta (in registers) and dbias (in shared memory,
// because no registers are left). The number of blocks and their rows depend on the shape alone; a second kernel adds
// the blocks' sums in their order, so the gradients have the same bits in every run.
#include <algorithm>

#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_device.cuh"
#include "kernels/norm/norm_rows.cuh"

namespace te::kernels::cuda {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kAheadThreads = 512;

template <class T>
struct BackwardParams {
  const T* dy;
  const T* x;
  const T* gamma;
  const float* mean;
  const float* rstd;
  const T* dresidual;
  T* dx;
  float* partial_gamma;  ///< [blocks, hidden]
  float* partial_beta;
  float* partial_bias;  ///< null without dbias
  int64_t rows;
  int64_t hidden;
  bool layer;
};

/// dx of one element before the residual's gradient, from means over the row. g is rounded on its own, as in
/// the sums: where g and its mean cancel (one column), they do so exactly.
__device__ __forceinline__ float dx_element(float dy, float gamma, float x_hat, float rstd, float mean_g,
                                            float mean_gx) {
  return rstd * (__fmul_rn(dy, gamma) - mean_g - x_hat * mean_gx);
}

/// The means over the row of g = dy * gamma (zero for RMSNorm) and of g * x_hat, from their sums.
template <class T>
__device__ __forceinline__ float2 row_means(const BackwardParams<T>& p, float2 sums) {
  const float count = static_cast<float>(p.hidden);
  return {p.layer ? sums.x / count : 0.0f, sums.y / count};
}

/// One thread's sums of eight columns of dx, in the block's shared memory: the first four of all threads, then the others,
/// so that no bank is met twice.
class DxSums {
 public:
  static constexpr size_t kBytes = 2 * sizeof(float4);  ///< a thread
  __device__ explicit DxSums(float4* block) : own_(block + threadIdx.x) {}
  __device__ __forceinline__ void clear() const { own_[0] = own_[blockDim.x] = {}; }
  template <class T>
  __device__ __forceinline__ void add(const Octet<T>& dx) const {
    add_four(own_[0], dx, 0);
    add_four(own_[blockDim.x], dx, 4);
  }
  __device__ __forceinline__ void store(float* to) const {
    reinterpret_cast<float4*>(to)[0] = own_[0];
    reinterpret_cast<float4*>(to)[1] = own_[blockDim.x];
  }

 private:
  template <class T>
  static __device__ __forceinline__ void add_four(float4& sums, const Octet<T>& dx, int j) {
    const float4 old = sums;
    sums = {old.x + dx.get(j), old.y + dx.get(j + 1), old.z + dx.get(j + 2), old.w + dx.get(j + 3)};
  }
  float4* const own_;
};

/// One thread's part: eight columns of all rows of its block (norm_rows.cuh), and these columns' sums.
template <class T, bool kLayer, int kRows, bool kBias>
class BackwardThread {
 public:
  static constexpr int kSums = kLayer ? 2 * kRows : kRows;
  struct Rows {
    Octet<T> x[kRows], dy[kRows], residual[kRows];
    float rstd[kRows], mean[kRows];
  };

  __device__ __forceinline__ BackwardThread(const BackwardParams<T>& params,
                                            typename BlockSums<kSums>::Shared& shared, float4* block_dx_sums)
      : p(params),
        block(shared),
        dx_sums(block_dx_sums),
        column(int64_t{threadIdx.x} * 8),
        owns(column < params.hidden) {
    gamma = load_octet<true>(p.gamma + column, owns ? 8 : 0);
    if constexpr (kBias) dx_sums.clear();
  }

  __device__ __forceinline__ void load(int64_t row, Rows& to) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool exists = row + r < p.rows;
      const int64_t offset = (row + r) * p.hidden + column, valid = exists && owns ? 8 : 0;
      to.rstd[r] = exists ? p.rstd[row + r] : 0.0f;
      to.mean[r] = kLayer && exists ? p.mean[row + r] : 0.0f;
      to.x[r] = load_octet<true>(p.x + offset, valid);
      to.dy[r] = load_octet<true>(p.dy + offset, valid);
      to.residual[r] = load_octet<true>(p.dresidual + offset, p.dresidual != nullptr ? valid : 0);
    }
  }

  /// Adds to the columns' sums, and finds the sums over each row that its dx needs.
  __device__ __forceinline__ void sum(Rows& rows) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float g_sum = 0.0f, gx_sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float x_hat = (rows.x[r].get(j) - rows.mean[r]) * rows.rstd[r], gradient = rows.dy[r].get(j);
        const float g = __fmul_rn(gradient, gamma.get(j));
        dgamma[j] += gradient * x_hat;
        if constexpr (kLayer) dbeta[j] += gradient;
        g_sum += g;
        gx_sum += g * x_hat;
      }
      sums[r] = gx_sum;
      if constexpr (kLayer) sums[kRows + r] = g_sum;
      rows.x[r].forget_unpacked();
      rows.dy[r].forget_unpacked();
    }
    gamma.forget_unpacked();
    block.sum(sums);
  }

  __device__ __forceinline__ void write(int64_t row, Rows& rows) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float2 means = row_means(p, float2{kLayer ? sums[kSums - kRows + r] : 0.0f, sums[r]});
      Octet<T> dx;
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float value[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x_hat = (rows.x[r].get(j + i) - rows.mean[r]) * rows.rstd[r];
          value[i] =
              dx_element(rows.dy[r].get(j + i), gamma.get(j + i), x_hat, rows.rstd[r], means.x, means.y) +
              rows.residual[r].get(j + i);
        }
        dx.set_pair(j, value[0], value[1]);
      }
      if constexpr (kBias) dx_sums.add(dx);  // zeros where no row is
      if (owns && row + r < p.rows) dx.store_aligned(p.dx + (row + r) * p.hidden + column);
    }
    gamma.forget_unpacked();
  }

  __device__ __forceinline__ void write_sums() const {
    if (!owns) return;
    const int64_t offset = blockIdx.x * p.hidden + column;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      p.partial_gamma[offset + j] = dgamma[j];
      if constexpr (kLayer) p.partial_beta[offset + j] = dbeta[j];
    }
    if constexpr (kBias) dx_sums.store(p.partial_bias + offset);
  }

 private:
  const BackwardParams<T>& p;
  BlockSums<kSums> block;
  const DxSums dx_sums;
  const int64_t column;
  const bool owns;
  Octet<T> gamma;
  float dgamma[8] = {}, dbeta[kLayer ? 8 : 1] = {}, sums[kSums] = {};
};

/// kAhead: two rows a turn, and the loads of the next turn are under way during this one. FP32, and rows of more than
/// 512 threads, leave registers for a row at a time. dx may be dy or dresidual: a row is written only after it was read.
template <class T, bool kLayer, bool kAhead, bool kBias>
__global__ void __launch_bounds__(kAhead ? kAheadThreads : kMaxThreads, 1)
    norm_backward_rows(const __grid_constant__ BackwardParams<T> p) {
  constexpr int kRows = kAhead ? 2 : 1;
  using Thread = BackwardThread<T, kLayer, kRows, kBias>;
  __shared__ typename BlockSums<Thread::kSums>::Shared shared;
  extern __shared__ float4 dx_sums[];
  Thread thread(p, shared, dx_sums);
  typename Thread::Rows rows, next;
  const int64_t first = int64_t{blockIdx.x} * kRows, step = int64_t{gridDim.x} * kRows;
  if constexpr (kAhead) thread.load(first, next);
  for (int64_t row = first; row < p.rows; row += step) {
    if constexpr (kAhead) rows = next;
    thread.load(kAhead ? row + step : row, kAhead ? next : rows);
    thread.sum(rows);
    thread.write(row, rows);
  }
  thread.write_sums();
}

/// Any width and alignment; the block's sums grow in memory, where each column has one thread.
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
      const float g = __fmul_rn(dy, load_float(p.gamma + c));
      partial_gamma[c] = (first ? 0.0f : partial_gamma[c]) + dy * x_hat;
      if (p.layer) partial_beta[c] = (first ? 0.0f : partial_beta[c]) + dy;
      sums.x += g;
      sums.y += g * x_hat;
    }
    const float2 means = row_means(p, reducer.sum(sums));
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      const float x_hat = (load_float(p.x + start + c) - mean) * rstd;
      float value =
          dx_element(load_float(p.dy + start + c), load_float(p.gamma + c), x_hat, rstd, means.x, means.y);
      if (p.dresidual != nullptr) value += load_float(p.dresidual + start + c);
      store_float(p.dx + start + c, value);
      if (p.partial_bias != nullptr) partial_bias[c] = (first ? 0.0f : partial_bias[c]) + round_to<T>(value);
    }
  }
}

/// Up to three gradients with the blocks' sums of their columns.
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

/// gradient[column] += the blocks' sums of a column: 32 threads take every 32nd block in order, then their
/// sums are added in order. blockIdx.y: which gradient.
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
BackwardParams<T> backward_params(const NormBackward& a) {
  BackwardParams<T> p;
  p.dy = a.dy.as<T>();
  p.x = a.x.as<T>();
  p.gamma = a.gamma.as<T>();
  p.mean = a.mean.as<float>();
  p.rstd = a.rstd.as<float>();
  p.dresidual = a.dresidual.as<T>();
  p.dx = a.dx.as<T>();
  p.rows = a.x.rows();
  p.hidden = a.x.cols();
  p.layer = a.kind == NormKind::layer;
  const int64_t sums = norm_partial_blocks(p.hidden) * p.hidden;
  p.partial_gamma = a.scratch.as<float>();
  p.partial_beta = p.partial_gamma + sums;
  p.partial_bias = a.dbias ? p.partial_beta + sums : nullptr;
  return p;
}

template <class T>
using RowsKernel = void (*)(BackwardParams<T>);
template <class T, bool kLayer, bool kAhead>
RowsKernel<T> rows_kernel(bool bias) {
  return bias ? norm_backward_rows<T, kLayer, kAhead, true> : norm_backward_rows<T, kLayer, kAhead, false>;
}
template <class T>
RowsKernel<T> rows_kernel(bool layer, bool ahead, bool bias) {
  if constexpr (sizeof(T) == 2)
    if (ahead) return layer ? rows_kernel<T, true, true>(bias) : rows_kernel<T, false, true>(bias);
  return layer ? rows_kernel<T, true, false>(bias) : rows_kernel<T, false, false>(bias);
}

template <class T>
void launch_backward(const Context& context, const NormBackward& a) {
  const BackwardParams<T> p = backward_params<T>(a);
  const int blocks = static_cast<int>(std::min(norm_partial_blocks(p.hidden), p.rows));
  const bool fast = p.hidden % 8 == 0 && p.hidden <= 8 * kMaxThreads &&
                    all_aligned(16, {p.dy, p.x, p.gamma, p.dresidual, p.dx, p.partial_bias});
  const cudaStream_t stream = cuda_stream(context);
  const auto whole_warps = [](int64_t work) {
    return static_cast<unsigned>(std::min<int64_t>(1024, ceil_div(work, kWarpSize) * int64_t{kWarpSize}));
  };
  if (fast) {
    const unsigned threads = whole_warps(p.hidden / 8);
    const bool bias = p.partial_bias != nullptr;
    const auto kernel = rows_kernel<T>(p.layer, threads <= kAheadThreads, bias);
    kernel<<<blocks, threads, bias ? threads * DxSums::kBytes : 0, stream>>>(p);
  } else {
    norm_backward_elements<T><<<blocks, whole_warps(p.hidden), 0, stream>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
  visit_hp(a.dgamma.dtype, [&](auto zero) {
    using Grad = typename DeviceType<decltype(zero)>::type;
    PartialSums<Grad> all;
    all.add(p.partial_gamma, a.dgamma);
    if (p.layer) all.add(p.partial_beta, a.dbeta);
    if (a.dbias) all.add(p.partial_bias, a.dbias);
    const dim3 grid(ceil_div(p.hidden, kWarpSize), static_cast<unsigned>(all.count));
    add_partials<Grad><<<grid, dim3(kWarpSize, kWarpSize), 0, stream>>>(all, blocks, p.hidden);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void norm_backward(const Context& context, const NormBackward& args) {
  visit_hp(args.x.dtype,
           [&](auto zero) { launch_backward<typename DeviceType<decltype(zero)>::type>(context, args); });
}

}  // namespace te::kernels::cuda
