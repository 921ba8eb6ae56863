// RMSNorm of queries and keys: one warp per segment of a row. Gain gradients are summed over the tokens in kQkNormParts
// parts, which are then added in a fixed order.
#include <algorithm>
#include <type_traits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/qk_norm/qk_norm_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kVector = 4;  // elements: a warp processes a head of 128 at a time

template <class T>
struct Params {
  T* packed;  ///< qkv or dqkv
  T* raw;     ///< null: not stored
  float* rstd;
  const T* q_gain;
  const T* k_gain;
  int64_t columns, kept;
  int64_t work;  ///< rows * segments
  int segments, q_segments, q_width, k_width;
  float eps;
  float*
      sums;  ///< null: a warp sums its segment; otherwise summed over all ranks, or output of the sums kernels
  int ranks;
  float shift;  ///< added to the gains

  /// Columns of a norm, including those of other ranks.
  __device__ float norm_width(int width) const {
    return static_cast<float>(width) * static_cast<float>(ranks);
  }

  /// A segment of a row: first column, width and gain.
  struct Segment {
    int64_t row;
    int begin, width;
    const T* gain;
  };
  __device__ Segment segment(int64_t item) const {
    const int64_t row = item / segments;
    const int p = static_cast<int>(item - row * segments);
    if (p < q_segments) return {row, p * q_width, q_width, q_gain};
    return {row, q_segments * q_width + (p - q_segments) * k_width, k_width, k_gain};
  }
};

__device__ __forceinline__ int64_t item_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
}

/// Sum of squares of a lane's columns; also copies them to raw, if it is given.
template <class T, int N>
__device__ __forceinline__ float squares_of_lane(const T* x, T* raw, int width, int lane) {
  float squares = 0.0f;
  for (int c = lane * N; c < width; c += kWarpSize * N) {
    const Vector<T, N> value = load_vector<T, N>(x + c);
    if (raw != nullptr) store_vector<T, N>(raw + c, value);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += load_float(&value.v[i]) * load_float(&value.v[i]);
  }
  return squares;
}

/// Dot product of dy * gain and the normalized x over a lane's columns.
template <class T, int N>
__device__ __forceinline__ float along_of_lane(const T* dy, const T* x, const T* gains, float shift,
                                               float rstd, int width, int lane) {
  float along = 0.0f;
  for (int c = lane * N; c < width; c += kWarpSize * N) {
    const Vector<T, N> d = load_vector<T, N>(dy + c), value = load_vector<T, N>(x + c);
    const Vector<T, N> gain = load_vector<T, N>(gains + c);
#pragma unroll
    for (int i = 0; i < N; ++i)
      along += load_float(&d.v[i]) * (load_float(&gain.v[i]) + shift) * load_float(&value.v[i]) * rstd;
  }
  return along;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) forward_sums_kernel(Params<T> p) {
  const int64_t item = item_of_warp();
  if (item >= p.work) return;
  const auto segment = p.segment(item);
  const int lane = threadIdx.x % kWarpSize;
  const float squares = warp_sum(squares_of_lane<T, N>(p.packed + segment.row * p.columns + segment.begin,
                                                       nullptr, segment.width, lane));
  if (lane == 0) p.sums[item] = squares;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) backward_sums_kernel(Params<T> p) {
  const int64_t item = item_of_warp();
  if (item >= p.work) return;
  const auto segment = p.segment(item);
  const int lane = threadIdx.x % kWarpSize;
  const float along = warp_sum(along_of_lane<T, N>(p.packed + segment.row * p.columns + segment.begin,
                                                   p.raw + segment.row * p.kept + segment.begin, segment.gain,
                                                   p.shift, p.rstd[item], segment.width, lane));
  if (lane == 0) p.sums[item] = along;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) forward_kernel(Params<T> p) {
  const int64_t item = item_of_warp();
  if (item >= p.work) return;
  const auto segment = p.segment(item);
  const int lane = threadIdx.x % kWarpSize;
  T* const x = p.packed + segment.row * p.columns + segment.begin;
  T* const raw = p.raw == nullptr ? nullptr : p.raw + segment.row * p.kept + segment.begin;
  float squares = warp_sum(squares_of_lane<T, N>(x, raw, segment.width, lane));
  if (p.sums != nullptr) squares = p.sums[item];
  const float rstd = 1.0f / sqrtf(squares / p.norm_width(segment.width) + p.eps);
  for (int c = lane * N; c < segment.width; c += kWarpSize * N) {
    Vector<T, N> value = load_vector<T, N>(x + c);
    const Vector<T, N> gain = load_vector<T, N>(segment.gain + c);
#pragma unroll
    for (int i = 0; i < N; ++i)
      store_float(&value.v[i], load_float(&value.v[i]) * rstd * (load_float(&gain.v[i]) + p.shift));
    store_vector<T, N>(x + c, value);
  }
  if (raw != nullptr && lane == 0) p.rstd[item] = rstd;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) backward_kernel(Params<T> p) {
  const int64_t item = item_of_warp();
  if (item >= p.work) return;
  const auto segment = p.segment(item);
  const int lane = threadIdx.x % kWarpSize;
  T* const dy = p.packed + segment.row * p.columns + segment.begin;
  const T* const x = p.raw + segment.row * p.kept + segment.begin;
  const float rstd = p.rstd[item];
  float along = p.sums != nullptr
                    ? p.sums[item]
                    : warp_sum(along_of_lane<T, N>(dy, x, segment.gain, p.shift, rstd, segment.width, lane));
  along /= p.norm_width(segment.width);
  for (int c = lane * N; c < segment.width; c += kWarpSize * N) {
    Vector<T, N> d = load_vector<T, N>(dy + c);
    const Vector<T, N> value = load_vector<T, N>(x + c), gain = load_vector<T, N>(segment.gain + c);
#pragma unroll
    for (int i = 0; i < N; ++i)
      store_float(&d.v[i], rstd * (load_float(&d.v[i]) * (load_float(&gain.v[i]) + p.shift) -
                                   load_float(&value.v[i]) * rstd * along));
    store_vector<T, N>(dy + c, d);
  }
}

