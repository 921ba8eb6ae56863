// Attention against a cache on the GPU. A block is one head of one row. Its warps take the keys in turns, kKeys at a
// time; a lane holds some elements of the head, so a warp reads a key or a value as one run of memory. Every warp keeps
// a running softmax of its keys; the warps' parts are put together in the end, in a fixed order.
#include <algorithm>

#include "kernels/attention/decode_cuda.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kKeys = 4;  // of a warp at once: independent loads and sums in flight
constexpr int kMaxDim = 256;

// --- append ------------------------------------------------------------------------------------------------

template <class T>
struct AppendParams {
  const T* qkv;
  const int32_t* sequences;
  const int32_t* positions;
  T* k;
  T* v;
  int64_t columns;    ///< of qkv
  int64_t first_key;  ///< column of the first key
  int64_t width;      ///< groups * head_dim
  int64_t length;
  int64_t work;  ///< vectors: rows * 2 * width / N
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads) append_kernel(AppendParams<T> p) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= p.work) return;
  const int64_t vectors = 2 * p.width / N, row = item / vectors, column = item % vectors * N;
  const Vector<T, N> value = load_vector<T, N>(p.qkv + row * p.columns + p.first_key + column);
  const int64_t place = (p.sequences[row] * p.length + p.positions[row]) * p.width;
  T* to = column < p.width ? p.k + place + column : p.v + place + column - p.width;
  store_vector<T, N>(to, value);
}

template <class T>
void launch_append(const Context& context, const CacheAppend& a) {
  constexpr int N = kVectorWidth<T>;
  const Tensor& k = a.cache.k;
  AppendParams<T> p;
  p.qkv = a.qkv.as<T>();
  p.sequences = a.sequences.as<int32_t>();
  p.positions = a.positions.as<int32_t>();
  p.k = k.as<T>();
  p.v = a.cache.v.as<T>();
  p.columns = a.qkv.cols();
  p.width = k.dim(2) * k.dim(3);
  p.first_key = p.columns - 2 * p.width;
  p.length = k.dim(1);
  const bool vectors = p.width % N == 0 && p.columns % N == 0 && is_aligned(p.qkv, 16) &&
                       is_aligned(p.k, 16) && is_aligned(p.v, 16);
  p.work = a.qkv.rows() * 2 * p.width / (vectors ? N : 1);
  const unsigned blocks = ceil_div(p.work, kThreads);
  if (vectors) {
    append_kernel<T, N><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  } else {
    append_kernel<T, 1><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
}

// --- attention ---------------------------------------------------------------------------------------------

template <class T>
struct DecodeParams {
  const T* qkv;
  const int32_t* sequences;
  const int32_t* positions;
  const T* k;
  const T* v;
  T* o;
  int64_t columns;  ///< of qkv
  int64_t length;
  int heads, groups, dim;
  float scale;
  int window;
};

/// E elements of a head in a lane: neighbours, moved at once (kVectors, dim = 32 E), or every 32nd one, those beyond
/// dim being 0.
template <class T, int E, bool kVectors>
struct Fragment {
  float x[E];

  __device__ __forceinline__ void load(const T* head, int dim) {
    const int lane = threadIdx.x % kWarpSize;
    if constexpr (kVectors) {
      const Vector<T, E> value = load_vector<T, E>(head + lane * E);
#pragma unroll
      for (int e = 0; e < E; ++e) x[e] = load_float(&value.v[e]);
    } else {
#pragma unroll
      for (int e = 0; e < E; ++e)
        x[e] = e * kWarpSize + lane < dim ? load_float(head + e * kWarpSize + lane) : 0.0f;
    }
  }
  static __device__ __forceinline__ int element(int e) {
    const int lane = threadIdx.x % kWarpSize;
    return kVectors ? lane * E + e : e * kWarpSize + lane;
  }
};

template <class T, int E, bool kVectors, bool kWindow>
__global__ void __launch_bounds__(kThreads) decode_kernel(DecodeParams<T> p) {
  __shared__ float sums[kWarps][kMaxDim];
  __shared__ float maxima[kWarps], totals[kWarps];
  const int64_t row = blockIdx.x / p.heads;
  const int head = static_cast<int>(blockIdx.x - row * p.heads), group = head / (p.heads / p.groups);
  const int warp = threadIdx.x / kWarpSize;
  const int last = p.positions[row];
  const int earliest = kWindow ? max(last + 1 - p.window, 0) : 0;
  const int64_t stride = static_cast<int64_t>(p.groups) * p.dim;
  const int64_t first = p.sequences[row] * p.length * stride + static_cast<int64_t>(group) * p.dim;
  const T* keys = p.k + first;
  const T* values = p.v + first;

  using Part = Fragment<T, E, kVectors>;
  Part query;
  query.load(p.qkv + row * p.columns + static_cast<int64_t>(head) * p.dim, p.dim);
  float largest = -INFINITY, total = 0.0f, sum[E] = {};
  for (int begin = earliest + warp * kKeys; begin <= last; begin += kWarps * kKeys) {
    // 1. Scores of kKeys keys; beyond the last key it is read again and counts nothing.
    float score[kKeys];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      Part key;
      key.load(keys + min(begin + u, last) * stride, p.dim);
      score[u] = 0.0f;
#pragma unroll
      for (int e = 0; e < E; ++e) score[u] += query.x[e] * key.x[e];
    }
    float highest = largest;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      score[u] = begin + u <= last ? warp_sum(score[u]) * p.scale : -INFINITY;
      highest = fmaxf(highest, score[u]);
    }
    // 2. What was summed so far, to the new maximum (finite: the first key of the four always counts).
    const float rescale = __expf(largest - highest);
    largest = highest;
    total *= rescale;
#pragma unroll
    for (int e = 0; e < E; ++e) sum[e] *= rescale;
      // 3. Their values.
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      Part value;
      value.load(values + min(begin + u, last) * stride, p.dim);
      const float weight = __expf(score[u] - highest);
      total += weight;
#pragma unroll
      for (int e = 0; e < E; ++e) sum[e] += weight * value.x[e];
    }
  }
  // 4. The warps' parts together.
