// RMSNorm of queries and keys. The norm of a segment of a row is computed by a group of threads, as many as the segment
// has vectors of 16 bytes, at most a block, which hold it in registers: every value is read once. The rotary embedding
// of the result, or of its gradient, takes place in these registers, too, where the other half of a head is in another
// lane of the same warp.
//
// Gain gradients are summed over the tokens in kQkNormParts parts, one per block, which are then added in a fixed
// order.
#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/common/cuda_common.cuh"
#include "kernels/qk_norm/qk_norm_cuda.h"
#include "kernels/rope/rope_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
/// Of a thread: its values, x, gains and sums take registers.
template <int N>
constexpr int kMostVectors = N == 8 ? 4 : 8;

/// The segments of q, or of k, in every row.
template <class T>
struct Segments {
  int count, width;
  int first, begin;  ///< of their statistics, of their columns
  const T* gain;
  int threads;  ///< per segment, a power of two
};

/// Null cos: none.
struct Rotation {
  const float *cos, *sin;
  const int32_t* positions;  ///< null: row % seq
  unsigned seq;
  int half;  ///< of a head, a power of two
  float sign;
};

template <class T>
struct Params {
  T* packed;  ///< qkv or dqkv
  T* raw;     ///< null: not stored
  float* rstd;
  Segments<T> q, k;
  int64_t rows;
  int columns, kept, statistics;  ///< per row: of packed, of raw; segments of q and k
  float eps;
  float* sums;  ///< null: a group sums its segment; otherwise summed over all ranks, or the output
  int ranks;
  float shift;  ///< added to the gains
  Rotation rotation;

  /// Columns of a norm, including those of other ranks.
  __device__ float norm_width(const Segments<T>& of) const {
    return static_cast<float>(of.width) * static_cast<float>(ranks);
  }
};

/// A segment: its row, where it starts in the packed and raw values, and its statistics.
struct Place {
  int64_t row, packed, raw, statistic;
};
template <class T>
__device__ __forceinline__ Place place_of(const Params<T>& p, const Segments<T>& of, int64_t row,
                                          int segment) {
  const int64_t column = of.begin + segment * of.width;
  return {row, row * p.columns + column, row * p.kept + column, row * p.statistics + of.first + segment};
}

/// A thread's columns of a segment, N at a time; zeros beyond its width.
template <class T, int N, int kVectors>
struct Columns {
  Vector<T, N> v[kVectors];

  static __device__ __forceinline__ int column(int k, int threads) {
    return (k * threads + static_cast<int>(threadIdx.x) % threads) * N;
  }
  __device__ __forceinline__ void load(const T* from, const Segments<T>& of) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      v[k] =
          column(k, of.threads) < of.width ? load_vector<T, N>(from + column(k, of.threads)) : Vector<T, N>{};
  }
  __device__ __forceinline__ void store(T* to, const Segments<T>& of) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      if (column(k, of.threads) < of.width) store_vector<T, N>(to + column(k, of.threads), v[k]);
  }
  /// Calls f(value, vector, element) for all columns; f may change the value.
  template <class F>
  __device__ __forceinline__ void each(F&& f) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
#pragma unroll
      for (int i = 0; i < N; ++i) f(v[k].v[i], k, i);
  }
};

/// Sum over the `threads` of a group, returned to all of them. All threads of the block must call it.
__device__ __forceinline__ float group_sum(float x, int threads, float (&shared)[kWarps]) {
  for (int offset = min(threads, kWarpSize) / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(kAllLanes, x, offset);
  if (threads <= kWarpSize) return x;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, warps = threads / kWarpSize;
  if (threadIdx.x % kWarpSize == 0) shared[warp] = x;
  __syncthreads();
  x = 0.0f;
  for (int w = warp / warps * warps, end = w + warps; w < end; ++w) x += shared[w];
  __syncthreads();
  return x;
}

/// The vector of the lane whose number differs by `lanes`.
template <class T, int N>
__device__ __forceinline__ Vector<T, N> exchanged(Vector<T, N> x, int lanes) {
  static_assert(sizeof(x) % sizeof(uint32_t) == 0);
  auto* const words = reinterpret_cast<uint32_t*>(&x);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(x) / sizeof(uint32_t)); ++i)
    words[i] = __shfl_xor_sync(kAllLanes, words[i], lanes);
  return x;
}