/// scratch[part, column of q's gain | k's gain] = sum over its tokens and segments of dy x rstd. Grid: 32 N columns,
/// part, q or k. A warp adds every kWarps-th segment, so that the order of the sums does not depend on N.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) gain_parts_kernel(Params<T> p, int64_t rows, float* scratch) {
  constexpr int kColumns = kWarpSize * N;
  __shared__ float sums[kWarps][kColumns];
  const bool query = blockIdx.z == 0;
  const int width = query ? p.q_width : p.k_width, count = query ? p.q_segments : p.segments - p.q_segments;
  const int first = query ? 0 : p.q_segments, start = query ? 0 : p.q_segments * p.q_width;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int column = static_cast<int>(blockIdx.x) * kColumns + lane * N;
  if (static_cast<int>(blockIdx.x) * kColumns >= width) return;
  const int64_t per_part = (rows + kQkNormParts - 1) / kQkNormParts;
  const int64_t begin = min(rows, blockIdx.y * per_part), end = min(rows, begin + per_part);
  float sum[N] = {};
  if (column < width) {
    int64_t row = begin + warp / count;
    int segment = warp % count;
#pragma unroll 8
    for (int64_t i = begin * count + warp; i < end * count; i += kWarps) {
      const int at = start + segment * width + column;
      const Vector<T, N> d = load_vector<T, N>(p.packed + row * p.columns + at);
      const Vector<T, N> x = load_vector<T, N>(p.raw + row * p.kept + at);
      const float rstd = p.rstd[row * p.segments + first + segment];
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += load_float(&d.v[j]) * load_float(&x.v[j]) * rstd;
      row += kWarps / count, segment += kWarps % count;
      if (segment >= count) segment -= count, ++row;
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) sums[warp][lane * N + j] = sum[j];
  __syncthreads();
  if (warp != 0 || column >= width) return;
  float* const to =
      scratch + static_cast<int64_t>(blockIdx.y) * (p.q_width + p.k_width) + (query ? 0 : p.q_width) + column;
#pragma unroll
  for (int j = 0; j < N; ++j) {
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum[j] += sums[w][lane * N + j];
    to[j] = sum[j];
  }
}

template <class G>
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* scratch, int q_width, int k_width, G* dq_gain, G* dk_gain) {
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int width = q_width + k_width;
  if (column >= width) return;
  float sum = 0.0f;
#pragma unroll 16
  for (int part = 0; part < kQkNormParts; ++part) sum += scratch[static_cast<int64_t>(part) * width + column];
  const bool query = column < q_width;
  if ((query ? dq_gain : dk_gain) == nullptr) return;
  G* const grad = query ? dq_gain + column : dk_gain + column - q_width;
  store_float(grad, load_float(grad) + sum);
}

template <class T, class Args>
Params<T> params_of(const Args& a, const Tensor& packed) {
  Params<T> p;
  p.packed = packed.as<T>();
  p.raw = a.raw.template as<T>();
  p.rstd = a.rstd.template as<float>();
  p.q_gain = a.q_gain.template as<T>();
  p.k_gain = a.k_gain.template as<T>();
  p.columns = packed.cols();
  p.kept = a.shape.q_width() + a.shape.k_width();
  p.q_width = static_cast<int>(a.q_gain.numel());
  p.k_width = static_cast<int>(a.k_gain.numel());
  p.segments = static_cast<int>(qk_norm_segments(a.shape, p.q_width, p.k_width));
  p.q_segments = static_cast<int>(a.shape.q_width() / p.q_width);
  p.work = packed.rows() * p.segments;
  p.eps = 0.0f;
  p.sums = a.sums.template as<float>();
  p.ranks = static_cast<int>(a.ranks);
  p.shift = a.zero_centered ? 1.0f : 0.0f;
  return p;
}

