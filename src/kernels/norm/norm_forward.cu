// RMSNorm and LayerNorm forward. A row stays in registers, so x is read once: a warp per row when the row is
// short, a block per row else; the FP8 output, amax and counters come from the same registers. Blocks loop
// over rows, so that amax and counters reach memory once per block. Rows that are unaligned or longer than
// the registers take a path of single elements that reads the row again from the cache.
#include <algorithm>

#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_device.cuh"

namespace te::kernels::cuda {

namespace {

constexpr int kWarpsPerBlock = 4;  ///< when a warp has a row
/// Threads of a block that has a row of at most 16384 elements in 4 vectors a thread.
template <class T>
constexpr int kMaxThreads = 16384 / (4 * kVectorWidth<T>);

template <class T>
struct ForwardParams {
  const T* x;
  const T* delta;
  T* sum;
  const T* gamma;
  const T* beta;
  float* mean;
  float* rstd;
  T* y;
  NormFp8 fp8;
  int64_t rows;
  int64_t hidden;
  float eps;
  bool layer;
};

__device__ __forceinline__ float rstd_of(float squares, int64_t hidden, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(hidden) + eps);
}

/// x (plus delta, stored to sum) of one vector as floats.
template <class T, int N>
__device__ __forceinline__ void load_input(const ForwardParams<T>& p, int64_t offset, float (&value)[N]) {
  const Vector<T, N> x = load_vector<T, N>(p.x + offset);
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = load_float(&x.v[i]);
  if (p.delta == nullptr) return;
  const Vector<T, N> delta = load_vector<T, N>(p.delta + offset);
  Vector<T, N> sum;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    value[i] = round_to<T>(value[i] + load_float(&delta.v[i]));
    store_float(&sum.v[i], value[i]);
  }
  store_vector<T, N>(p.sum + offset, sum);
}

/// Normalizes one vector and writes it in the asked forms.
template <class T, int N>
__device__ __forceinline__ void store_output(const ForwardParams<T>& p, int64_t offset, int64_t column,
                                             const float (&x)[N], float mean, float rstd, float scale,
                                             NormFp8Sums& sums) {
  const Vector<T, N> gamma = load_vector<T, N>(p.gamma + column);
  Vector<T, N> beta = {}, out;
  if (p.layer) beta = load_vector<T, N>(p.beta + column);
  float y[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    y[i] =
        round_to<T>(norm_element(p.layer, x[i], mean, rstd, load_float(&gamma.v[i]), load_float(&beta.v[i])));
    store_float(&out.v[i], y[i]);
  }
  if (p.y != nullptr) store_vector<T, N>(p.y + offset, out);
  if (p.fp8.wanted) sums.add_row_piece<N>(p.fp8, y, scale, offset);
}

template <class T, int kVectors, bool kWarpPerRow>
__global__ void __launch_bounds__(kWarpPerRow ? kWarpsPerBlock* kWarpSize : kMaxThreads<T>)
    norm_forward_rows(ForwardParams<T> p) {
  constexpr int N = kVectorWidth<T>;
  __shared__ typename RowReducer<kWarpPerRow>::Shared shared;
  RowReducer<kWarpPerRow> reducer(shared);
  NormFp8Sums sums;
  const float scale = p.fp8.scale != nullptr ? *p.fp8.scale : 1.0f;
  const int lanes = kWarpPerRow ? kWarpSize : static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % lanes, vectors = static_cast<int>(p.hidden / N);
  const int64_t rows_at_once = blockDim.x / lanes;
  const int64_t first_row = blockIdx.x * rows_at_once + threadIdx.x / lanes;
  for (int64_t row = first_row; row < p.rows; row += gridDim.x * rows_at_once) {
    const int64_t start = row * p.hidden;
    float x[kVectors][N];
    float total = 0.0f, squares = 0.0f, mean = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = lane + k * lanes;
      if (vector >= vectors) continue;
      load_input<T, N>(p, start + int64_t{vector} * N, x[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) total += x[k][i];
    }
    if (p.layer) mean = reducer.sum(total) / static_cast<float>(p.hidden);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (lane + k * lanes >= vectors) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) squares += (x[k][i] - mean) * (x[k][i] - mean);
    }
    const float rstd = rstd_of(reducer.sum(squares), p.hidden, p.eps);
    if (lane == 0) {
      p.rstd[row] = rstd;
      if (p.layer) p.mean[row] = mean;
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = lane + k * lanes;
      if (vector >= vectors) continue;
      const int64_t column = int64_t{vector} * N;
      store_output<T, N>(p, start + column, column, x[k], mean, rstd, scale, sums);
    }
  }
  sums.finish(p.fp8, scale, p.rows * p.hidden);
}

