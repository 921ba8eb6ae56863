// RMSNorm and LayerNorm forward. A row stays in registers, so x is read once: a warp per row when the row is
// short, a block per row else; the FP8 output, amax and counters come from the same registers. Blocks loop over rows,
// and ask for the next row before they reduce this one: memory is never idle while a row is summed up. Amax and counters
// reach memory once per block. Rows that are unaligned or longer than the registers take a path of single elements that
// reads the row again from the cache.
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

/// x (plus delta, stored to sum) of one element.
template <class T>
__device__ __forceinline__ float load_input(const ForwardParams<T>& p, int64_t offset) {
  const float x = load_float(p.x + offset);
  if (p.delta == nullptr) return x;
  const float sum = round_to<T>(x + load_float(p.delta + offset));
  store_float(p.sum + offset, sum);
  return sum;
}

/// A thread's vectors of one row, packed as they lie in memory.
template <class T, int kVectors>
struct RowPart {
  Vector<T, kVectorWidth<T>> x[kVectors], delta[kVectors];

  /// Asks for the row that starts at element `start`; its values are there when they are used.
  __device__ __forceinline__ void load(const ForwardParams<T>& p, int64_t start, int lane, int lanes,
                                       int vectors) {
    constexpr int N = kVectorWidth<T>;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = lane + k * lanes;
      if (vector >= vectors) continue;
      x[k] = load_vector<T, N>(p.x + start + vector * N);
      if (p.delta != nullptr) delta[k] = load_vector<T, N>(p.delta + start + vector * N);
    }
  }
  /// x += delta, rounded, and stored to sum.
  __device__ __forceinline__ void add_delta(const ForwardParams<T>& p, int64_t start, int lane, int lanes,
                                            int vectors) {
    constexpr int N = kVectorWidth<T>;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = lane + k * lanes;
      if (vector >= vectors) continue;
#pragma unroll
      for (int i = 0; i < N; ++i)
        store_float(&x[k].v[i], load_float(&x[k].v[i]) + load_float(&delta[k].v[i]));
      store_vector<T, N>(p.sum + start + vector * N, x[k]);
    }
  }
};

/// Normalizes N values and writes them in the asked forms.
template <class T, int N>
__device__ __forceinline__ void store_output(const ForwardParams<T>& p, int64_t offset, const Vector<T, N>& x,
                                             const Vector<T, N>& gamma, const Vector<T, N>& beta, float mean,
                                             float rstd, float scale, NormFp8Sums& sums) {
  Vector<T, N> out;
  float y[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    y[i] = round_to<T>(norm_element(p.layer, load_float(&x.v[i]), mean, rstd, load_float(&gamma.v[i]),
                                    load_float(&beta.v[i])));
    store_float(&out.v[i], y[i]);
  }
  if (p.y != nullptr) store_vector<T, N>(p.y + offset, out);
  if (p.fp8.wanted) sums.add_row_piece<N>(p.fp8, y, scale, offset);
}

/// Blocks to keep on a multiprocessor when a block of 256 threads has a row: enough loads in flight, and registers for
/// the row, the next one and the gains.
constexpr int kRowBlocks = 4;