/// Rotates the heads of a row's columns, as kernels/rope does, with a group whose threads have whole heads at a time.
/// All threads of the block must call it.
template <class T, int N, int kVectors>
__device__ __forceinline__ void rotate(Columns<T, N, kVectors>& values, const Segments<T>& of,
                                       const Rotation& r, int64_t row) {
  if constexpr (N * sizeof(T) >= sizeof(uint32_t)) {
    constexpr int kQuad = N < 4 ? N : 4;  // floats of a table per access
    const int64_t position = r.positions != nullptr ? r.positions[row] : static_cast<unsigned>(row) % r.seq;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int column = Columns<T, N, kVectors>::column(k, of.threads);
      const Vector<T, N> other = exchanged<T, N>(values.v[k], r.half / N);
      const float sign = (column & r.half) == 0 ? -r.sign : r.sign;
      const int64_t angle = position * r.half + (column & (r.half - 1));
#pragma unroll
      for (int i = 0; i < N; i += kQuad) {
        const auto cos = load_vector<float, kQuad>(r.cos + angle + i),
                   sin = load_vector<float, kQuad>(r.sin + angle + i);
#pragma unroll
        for (int j = 0; j < kQuad; ++j)
          store_float(&values.v[k].v[i + j],
                      __fadd_rn(__fmul_rn(load_float(&values.v[k].v[i + j]), cos.v[j]),
                                __fmul_rn(load_float(&other.v[i + j]), sign * sin.v[j])));
      }
    }
  }
}

enum class Work : uint8_t { norm, sums };  ///< sums: of this rank only, to Params::sums

/// A block processes kTimes segments per group; blockIdx.y: q or k.
template <class T, int N, int kVectors, Work kWork>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ Params<T> p) {
  constexpr int kTimes = kVectors == 1 ? 2 : 1;
  __shared__ float shared[kWarps];
  const Segments<T>& of = blockIdx.y == 0 ? p.q : p.k;
  const int groups = kThreads / of.threads, lane = static_cast<int>(threadIdx.x) % of.threads;
  const int64_t work = p.rows * of.count, first = int64_t{blockIdx.x} * kTimes * groups;
  if (first >= work) return;
  Columns<T, N, kVectors> gain, values[kTimes];
  gain.load(of.gain, of);
  Place places[kTimes];
  bool inside[kTimes];
#pragma unroll
  for (int t = 0; t < kTimes; ++t) {
    const int64_t item = first + t * groups + static_cast<int>(threadIdx.x) / of.threads;
    inside[t] = item < work;
    const int64_t at = min(item, work - 1), row = static_cast<unsigned>(at) / static_cast<unsigned>(of.count);
    places[t] = place_of(p, of, row, static_cast<int>(at - row * of.count));
    values[t].load(p.packed + places[t].packed, of);
  }
#pragma unroll
  for (int t = 0; t < kTimes; ++t) {
    float squares = 0.0f;
    values[t].each([&](T& x, int, int) { squares += load_float(&x) * load_float(&x); });
    if (kWork == Work::sums || p.sums == nullptr) squares = group_sum(squares, of.threads, shared);
    if constexpr (kWork == Work::sums) {
      if (inside[t] && lane == 0) p.sums[places[t].statistic] = squares;
      continue;
    }
    if (p.sums != nullptr) squares = p.sums[places[t].statistic];
    const float rstd = 1.0f / sqrtf(squares / p.norm_width(of) + p.eps);
    if (inside[t] && p.raw != nullptr) {
      values[t].store(p.raw + places[t].raw, of);
      if (lane == 0) p.rstd[places[t].statistic] = rstd;
    }
    values[t].each([&](T& x, int k, int i) {
      store_float(&x, load_float(&x) * rstd * (load_float(&gain.v[k].v[i]) + p.shift));
    });
    if (p.rotation.cos != nullptr) rotate(values[t], of, p.rotation, places[t].row);
    if (inside[t]) values[t].store(p.packed + places[t].packed, of);
  }
}

/// The sum of dy * gain * normalized x over a thread's columns, and dx in place of dy. A thread adds its columns of the
/// gain's gradient.
template <class T, int N, int kVectors>
struct Gradient {
  Columns<T, N, kVectors> gain;
  float sum[kVectors][N] = {};
  float shift;