#pragma unroll
  for (int e = 0; e < E; ++e) sums[warp][Part::element(e)] = sum[e];
  if (threadIdx.x % kWarpSize == 0) maxima[warp] = largest, totals[warp] = total;
  __syncthreads();
  const int d = threadIdx.x;
  if (d >= p.dim) return;
  float highest = maxima[0];  // warp 0 has the earliest key
#pragma unroll
  for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, maxima[w]);
  float numerator = 0.0f, denominator = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float share = __expf(maxima[w] - highest);  // 0 for a warp without keys
    numerator += share * sums[w][d];
    denominator += share * totals[w];
  }
  store_float(p.o + (row * p.heads + head) * p.dim + d, numerator / denominator);
}

template <class T, int E, bool kWindow>
void launch_decode(const Context& context, const DecodeParams<T>& p, int64_t rows) {
  const auto blocks = static_cast<unsigned>(rows * p.heads);
  const bool vectors = p.dim == kWarpSize * E && p.columns % E == 0 && is_aligned(p.qkv, E * sizeof(T)) &&
                       is_aligned(p.k, E * sizeof(T)) && is_aligned(p.v, E * sizeof(T));
  if (vectors) {
    decode_kernel<T, E, true, kWindow><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  } else {
    decode_kernel<T, E, false, kWindow><<<blocks, kThreads, 0, cuda_stream(context)>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
}

template <class T, bool kWindow>
void launch_by_dim(const Context& context, const DecodeParams<T>& p, int64_t rows) {
  if (p.dim <= 32) return launch_decode<T, 1, kWindow>(context, p, rows);
  if (p.dim <= 64) return launch_decode<T, 2, kWindow>(context, p, rows);
  if (p.dim <= 128) return launch_decode<T, 4, kWindow>(context, p, rows);
  launch_decode<T, 8, kWindow>(context, p, rows);
}

template <class T>
void launch_attention(const Context& context, const AttentionDecode& a) {
  const Tensor& k = a.cache.k;
  DecodeParams<T> p;
  p.qkv = a.qkv.as<T>();
  p.sequences = a.sequences.as<int32_t>();
  p.positions = a.positions.as<int32_t>();
  p.k = k.as<T>();
  p.v = a.cache.v.as<T>();
  p.o = a.o.as<T>();
  p.columns = a.qkv.cols();
  p.length = k.dim(1);
  p.groups = static_cast<int>(k.dim(2));
  p.dim = static_cast<int>(k.dim(3));
  p.heads = static_cast<int>(a.o.cols() / k.dim(3));
  p.scale = a.softmax_scale;
  const int64_t rows = a.qkv.rows();
  TE_CHECK(rows * p.heads <= INT32_MAX, "attention_decode: {} rows of {} heads are too many for a launch",
           rows, p.heads);
  p.window = static_cast<int>(std::min<int64_t>(a.window, INT32_MAX));
  a.window == 0 ? launch_by_dim<T, false>(context, p, rows) : launch_by_dim<T, true>(context, p, rows);
}

}  // namespace

void cache_append(const Context& context, const CacheAppend& args) {
  visit_hp(args.qkv.dtype,
           [&](auto zero) { launch_append<typename DeviceType<decltype(zero)>::type>(context, args); });
}

void attention_decode(const Context& context, const AttentionDecode& args) {
  visit_hp(args.qkv.dtype,
           [&](auto zero) { launch_attention<typename DeviceType<decltype(zero)>::type>(context, args); });
}

}  // namespace te::kernels::cuda
