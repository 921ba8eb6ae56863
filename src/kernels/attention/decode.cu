// Attention against a cache on the GPU. The keys of one head of one row are dealt to kParts warps, kKeys at a time; a
// lane holds some elements of the head, so a warp reads a key or a value as one run of memory. Every part keeps a
// running softmax of its keys; in the end the parts are put together in a fixed order.
//
// The parts of a head are the warps of a cluster of kSplits blocks where there are few rows, so that one sequence fills
// the device, too; with many rows one block makes them one after another. The bits are the same.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/attention/decode_cuda.h"
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/dependent_launch.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSplits = 8;  // blocks of a cluster
constexpr int kParts = kSplits * kWarps;
constexpr int kKeys = 4;  // of a warp at once: independent loads and sums in flight

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
  int window;  ///< 0: none
  // Of a step (AttentionStep): a row's own key and value come from qkv and enter the cache.
  const float* cos;  ///< null: nothing is rotated
  const float* sin;
  T* new_k;
  T* new_v;
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
  /// Rotated by its position, as kernels/rope does it, rounded likewise. The partner of an element is half a head, and
  /// so half a warp, away.
  __device__ __forceinline__ void rotate(const DecodeParams<T>& p, int position) {
    static_assert(kVectors);
    const int lane = threadIdx.x % kWarpSize, half = p.dim / 2;
    const int64_t angle = int64_t{position} * half + lane % (kWarpSize / 2) * E;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const float other = __shfl_xor_sync(0xffffffffu, x[e], kWarpSize / 2);
      const float c = p.cos[angle + e], s = p.sin[angle + e];
      const float turned = lane < kWarpSize / 2 ? __fsub_rn(__fmul_rn(x[e], c), __fmul_rn(other, s))
                                                : __fadd_rn(__fmul_rn(x[e], c), __fmul_rn(other, s));
      x[e] = round_to<T>(turned);
    }
  }
  __device__ __forceinline__ void store(T* head) const {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int e = 0; e < E; ++e) store_float(head + lane * E + e, x[e]);
  }
  static __device__ __forceinline__ int element(int e) {
    const int lane = threadIdx.x % kWarpSize;
    return kVectors ? lane * E + e : e * kWarpSize + lane;
  }
};

/// What a part has found: sums of values weighed by exp(score - largest), and of these weights.
template <int E>
struct Softmax {
  float largest = -INFINITY, total = 0.0f, sum[E] = {};
};

/// A row's own key and value.
template <class T, int E, bool kVectors>
struct OwnToken {
  Fragment<T, E, kVectors> key, value;
};

/// kKeys keys from `begin` on, then those kParts * kKeys further on, up to `last`. kStep: the last one is `own`.
template <class T, int E, bool kVectors, bool kStep>
__device__ __forceinline__ Softmax<E> attend(const DecodeParams<T>& p, const Fragment<T, E, kVectors>& query,
                                             const OwnToken<T, E, kVectors>& own, const T* keys,
                                             const T* values, int begin, int last) {
  const int64_t stride = static_cast<int64_t>(p.groups) * p.dim;
  Softmax<E> of;
  for (; begin <= last; begin += kParts * kKeys) {
    // 1. All loads; beyond the last key it is read again and counts nothing.
    Fragment<T, E, kVectors> key[kKeys], value[kKeys];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      key[u].load(keys + min(begin + u, last) * stride, p.dim);
      value[u].load(values + min(begin + u, last) * stride, p.dim);
      if (kStep && begin + u >= last) key[u] = own.key, value[u] = own.value;
    }
    // 2. Scores.
    float score[kKeys], highest = of.largest;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      score[u] = 0.0f;
#pragma unroll
      for (int e = 0; e < E; ++e) score[u] += query.x[e] * key[u].x[e];
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      score[u] = begin + u <= last ? warp_sum(score[u]) * p.scale : -INFINITY;
      highest = fmaxf(highest, score[u]);
    }
    // 3. What was summed so far, to the new maximum (finite: the first key of the four always counts).
    const float rescale = __expf(of.largest - highest);
    of.largest = highest;
    of.total *= rescale;
#pragma unroll
    for (int e = 0; e < E; ++e) of.sum[e] *= rescale;
      // 4. Their values.
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const float weight = __expf(score[u] - highest);
      of.total += weight;
#pragma unroll
      for (int e = 0; e < E; ++e) of.sum[e] += weight * value[u].x[e];
    }
  }
  return of;
}

/// Shared memory of `parts` parts: their maxima, totals and sums [parts, dim].
struct PartsMemory {
  float *largest, *total, *sum;
  __device__ __forceinline__ PartsMemory(float* memory, int parts)
      : largest(memory), total(memory + parts), sum(memory + 2 * parts) {}
  static __host__ __device__ constexpr int floats(int parts, int dim) { return parts * (dim + 2); }
};