/// Whether all segments begin and end at whole vectors.
template <class T>
bool in_vectors(const Params<T>& p) {
  constexpr size_t kBytes = kVector * sizeof(T);
  return p.columns % kVector == 0 && p.kept % kVector == 0 && p.q_width % kVector == 0 &&
         p.k_width % kVector == 0 && is_aligned(p.packed, kBytes) && is_aligned(p.raw, kBytes) &&
         is_aligned(p.q_gain, kBytes) && is_aligned(p.k_gain, kBytes);
}

template <class T>
void launch_forward_sums(const Context& context, const QkNormForward& a) {
  const Params<T> p = params_of<T>(a, a.qkv);
  if (p.work == 0) return;
  const unsigned blocks = ceil_div(p.work, kWarps);
  if (in_vectors(p)) {
    forward_sums_kernel<T, kVector><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  } else {
    forward_sums_kernel<T, 1><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
void launch_backward_sums(const Context& context, const QkNormBackward& a) {
  const Params<T> p = params_of<T>(a, a.dqkv);
  if (p.work == 0) return;
  const unsigned blocks = ceil_div(p.work, kWarps);
  if (in_vectors(p)) {
    backward_sums_kernel<T, kVector><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  } else {
    backward_sums_kernel<T, 1><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
void launch_forward(const Context& context, const QkNormForward& a) {
  Params<T> p = params_of<T>(a, a.qkv);
  p.eps = a.eps;
  if (p.work == 0) return;
  const unsigned blocks = ceil_div(p.work, kWarps);
  if (in_vectors(p)) {
    forward_kernel<T, kVector><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  } else {
    forward_kernel<T, 1><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
void launch_backward(const Context& context, const QkNormBackward& a) {
  const Params<T> p = params_of<T>(a, a.dqkv);
  if (p.work == 0) return;
  const cudaStream_t stream = cuda_stream(context);
  // Gain gradients are computed first, because they read the gradients that the second kernel overwrites.
  if (a.dq_gain || a.dk_gain) {
    auto* const scratch = a.scratch.as<float>();
    const int width = p.q_width + p.k_width;
    const auto launch = [&](auto vector) {
      constexpr int kN = decltype(vector)::value;
      const dim3 grid(ceil_div(std::max(p.q_width, p.k_width), kWarpSize * kN), kQkNormParts, 2);
      gain_parts_kernel<T, kN><<<grid, kThreads, 0, stream>>>(p, a.dqkv.rows(), scratch);
    };
    in_vectors(p) ? launch(std::integral_constant<int, kVector>{}) : launch(std::integral_constant<int, 1>{});
    TE_CUDA_CHECK_LAUNCH();
    visit_grad(a.dk_gain ? a.dk_gain.dtype : a.dq_gain.dtype, [&](auto zero) {
      using G = typename DeviceType<decltype(zero)>::type;
      add_parts_kernel<G><<<ceil_div(width, kThreads), kThreads, 0, stream>>>(
          scratch, p.q_width, p.k_width, a.dq_gain.as<G>(), a.dk_gain.as<G>());
    });
    TE_CUDA_CHECK_LAUNCH();
  }
  const unsigned blocks = ceil_div(p.work, kWarps);
  if (in_vectors(p)) {
    backward_kernel<T, kVector><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    backward_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void qk_norm_forward(const Context& context, const QkNormForward& args) {
  visit_high_precision(args.qkv.dtype, [&](auto zero) {
    launch_forward<typename DeviceType<decltype(zero)>::type>(context, args);
  });
}

void qk_norm_forward_sums(const Context& context, const QkNormForward& args) {
  visit_high_precision(args.qkv.dtype, [&](auto zero) {
    launch_forward_sums<typename DeviceType<decltype(zero)>::type>(context, args);
  });
}

void qk_norm_backward_sums(const Context& context, const QkNormBackward& args) {
  visit_high_precision(args.dqkv.dtype, [&](auto zero) {
    launch_backward_sums<typename DeviceType<decltype(zero)>::type>(context, args);
  });
}

void qk_norm_backward(const Context& context, const QkNormBackward& args) {
  visit_high_precision(args.dqkv.dtype, [&](auto zero) {
    launch_backward<typename DeviceType<decltype(zero)>::type>(context, args);
  });
}

}  // namespace te::kernels::cuda