/// Any width and alignment. A thread reads back only elements that it wrote itself.
template <class T>
__global__ void __launch_bounds__(1024) norm_forward_elements(ForwardParams<T> p) {
  __shared__ RowReducer<false>::Shared shared;
  RowReducer<false> reducer(shared);
  NormFp8Sums sums;
  const float scale = p.fp8.scale != nullptr ? *p.fp8.scale : 1.0f;
  const T* input = p.delta != nullptr ? p.sum : p.x;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t start = row * p.hidden;
    float total = 0.0f, squares = 0.0f, mean = 0.0f;
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      float x[1];
      load_input<T, 1>(p, start + c, x);
      total += x[0];
    }
    if (p.layer) mean = reducer.sum(total) / static_cast<float>(p.hidden);
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      const float x = load_float(input + start + c);
      squares += (x - mean) * (x - mean);
    }
    const float rstd = rstd_of(reducer.sum(squares), p.hidden, p.eps);
    if (threadIdx.x == 0) {
      p.rstd[row] = rstd;
      if (p.layer) p.mean[row] = mean;
    }
    for (int64_t c = threadIdx.x; c < p.hidden; c += blockDim.x) {
      const float x[1] = {load_float(input + start + c)};
      store_output<T, 1>(p, start + c, c, x, mean, rstd, scale, sums);
    }
  }
  sums.finish(p.fp8, scale, p.rows * p.hidden);
}

template <class T>
class ForwardLaunch {
 public:
  ForwardLaunch(const Context& context, const ForwardParams<T>& params)
      : params_(params), stream_(cuda_stream(context)), multiprocessors_(multiprocessor_count(context)) {}

  void rows() const {
    const int64_t vectors = params_.hidden / kVectorWidth<T>;
    if (vectors <= kWarpSize) return warp_per_row<1>();
    if (vectors <= 2 * kWarpSize) return warp_per_row<2>();
    if (vectors <= 4 * kWarpSize) return warp_per_row<4>();
    if (vectors <= 256) return block_per_row<1>(vectors);
    if (vectors <= 512) return block_per_row<2>(vectors);
    return block_per_row<4>(vectors);
  }
  void elements() const {
    const int threads = static_cast<int>(std::min<int64_t>(1024, ceil_div(params_.hidden, 32) * int64_t{32}));
    norm_forward_elements<T><<<grid(threads, 1), threads, 0, stream_>>>(params_);
    TE_CUDA_CHECK_LAUNCH();
  }

 private:
  /// As many blocks as run at once, or fewer when there are fewer rows.
  unsigned grid(int threads, int rows_at_once) const {
    const int64_t resident = int64_t{multiprocessors_} * std::min(32, 2048 / threads);
    return static_cast<unsigned>(
        std::max<int64_t>(1, std::min<int64_t>(resident, ceil_div(params_.rows, rows_at_once))));
  }
  template <int kVectors>
  void warp_per_row() const {
    const int threads = kWarpsPerBlock * kWarpSize;
    norm_forward_rows<T, kVectors, true><<<grid(threads, kWarpsPerBlock), threads, 0, stream_>>>(params_);
    TE_CUDA_CHECK_LAUNCH();
  }
  template <int kVectors>
  void block_per_row(int64_t vectors) const {
    const int threads = static_cast<int>(ceil_div(vectors, kVectors * kWarpSize)) * kWarpSize;
    norm_forward_rows<T, kVectors, false><<<grid(threads, 1), threads, 0, stream_>>>(params_);
    TE_CUDA_CHECK_LAUNCH();
  }

  const ForwardParams<T>& params_;
  cudaStream_t stream_;
  int multiprocessors_;
};

template <class T>
void launch_forward(const Context& context, const NormForward& a) {
  ForwardParams<T> p;
  p.x = a.x.as<T>();
  p.delta = a.delta.as<T>();
  p.sum = a.sum.as<T>();
  p.gamma = a.gamma.as<T>();
  p.beta = a.beta.as<T>();
  p.mean = a.mean.as<float>();
  p.rstd = a.rstd.as<float>();
  p.y = a.y.as<T>();
  p.fp8 = norm_fp8(a.y_fp8);
  p.rows = a.x.rows();
  p.hidden = a.x.cols();
  p.eps = a.eps;
  p.layer = a.kind == NormKind::layer;
  const bool vectors = p.hidden % kVectorWidth<T> == 0 && p.hidden <= 16384 &&
                       all_aligned(16, {p.x, p.delta, p.sum, p.gamma, p.beta, p.y, p.fp8.rowwise});
  const ForwardLaunch<T> launch(context, p);
  vectors ? launch.rows() : launch.elements();
}

}  // namespace

void norm_forward(const Context& context, const NormForward& args) {
  visit_hp(args.x.dtype,
           [&](auto zero) { launch_forward<typename DeviceType<decltype(zero)>::type>(context, args); });
  if (args.y_fp8.columnwise) norm_columnwise(context, args);
}

}  // namespace te::kernels::cuda