  __device__ __forceinline__ float along(Columns<T, N, kVectors>& dy, const Columns<T, N, kVectors>& x,
                                         float rstd) {
    float total = 0.0f;
    dy.each([&](T& d, int k, int i) {
      const float value = load_float(&x.v[k].v[i]);
      total += load_float(&d) * (load_float(&gain.v[k].v[i]) + shift) * value * rstd;
      sum[k][i] += load_float(&d) * value * rstd;
    });
    return total;
  }
  __device__ __forceinline__ void replace(Columns<T, N, kVectors>& dy, const Columns<T, N, kVectors>& x,
                                          float rstd, float mean) const {
    dy.each([&](T& d, int k, int i) {
      store_float(&d, rstd * (load_float(&d) * (load_float(&gain.v[k].v[i]) + shift) -
                              load_float(&x.v[k].v[i]) * rstd * mean));
    });
  }
};

/// Stores the sums of the gain's gradient over the groups of the block, in their order.
template <class T, int N, int kVectors>
__device__ void store_gain_sums(float (&sum)[kVectors][N], const Segments<T>& of, float (&shared)[kThreads],
                                float* to) {
  const int group = static_cast<int>(threadIdx.x) / of.threads;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int column = Columns<T, N, kVectors>::column(k, of.threads);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      __syncthreads();
      shared[threadIdx.x] = sum[k][i];
      __syncthreads();
      if (group != 0 || column >= of.width) continue;
      float total = sum[k][i];
      for (int other = of.threads; other < kThreads; other += of.threads)
        total += shared[threadIdx.x + other];
      to[column + i] = total;
    }
  }
}

/// A block processes a part of the rows; blockIdx.y: q or k. d_gains[part, column of q's gain | k's gain]; null: the
/// gains have no gradients.
template <class T, int N, int kVectors, Work kWork>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const __grid_constant__ Params<T> p, float* d_gains) {
  constexpr int kTimes = kVectors == 1 ? 2 : 1;
  __shared__ float shared[kWarps], all[kThreads];
  const bool query = blockIdx.y == 0;
  const Segments<T>& of = query ? p.q : p.k;
  const int groups = kThreads / of.threads, group = static_cast<int>(threadIdx.x) / of.threads;
  const int64_t per_part = (p.rows + kQkNormParts - 1) / kQkNormParts;
  const int64_t begin = min(p.rows, blockIdx.x * per_part), rows = min(p.rows, begin + per_part) - begin;
  const int work = static_cast<int>(rows) * of.count;
  Gradient<T, N, kVectors> gradient;
  gradient.shift = p.shift;
  gradient.gain.load(of.gain, of);
  for (int base = 0; base < work; base += kTimes * groups) {
    Columns<T, N, kVectors> dy[kTimes], x[kTimes];
    Place places[kTimes];
    float rstd[kTimes];
#pragma unroll
    for (int t = 0; t < kTimes; ++t) {
      const int item = base + t * groups + group, at = min(item, work - 1), row = at / of.count;
      places[t] = place_of(p, of, begin + row, at - row * of.count);
      dy[t].load(p.packed + places[t].packed, of);
      x[t].load(p.raw + places[t].raw, of);
      rstd[t] = item < work ? p.rstd[places[t].statistic] : 0.0f;  // adds nothing to the gain's gradient
    }
#pragma unroll
    for (int t = 0; t < kTimes; ++t) {
      if (p.rotation.cos != nullptr) rotate(dy[t], of, p.rotation, places[t].row);
      float along = gradient.along(dy[t], x[t], rstd[t]);
      if (kWork == Work::sums || p.sums == nullptr) along = group_sum(along, of.threads, shared);
      if (base + t * groups + group >= work) continue;
      if constexpr (kWork == Work::sums) {
        if (threadIdx.x % static_cast<unsigned>(of.threads) == 0) p.sums[places[t].statistic] = along;
        continue;
      }
      if (p.sums != nullptr) along = p.sums[places[t].statistic];
      gradient.replace(dy[t], x[t], rstd[t], along / p.norm_width(of));
      dy[t].store(p.packed + places[t].packed, of);
    }
  }
  if (kWork == Work::sums || d_gains == nullptr) return;
  d_gains += int64_t{blockIdx.x} * (p.q.width + p.k.width) + (query ? 0 : p.q.width);
  store_gain_sums<T>(gradient.sum, of, all, d_gains);
}