template <class T, int kVectors, bool kWarpPerRow, bool kLayer>
__global__ void __launch_bounds__(kWarpPerRow ? kWarpsPerBlock* kWarpSize : kMaxThreads<T>,
                                  kWarpPerRow || kVectors > 2 ? 1 : kRowBlocks * 256 / kMaxThreads<T>)
    norm_forward_rows(ForwardParams<T> p) {
  constexpr int N = kVectorWidth<T>;
  __shared__ typename RowReducer<kWarpPerRow>::Shared shared;
  RowReducer<kWarpPerRow> reducer(shared);
  NormFp8Sums sums;
  p.layer = kLayer;
  const float scale = p.fp8.scale != nullptr ? *p.fp8.scale : 1.0f;
  const int lanes = kWarpPerRow ? kWarpSize : static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % lanes, vectors = static_cast<int>(p.hidden / N);
  const int64_t rows_at_once = blockDim.x / lanes, stride = gridDim.x * rows_at_once;
  int64_t row = blockIdx.x * rows_at_once + threadIdx.x / lanes;
  // A thread has the same columns of every row.
  Vector<T, N> gamma[kVectors], beta[kLayer ? kVectors : 1] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int vector = lane + k * lanes;
    if (vector >= vectors) continue;
    gamma[k] = load_vector<T, N>(p.gamma + vector * N);
    if constexpr (kLayer) beta[k] = load_vector<T, N>(p.beta + vector * N);
  }
  RowPart<T, kVectors> next;
  if (row < p.rows) next.load(p, row * p.hidden, lane, lanes, vectors);
  for (; row < p.rows; row += stride) {
    const int64_t start = row * p.hidden;
    RowPart<T, kVectors> now = next;
    if (p.delta != nullptr) now.add_delta(p, start, lane, lanes, vectors);
    if (row + stride < p.rows) next.load(p, (row + stride) * p.hidden, lane, lanes, vectors);
    float mean = 0.0f, squares = 0.0f;
    if constexpr (kLayer) {
      float total = 0.0f;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        if (lane + k * lanes >= vectors) continue;
#pragma unroll
        for (int i = 0; i < N; ++i) total += load_float(&now.x[k].v[i]);
      }
      mean = reducer.sum(total) / static_cast<float>(p.hidden);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (lane + k * lanes >= vectors) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = load_float(&now.x[k].v[i]) - mean;
        squares += x * x;
      }
    }
    const float rstd = rstd_of(reducer.sum(squares), p.hidden, p.eps);
    if (lane == 0) {
      p.rstd[row] = rstd;
      if constexpr (kLayer) p.mean[row] = mean;
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int vector = lane + k * lanes;
      if (vector >= vectors) continue;
      store_output<T, N>(p, start + vector * N, now.x[k], gamma[k], beta[kLayer ? k : 0], mean, rstd, scale,
                         sums);
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
      total += load_input(p, start + c);
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
      const Vector<T, 1> gamma = load_vector<T, 1>(p.gamma + c);
      Vector<T, 1> beta = {};
      if (p.layer) beta = load_vector<T, 1>(p.beta + c);
      store_output<T, 1>(p, start + c, load_vector<T, 1>(input + start + c), gamma, beta, mean, rstd, scale,
                         sums);
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
    if (vectors <= 3 * kWarpSize) return warp_per_row<3>();
    if (vectors <= 4 * kWarpSize) return warp_per_row<4>();
    if (vectors <= 256) return block_per_row<1>(vectors);
    if (vectors <= 512) return block_per_row<2>(vectors);
    return block_per_row<4>(vectors);
  }
  void elements() const {
    const int threads = static_cast<int>(std::min<int64_t>(1024, ceil_div(params_.hidden, 32) * int64_t{32}));
    launch(norm_forward_elements<T>, threads, 1);
  }

 private:
  /// As many blocks as run at once, or fewer when there are fewer rows.
  template <class Kernel>
  void launch(Kernel kernel, int threads, int rows_at_once) const {
    int resident = 0;
    TE_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0));
    const int64_t blocks =
        std::min<int64_t>(int64_t{multiprocessors_} * resident, ceil_div(params_.rows, rows_at_once));
    kernel<<<static_cast<unsigned>(std::max<int64_t>(1, blocks)), threads, 0, stream_>>>(params_);
    TE_CUDA_CHECK_LAUNCH();
  }
  template <int kVectors>
  void warp_per_row() const {
    const auto kernel = params_.layer ? norm_forward_rows<T, kVectors, true, true>
                                      : norm_forward_rows<T, kVectors, true, false>;
    launch(kernel, kWarpsPerBlock * kWarpSize, kWarpsPerBlock);
  }
  template <int kVectors>
  void block_per_row(int64_t vectors) const {
    const auto kernel = params_.layer ? norm_forward_rows<T, kVectors, false, true>
                                      : norm_forward_rows<T, kVectors, false, false>;
    launch(kernel, static_cast<int>(ceil_div(vectors, kVectors * kWarpSize)) * kWarpSize, 1);
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
