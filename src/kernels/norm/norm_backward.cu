// RMSNorm and LayerNorm backward. A block owns a row at a time and a thread the same columns of every row, so
// one pass over dy and x gives dx and, in registers, the block's sums for dgamma and dbeta. The number of
// blocks and their rows depend on the shape alone; a second kernel adds the blocks' sums in their order, so
// the gradients have the same bits in every run.
#include <algorithm>

#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_device.cuh"

namespace te::kernels::cuda {

namespace {

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

/// No pointer is promised to be the only one to its memory: dx may be dy or dresidual. A thread reads its
/// elements of a row before it writes them.
template <class T, int kVectors>
__global__ void __launch_bounds__(1024) norm_backward_rows(BackwardParams<T> p) {
  constexpr int N = kVectorWidth<T>;
  // With two vectors a thread the registers are needed for the sums.
  constexpr bool kEarlyResidual = kVectors == 1;
  __shared__ RowReducer<false>::Shared shared;
  RowReducer<false> reducer(shared);
  const int vectors = static_cast<int>(p.hidden / N);
  float dgamma[kVectors][N] = {}, dbeta[kVectors][N] = {};
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t start = row * p.hidden;
    const float rstd = p.rstd[row], mean = p.layer ? p.mean[row] : 0.0f;
    Vector<T, N> x[kVectors], dy[kVectors], residual[kVectors];
    float2 sums = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (vector >= vectors) continue;
      const int64_t column = int64_t{vector} * N;
      x[k] = load_vector<T, N>(p.x + start + column);
      dy[k] = load_vector<T, N>(p.dy + start + column);
      if (kEarlyResidual && p.dresidual != nullptr)
        residual[k] = load_vector<T, N>(p.dresidual + start + column);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (vector >= vectors) continue;
      const Vector<T, N> gamma = load_vector<T, N>(p.gamma + int64_t{vector} * N);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x_hat = (load_float(&x[k].v[i]) - mean) * rstd, gradient = load_float(&dy[k].v[i]);
        const float g = __fmul_rn(gradient, load_float(&gamma.v[i]));
        dgamma[k][i] += gradient * x_hat;
        dbeta[k][i] += gradient;
        sums.x += g;
        sums.y += g * x_hat;
      }
    }
    const float2 means = row_means(p, reducer.sum(sums));
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (vector >= vectors) continue;
      const int64_t column = int64_t{vector} * N;
      const Vector<T, N> gamma = load_vector<T, N>(p.gamma + column);
      if (!kEarlyResidual && p.dresidual != nullptr)
        residual[k] = load_vector<T, N>(p.dresidual + start + column);
      Vector<T, N> dx;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x_hat = (load_float(&x[k].v[i]) - mean) * rstd;
        float value =
            dx_element(load_float(&dy[k].v[i]), load_float(&gamma.v[i]), x_hat, rstd, means.x, means.y);
        if (p.dresidual != nullptr) value += load_float(&residual[k].v[i]);
        store_float(&dx.v[i], value);
      }
      store_vector<T, N>(p.dx + start + column, dx);
    }
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int vector = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (vector >= vectors) continue;
    const int64_t offset = blockIdx.x * p.hidden + int64_t{vector} * N;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      p.partial_gamma[offset + i] = dgamma[k][i];
      if (p.layer) p.partial_beta[offset + i] = dbeta[k][i];
    }
  }
}

/// Any width and alignment; the block's sums grow in memory, where each column has one thread.
template <class T>
__global__ void __launch_bounds__(1024) norm_backward_elements(BackwardParams<T> p) {
  __shared__ RowReducer<false>::Shared shared;
  RowReducer<false> reducer(shared);
  float* partial_gamma = p.partial_gamma + blockIdx.x * p.hidden;
  float* partial_beta = p.partial_beta + blockIdx.x * p.hidden;
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
    }
  }
}

/// gradient[column] += the blocks' sums of a column: 32 threads take every 32nd block in order, then their
/// sums are added in order. blockIdx.y: 0 = dgamma, 1 = dbeta.
template <class Grad>
__global__ void __launch_bounds__(1024) add_partials(const float* partial_gamma, const float* partial_beta,
                                                     Grad* dgamma, Grad* dbeta, int blocks, int64_t hidden) {
  __shared__ float sums[kWarpSize][kWarpSize + 1];
  const float* partial = blockIdx.y == 0 ? partial_gamma : partial_beta;
  Grad* gradient = blockIdx.y == 0 ? dgamma : dbeta;
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
void launch_backward(const Context& context, const NormBackward& a) {
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
  const int64_t most_blocks = norm_partial_blocks(p.hidden);
  p.partial_gamma = a.scratch.as<float>();
  p.partial_beta = p.partial_gamma + most_blocks * p.hidden;
  const int blocks = static_cast<int>(std::min(most_blocks, p.rows));
  const int64_t vectors = p.hidden / kVectorWidth<T>;
  const bool fast = p.hidden % kVectorWidth<T> == 0 && vectors <= 2048 &&
                    all_aligned(16, {p.dy, p.x, p.gamma, p.dresidual, p.dx});
  const cudaStream_t stream = cuda_stream(context);
  const auto whole_warps = [](int64_t work) {
    return static_cast<unsigned>(std::min<int64_t>(1024, ceil_div(work, kWarpSize) * int64_t{kWarpSize}));
  };
  if (!fast) {
    norm_backward_elements<T><<<blocks, whole_warps(p.hidden), 0, stream>>>(p);
  } else if (vectors <= 1024) {
    norm_backward_rows<T, 1><<<blocks, whole_warps(vectors), 0, stream>>>(p);
  } else {
    norm_backward_rows<T, 2><<<blocks, whole_warps(ceil_div(vectors, 2)), 0, stream>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
  const dim3 grid(ceil_div(p.hidden, kWarpSize), p.layer ? 2 : 1);
  visit_hp(a.dgamma.dtype, [&](auto zero) {
    using Grad = typename DeviceType<decltype(zero)>::type;
    add_partials<Grad><<<grid, dim3(kWarpSize, kWarpSize), 0, stream>>>(
        p.partial_gamma, p.partial_beta, a.dgamma.as<Grad>(), a.dbeta.as<Grad>(), blocks, p.hidden);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void norm_backward(const Context& context, const NormBackward& args) {
  visit_hp(args.x.dtype,
           [&](auto zero) { launch_backward<typename DeviceType<decltype(zero)>::type>(context, args); });
}

}  // namespace te::kernels::cuda