/// A block has 32 columns, of which each warp adds some parts.
template <class G>
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* parts, int q_width, int k_width, G* dq_gain, G* dk_gain) {
  constexpr int kEach = static_cast<int>(kQkNormParts) / kWarps;
  __shared__ float sums[kWarps][kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize,
            warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int column = static_cast<int>(blockIdx.x) * kWarpSize + lane, width = q_width + k_width;
  float sum = 0.0f;
  if (column < width) {
    parts += int64_t{warp} * kEach * width + column;
#pragma unroll 16
    for (int part = 0; part < kEach; ++part) sum += parts[int64_t{part} * width];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  const bool query = column < q_width;
  if (warp != 0 || column >= width || (query ? dq_gain : dk_gain) == nullptr) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
  G* const grad = query ? dq_gain + column : dk_gain + column - q_width;
  store_float(grad, load_float(grad) + sum);
}

template <class T, class Args>
Params<T> params_of(const Args& a, const Tensor& packed) {
  Params<T> p{};
  p.packed = packed.as<T>();
  p.raw = a.raw.template as<T>();
  p.rstd = a.rstd.template as<float>();
  const int q_width = static_cast<int>(a.q_gain.numel()), k_width = static_cast<int>(a.k_gain.numel()),
            q_count = static_cast<int>(a.shape.q_width()) / q_width,
            k_count = static_cast<int>(a.shape.k_width()) / k_width;
  p.q = {q_count, q_width, 0, 0, a.q_gain.template as<T>(), 0};
  p.k = {k_count, k_width, q_count, q_count * q_width, a.k_gain.template as<T>(), 0};
  p.rows = packed.rows();
  p.columns = static_cast<int>(packed.cols());
  p.kept = static_cast<int>(a.shape.q_width() + a.shape.k_width());
  p.statistics = q_count + k_count;
  p.sums = a.sums.template as<float>();
  p.ranks = static_cast<int>(a.ranks);
  p.shift = a.zero_centered ? 1.0f : 0.0f;
  TE_CHECK(p.rows * p.statistics <= std::numeric_limits<uint32_t>::max(), "qk_norm: {} rows are too many",
           p.rows);
  return p;
}

/// Whether all segments begin and end at whole vectors of N elements.
template <int N, class T>
bool in_vectors(const Params<T>& p) {
  bool whole = is_aligned(p.packed, N * sizeof(T)) && is_aligned(p.raw, N * sizeof(T)) &&
               p.columns % N == 0 && p.kept % N == 0;
  for (const Segments<T>* const of : {&p.q, &p.k})
    whole = whole && of->width % N == 0 && is_aligned(of->gain, N * sizeof(T));
  return whole;
}

/// Whether a group can rotate its columns, with vectors of N elements: the halves of a head are in one warp.
template <class T, int N>
bool rotates(const Rope& rope) {
  const auto half = static_cast<uint64_t>(rope.head_dim / 2);
  return N > 1 && std::has_single_bit(half) && half % N == 0 && half / N <= kWarpSize / 2 &&
         is_aligned(rope.cos.data, 16) && is_aligned(rope.sin.data, 16);
}
Rotation rotation_of(const Rope& rope) {
  return {.cos = rope.cos.as<float>(),
          .sin = rope.sin.as<float>(),
          .positions = rope.positions.as<int32_t>(),
          .seq = static_cast<unsigned>(rope.seq),
          .half = static_cast<int>(rope.head_dim / 2),
          .sign = rope.backward ? -1.0f : 1.0f};
}

/// Calls launch<N, kVectors>(p, grid.x for forward passes).
template <class T, int N, int kVectors = 1, class Launch>
void launch_with(Params<T> p, Launch&& launch) {
  for (Segments<T>* const of : {&p.q, &p.k})
    of->threads = static_cast<int>(
        std::min(std::bit_ceil(ceil_div(of->width, N * kVectors)), static_cast<unsigned>(kThreads)));
  if (std::max(p.q.width, p.k.width) <= kThreads * N * kVectors) {
    constexpr int kTimes = kVectors == 1 ? 2 : 1;
    const auto blocks = [&](const Segments<T>& of) {
      return ceil_div(p.rows * of.count, int64_t{kTimes} * kThreads / of.threads);
    };
    launch.template operator()<N, kVectors>(p, std::max(blocks(p.q), blocks(p.k)));
  } else if constexpr (kVectors < kMostVectors<N>) {
    launch_with<T, N, 2 * kVectors>(p, std::forward<Launch>(launch));
  } else {
    TE_CHECK(false, "qk_norm: a norm of {} columns is too wide", std::max(p.q.width, p.k.width));
  }
}
template <class T, class Launch>
void dispatch(const Params<T>& p, bool vectors, Launch&& launch) {
  if (p.rows == 0) return;
  if (vectors)
    launch_with<T, kVectorWidth<T>>(p, std::forward<Launch>(launch));
  else
    launch_with<T, 1>(p, std::forward<Launch>(launch));
  TE_CUDA_CHECK_LAUNCH();
}

template <class T, Work kWork>
void launch_forward(const Context& context, const QkNormForward& a) {
  Params<T> of_args = params_of<T>(a, a.qkv);
  of_args.eps = a.eps;
  const bool vectors = in_vectors<kVectorWidth<T>>(of_args), wanted = kWork == Work::norm && a.rope.cos;
  const bool rotated = wanted && vectors && rotates<T, kVectorWidth<T>>(a.rope);
  if (rotated) of_args.rotation = rotation_of(a.rope);
  dispatch<T>(of_args, vectors, [&]<int N, int kVectors>(const Params<T>& p, unsigned blocks) {
    forward_kernel<T, N, kVectors, kWork><<<dim3(blocks, 2), kThreads, 0, cuda_stream(context)>>>(p);
  });
  if (wanted && !rotated) cuda::rope(context, a.rope);
}

template <class T, Work kWork>
void launch_backward(const Context& context, const QkNormBackward& a) {
  const bool trained = a.dq_gain || a.dk_gain;
  auto* const parts = trained ? a.scratch.as<float>() : nullptr;
  const auto part_count = static_cast<unsigned>(kQkNormParts);
  Params<T> of_args = params_of<T>(a, a.dqkv);
  const bool vectors = in_vectors<kVectorWidth<T>>(of_args), wanted = kWork == Work::norm && a.rope.cos;
  if (wanted && vectors && rotates<T, kVectorWidth<T>>(a.rope))
    of_args.rotation = rotation_of(a.rope);
  else if (wanted)
    cuda::rope(context, a.rope);
  dispatch<T>(of_args, vectors, [&]<int N, int kVectors>(const Params<T>& p, unsigned) {
    backward_kernel<T, N, kVectors, kWork>
        <<<dim3(part_count, 2), kThreads, 0, cuda_stream(context)>>>(p, parts);
  });
  if (kWork == Work::sums || !trained || a.dqkv.rows() == 0) return;
  visit_grad(a.dk_gain ? a.dk_gain.dtype : a.dq_gain.dtype, [&](auto zero) {
    using G = typename DeviceType<decltype(zero)>::type;
    const int q_width = static_cast<int>(a.q_gain.numel()), k_width = static_cast<int>(a.k_gain.numel());
    add_parts_kernel<G><<<ceil_div(q_width + k_width, kWarpSize), kThreads, 0, cuda_stream(context)>>>(
        parts, q_width, k_width, a.dq_gain.as<G>(), a.dk_gain.as<G>());
  });
  TE_CUDA_CHECK_LAUNCH();
}

template <class Fn>
void visit_type(DType dtype, Fn&& fn) {
  visit_high_precision(
      dtype, [&](auto zero) { fn.template operator()<typename DeviceType<decltype(zero)>::type>(); });
}

}  // namespace

void qk_norm_forward(const Context& context, const QkNormForward& args) {
  visit_type(args.qkv.dtype, [&]<class T>() { launch_forward<T, Work::norm>(context, args); });
}

void qk_norm_forward_sums(const Context& context, const QkNormForward& args) {
  visit_type(args.qkv.dtype, [&]<class T>() { launch_forward<T, Work::sums>(context, args); });
}

void qk_norm_backward_sums(const Context& context, const QkNormBackward& args) {
  visit_type(args.dqkv.dtype, [&]<class T>() { launch_backward<T, Work::sums>(context, args); });
}

void qk_norm_backward(const Context& context, const QkNormBackward& args) {
  visit_type(args.dqkv.dtype, [&]<class T>() { launch_backward<T, Work::norm>(context, args); });
}

}  // namespace te::kernels::cuda