/// An element of a head over some keys.
struct Merged {
  float largest = -INFINITY, total = 0.0f, sum = 0.0f;
};

/// Of `kCount` of them, in order; those without keys count nothing.
template <int kCount>
__device__ __forceinline__ Merged merge(const Merged (&parts)[kCount]) {
  Merged all;
#pragma unroll
  for (const Merged& part : parts) all.largest = fmaxf(all.largest, part.largest);
#pragma unroll
  for (const Merged& part : parts) {
    const float weight = part.largest == -INFINITY ? 0.0f : __expf(part.largest - all.largest);
    all.total += weight * part.total;
    all.sum += weight * part.sum;
  }
  return all;
}

/// Element d of the parts of block c of a cluster, or of turn c of one block: slots w * stride + offset.
__device__ __forceinline__ Merged merge_warps(const PartsMemory& m, int stride, int offset, int dim, int d) {
  Merged warps[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const int slot = w * stride + offset;
    warps[w] = {m.largest[slot], m.total[slot], m.sum[slot * dim + d]};
  }
  return merge(warps);
}

/// kBlocks: kSplits (a cluster a head) or 1. Part w * kSplits + c is that of warp w in block c.
template <class T, int E, bool kVectors, int kBlocks, bool kStep>
__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ DecodeParams<T> p) {
  namespace cg = cooperative_groups;
  constexpr int kTurns = kSplits / kBlocks, kOwn = kWarps * kTurns;
  extern __shared__ float memory[];
  const PartsMemory own(memory, kOwn);
  const int64_t item = blockIdx.x / kBlocks, row = item / p.heads;
  const int head = static_cast<int>(item - row * p.heads), group = head / (p.heads / p.groups);
  const int block = static_cast<int>(blockIdx.x % kBlocks), warp = threadIdx.x / kWarpSize;
  grid_dependency_wait();
  allow_dependents();
  const int last = p.positions[row];
  const int earliest = p.window > 0 ? max(last + 1 - p.window, 0) : 0;
  const int64_t first = (p.sequences[row] * p.length * p.groups + static_cast<int64_t>(group)) * p.dim;

  using Part = Fragment<T, E, kVectors>;
  Part query;
  query.load(p.qkv + row * p.columns + static_cast<int64_t>(head) * p.dim, p.dim);
  OwnToken<T, E, kVectors> token;
  if constexpr (kStep) {
    const T* const key = p.qkv + row * p.columns + static_cast<int64_t>(p.heads + group) * p.dim;
    token.key.load(key, p.dim);
    token.value.load(key + static_cast<int64_t>(p.groups) * p.dim, p.dim);
    if (p.cos != nullptr) query.rotate(p, last), token.key.rotate(p, last);
    if (block == 0 && warp == 0 && head % (p.heads / p.groups) == 0) {  // one warp of the group
      const int64_t place = first + static_cast<int64_t>(last) * p.groups * p.dim;
      token.key.store(p.new_k + place);
      token.value.store(p.new_v + place);
    }
  }
  // 1. The parts of this block.
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int part = warp * kSplits + (kBlocks == 1 ? turn : block), slot = warp * kTurns + turn;
    const Softmax<E> of = attend<T, E, kVectors, kStep>(p, query, token, p.k + first, p.v + first,
                                                        earliest + part * kKeys, last);
#pragma unroll
    for (int e = 0; e < E; ++e)
      if (kVectors || Part::element(e) < p.dim) own.sum[slot * p.dim + Part::element(e)] = of.sum[e];
    if (threadIdx.x % kWarpSize == 0) own.largest[slot] = of.largest, own.total[slot] = of.total;
  }
  __syncthreads();
  // 2. Those of the warps of a block, or of a turn of one block, together; 3. then the blocks' (turns').
  T* const o = p.o + (row * p.heads + head) * p.dim;
  const int thread = static_cast<int>(threadIdx.x);
  Merged splits[kSplits];
  if constexpr (kBlocks == 1) {
    if (thread >= p.dim) return;
#pragma unroll
    for (int c = 0; c < kSplits; ++c) splits[c] = merge_warps(own, kTurns, c, p.dim, thread);
    const Merged all = merge(splits);
    store_float(o + thread, all.sum / all.total);
  } else {
    // A block of the cluster for its share of the head.
    float* const kept = memory + PartsMemory::floats(kOwn, p.dim);
    if (thread < p.dim) {
      const Merged mine = merge_warps(own, kTurns, 0, p.dim, thread);
      const PartsMemory to(kept, 1);
      to.sum[thread] = mine.sum;
      if (thread == 0) *to.largest = mine.largest, *to.total = mine.total;
    }
    cg::this_cluster().sync();
    const int share = (p.dim + kBlocks - 1) / kBlocks, d = block * share + thread;
    if (thread < share && d < p.dim) {
#pragma unroll
      for (int c = 0; c < kSplits; ++c) {
        const PartsMemory of(cg::this_cluster().map_shared_rank(kept, c), 1);
        splits[c] = {*of.largest, *of.total, of.sum[d]};
      }
      const Merged all = merge(splits);
      store_float(o + d, all.sum / all.total);
    }
    cg::this_cluster().sync();  // nobody leaves whose memory is still read
  }
}

template <class T, int E, bool kVectors, int kBlocks, bool kStep>
void launch_blocks(const Context& context, const DecodeParams<T>& p, int64_t rows) {
  constexpr auto kKernel = decode_kernel<T, E, kVectors, kBlocks, kStep>;
  const size_t bytes = sizeof(float) * static_cast<size_t>(PartsMemory::floats(
                                           kParts / kBlocks + (kBlocks > 1 ? 1 : 0), p.dim));
  if (bytes > 48 * 1024)
    TE_CUDA_CHECK(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {.x = kBlocks, .y = 1, .z = 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * p.heads * kBlocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = cuda_stream(context);
  config.attrs = attributes;
  config.numAttrs = kBlocks > 1 ? 2 : 1;
  TE_CUDA_CHECK(cudaLaunchKernelEx(&config, kKernel, p));
  TE_CUDA_CHECK_LAUNCH();
}

// One block a head as soon as those fill the device.
template <class T, int E, bool kVectors, bool kStep>
void launch_split(const Context& context, const DecodeParams<T>& p, int64_t rows) {
  static const int multiprocessors = multiprocessor_count(context);
  if (rows * p.heads < 2 * multiprocessors)
    return launch_blocks<T, E, kVectors, kSplits, kStep>(context, p, rows);
  launch_blocks<T, E, kVectors, 1, kStep>(context, p, rows);
}

/// The head as vectors of E elements a lane.
template <class T>
bool has_vectors(const DecodeParams<T>& p, int elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(T);
  return p.dim == kWarpSize * elements && p.columns % elements == 0 && is_aligned(p.qkv, bytes) &&
         is_aligned(p.k, bytes) && is_aligned(p.v, bytes);
}

template <class T, int E>
void launch_decode(const Context& context, const DecodeParams<T>& p, int64_t rows) {
  has_vectors(p, E) ? launch_split<T, E, true, false>(context, p, rows)
                    : launch_split<T, E, false, false>(context, p, rows);
}
/// False: not for these heads.
template <class T, int E>
bool launch_step(const Context& context, const DecodeParams<T>& p, int64_t rows) {
  if (!has_vectors(p, E)) return false;
  launch_split<T, E, true, true>(context, p, rows);
  return true;
}

template <class T>
DecodeParams<T> params_of(const AttentionDecode& a) {
  const Tensor& k = a.cache.k;
  DecodeParams<T> p{};
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
  TE_CHECK(a.qkv.rows() * p.heads * kSplits <= INT32_MAX,
           "attention_decode: {} rows of {} heads are too many for a launch", a.qkv.rows(), p.heads);
  p.window = static_cast<int>(std::min<int64_t>(a.window, INT32_MAX));
  return p;
}

/// fn.operator()<E>() with the elements of a lane.
template <class Fn>
auto visit_dim(int64_t dim, Fn&& fn) {
  if (dim <= 32) return fn.template operator()<1>();
  if (dim <= 64) return fn.template operator()<2>();
  if (dim <= 128) return fn.template operator()<4>();
  return fn.template operator()<8>();
}

}  // namespace

void cache_append(const Context& context, const CacheAppend& args) {
  visit_hp(args.qkv.dtype,
           [&](auto zero) { launch_append<typename DeviceType<decltype(zero)>::type>(context, args); });
}

void attention_decode(const Context& context, const AttentionDecode& args) {
  visit_hp(args.qkv.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const DecodeParams<T> p = params_of<T>(args);
    visit_dim(p.dim, [&]<int E>() { launch_decode<T, E>(context, p, args.qkv.rows()); });
  });
}

bool attention_step(const Context& context, const AttentionStep& args) {
  bool launched = false;
  visit_hp(args.decode.qkv.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    DecodeParams<T> p = params_of<T>(args.decode);
    p.cos = args.cos ? args.cos.template as<float>() : nullptr;
    p.sin = args.sin ? args.sin.template as<float>() : nullptr;
    p.new_k = args.decode.cache.k.template as<T>();
    p.new_v = args.decode.cache.v.template as<T>();
    launched =
        visit_dim(p.dim, [&]<int E>() { return launch_step<T, E>(context, p, args.decode.qkv.rows()); });
  });
  return launched;
}

}  // namespace te::kernels::cuda
