// Building blocks of attention against a cache (decode.cu): elements in their memory format, a warp's partial results
// over its keys, and their merging over the warps of a block and the blocks of a cluster.
#pragma once

#include <type_traits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/hopper/ptx.cuh"

namespace te::kernels::cuda::decode {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSplits = 4;  // blocks per cluster
constexpr int kParts = kSplits * kWarps;
constexpr int kKeys = 8;  // per warp and iteration: independent loads and sums in flight

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
  // Only for a step (AttentionStep): a row's own key and value are read from qkv and written to the cache.
  const float* cos;  ///< null: no rotation
  const float* sin;
  T* new_k;
  T* new_v;
};

/// A lane's E elements of a head in their memory format: consecutive elements in one access (kVectors, dim = 32 E), or
/// every 32nd element, with zeros beyond dim. Stored as words, because 2-byte elements would take a register each.
template <class T, int E, bool kVectors>
class Packed {
 public:
  __device__ __forceinline__ void load(const T* head, int dim) {
    const int lane = threadIdx.x % kWarpSize;
    if constexpr (kVectors) {
      words_ = *reinterpret_cast<const Words*>(head + lane * E);
    } else {
      words_ = {};
#pragma unroll
      for (int e = 0; e < E; ++e)
        set(e, e * kWarpSize + lane < dim ? load_float(head + e * kWarpSize + lane) : 0.0f);
    }
  }
  __device__ __forceinline__ uint32_t word() const {
    return words_.v[0];
  }
  __device__ __forceinline__ void store(T* head) const {
    static_assert(kVectors);
    *reinterpret_cast<Words*>(head + threadIdx.x % kWarpSize * E) = words_;
  }
  __device__ __forceinline__ float operator[](int e) const {
    if constexpr (sizeof(T) == 4) return __uint_as_float(words_.v[e]);
    const auto bits = static_cast<unsigned short>(words_.v[e / kInWord] >> e % kInWord * 16);
    if constexpr (std::is_same_v<T, __half>) return __half2float(__ushort_as_half(bits));
    return __uint_as_float(uint32_t{bits} << 16);
  }
  /// Sets an element, rounded to T.
  __device__ __forceinline__ void set(int e, float x) {
    T value;
    store_float(&value, x);
    if constexpr (sizeof(T) == 4) {
      words_.v[e] = __float_as_uint(value);
    } else {
      const uint32_t bits = *reinterpret_cast<const unsigned short*>(&value);
      Word& word = words_.v[e / kInWord];
      word =
          static_cast<Word>(e % kInWord == 0 ? (word & 0xffff0000u) | bits : (word & 0xffffu) | bits << 16);
    }
  }
  static __device__ __forceinline__ int element(int e) {
    const int lane = threadIdx.x % kWarpSize;
    return kVectors ? lane * E + e : e * kWarpSize + lane;
  }

 private:
  static constexpr int kBytes = E * static_cast<int>(sizeof(T));
  using Word = std::conditional_t<kBytes == 2, uint16_t, uint32_t>;
  static constexpr int kInWord = static_cast<int>(sizeof(Word) / sizeof(T));
  using Words = Vector<Word, kBytes / static_cast<int>(sizeof(Word))>;
  Words words_;
};

/// Cosines and sines of a position for a lane's elements (Packed with kVectors).
template <int E>
struct Angles {
  float cos[E], sin[E];

  template <class T>
  __device__ __forceinline__ void load(const DecodeParams<T>& p, int position) {
    const int lane = threadIdx.x % kWarpSize, half = p.dim / 2;
    const int64_t angle = int64_t{position} * half + lane % (kWarpSize / 2) * E;
#pragma unroll
    for (int e = 0; e < E; ++e) cos[e] = p.cos[angle + e], sin[e] = p.sin[angle + e];
  }
  /// Rotates like kernels/rope, with the same rounding. An element's partner is half a head, and thus half a warp,
  /// away.
  template <class T>
  __device__ __forceinline__ void rotate(Packed<T, E, true>& head) const {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const float x = head[e], other = __shfl_xor_sync(kAllLanes, x, kWarpSize / 2);
      const float turned = lane < kWarpSize / 2 ? __fsub_rn(__fmul_rn(x, cos[e]), __fmul_rn(other, sin[e]))
                                                : __fadd_rn(__fmul_rn(x, cos[e]), __fmul_rn(other, sin[e]));
      head.set(e, turned);
    }
  }
};

/// Partial result: sums of values weighted by exp(score - largest), and the sum of these weights.
template <int E>
struct Softmax {
  float largest = -INFINITY, total = 0.0f, sum[E] = {};
};

/// Key and value of a row's own token.
template <class T, int E, bool kVectors>
struct OwnToken {
  Packed<T, E, kVectors> key, value;
};

/// kKeys keys with their values.
template <class T, int E, bool kVectors>
struct Keys {
  Packed<T, E, kVectors> key[kKeys], value[kKeys];

  /// Loads keys from `begin` on. Beyond the last key, the last one is read again with weight 0.
  __device__ __forceinline__ void load(const T* keys, const T* values, int64_t stride, int dim, int begin,
                                       int last) {
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      key[u].load(keys + min(begin + u, last) * stride, dim);
      value[u].load(values + min(begin + u, last) * stride, dim);
    }
  }
};

/// Attends to kKeys keys from `begin` on, which `some` holds, then to those kParts * kKeys further on, up to `last`.
/// kStep: the last one is `own`.
template <class T, int E, bool kVectors, bool kStep>
__device__ __forceinline__ Softmax<E> attend(const DecodeParams<T>& p, const float (&query)[E],
                                             const OwnToken<T, E, kVectors>& own, const T* keys,
                                             const T* values, Keys<T, E, kVectors>& some, int begin,
                                             int last) {
  const int64_t stride = static_cast<int64_t>(p.groups) * p.dim;
  Softmax<E> of;
  while (begin <= last) {
    if constexpr (kStep) {
#pragma unroll
      for (int u = 0; u < kKeys; ++u)
        if (begin + u >= last) some.key[u] = own.key, some.value[u] = own.value;
    }
    // 1. Scores
    float score[kKeys], highest = of.largest;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      score[u] = 0.0f;
#pragma unroll
      for (int e = 0; e < E; ++e) score[u] += query[e] * some.key[u][e];
    }
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0;
         lanes /= 2) {  // interleaved over the keys, not one key after another
#pragma unroll
      for (int u = 0; u < kKeys; ++u) score[u] += __shfl_xor_sync(kAllLanes, score[u], lanes);
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      score[u] = begin + u <= last ? score[u] * p.scale : -INFINITY;
      highest = fmaxf(highest, score[u]);
    }
    // 2. Rescale earlier sums to the new maximum (finite, because the first key always counts)
    const float rescale = __expf(of.largest - highest);
    of.largest = highest;
    of.total *= rescale;
#pragma unroll
    for (int e = 0; e < E; ++e) of.sum[e] *= rescale;
      // 3. Values
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const float weight = __expf(score[u] - highest);
      of.total += weight;
#pragma unroll
      for (int e = 0; e < E; ++e) of.sum[e] += weight * some.value[u][e];
    }
    begin += kParts * kKeys;
    if (begin <= last) some.load(keys, values, stride, p.dim, begin, last);
  }
  return of;
}

/// Shared memory for `parts` parts: their maxima, totals and sums [parts, dim].
struct PartsMemory {
  float *largest, *total, *sum;
  __device__ __forceinline__ PartsMemory(float* memory, int parts)
      : largest(memory), total(memory + parts), sum(memory + 2 * parts) {}
  static __host__ __device__ constexpr int floats(int parts, int dim) { return parts * (dim + 2); }
};

/// Partial result for one element of a head over some keys.
struct Merged {
  float largest = -INFINITY, total = 0.0f, sum = 0.0f;
};

/// Merges `kCount` partial results in order; those without keys are ignored.
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

/// Merges element d over the parts of block c of a cluster, or of iteration c of a single block: slots w * stride +
/// offset.
__device__ __forceinline__ Merged merge_warps(const PartsMemory& m, int stride, int offset, int dim, int d) {
  Merged warps[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const int slot = w * stride + offset;
    warps[w] = {m.largest[slot], m.total[slot], m.sum[slot * dim + d]};
  }
  return merge(warps);
}

/// A block's slice of a head in its shared memory: maximum, total and sums from each block of the cluster.
struct ClusterSlice {
  float* const memory;
  const int dim, width;  ///< of the head, of a slice; the last slices may be smaller or empty
  __device__ __forceinline__ ClusterSlice(float* at, int head_dim)
      : memory(at), dim(head_dim), width(width_of(head_dim)) {}
  __device__ __forceinline__ float* largest(int c) const { return memory + c; }
  __device__ __forceinline__ float* total(int c) const { return memory + kSplits + c; }
  __device__ __forceinline__ float* sum(int c) const { return memory + 2 * kSplits + c * width; }
  /// Number of elements of block c's slice.
  __device__ __forceinline__ int count(int c) const { return max(min(width, dim - c * width), 0); }
  __device__ __forceinline__ uint32_t bytes(int c) const {
    return static_cast<uint32_t>(count(c) > 0 ? kSplits * (2 + count(c)) * sizeof(float) : 0);
  }
  static __host__ __device__ constexpr int width_of(int dim) { return (dim + kSplits - 1) / kSplits; }
  static __host__ __device__ constexpr int floats(int dim) { return kSplits * (2 + width_of(dim)); }
};

/// Merges the parts of all blocks of a cluster; each block computes its slice of the head. `arrived` counts the bytes
/// of the slice. Call begin_cluster() first.
template <class T, int kIterations>
__device__ __forceinline__ void merge_cluster(const PartsMemory& own, const ClusterSlice& slice,
                                              uint64_t* arrived, int block, T* o) {
  const int thread = static_cast<int>(threadIdx.x);
  hopper::cluster_wait();
  if (thread < slice.dim) {
    const Merged mine = merge_warps(own, kIterations, 0, slice.dim, thread);
    const int to = thread / slice.width, d = thread % slice.width;
    hopper::store_async(slice.sum(block) + d, mine.sum, arrived, to);
    if (d == 0) hopper::store_async(slice.largest(block), mine.largest, arrived, to);
    if (d == 0) hopper::store_async(slice.total(block), mine.total, arrived, to);
  }
  if (thread >= slice.count(block)) return;
  hopper::mbarrier_wait(arrived, 0);
  Merged splits[kSplits];
#pragma unroll
  for (int c = 0; c < kSplits; ++c) splits[c] = {*slice.largest(c), *slice.total(c), slice.sum(c)[thread]};
  const Merged all = merge(splits);
  store_float(o + block * slice.width + thread, all.sum / all.total);
}
/// Called at the start of a block. Other blocks may write to its memory after they have waited for the cluster.
__device__ __forceinline__ void begin_cluster(const ClusterSlice& slice, uint64_t* arrived, int block) {
  if (threadIdx.x == 0) {
    hopper::mbarrier_init(arrived, 1);
    hopper::fence_mbarrier_init();
    hopper::mbarrier_arrive_expect_tx(arrived, slice.bytes(block));
  }
  __syncwarp();
  hopper::cluster_arrive();
}

/// Merges the iterations of a single block.
template <class T, int kIterations>
__device__ __forceinline__ void merge_iterations(const PartsMemory& own, int dim, T* o) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= dim) return;
  Merged splits[kSplits];
#pragma unroll
  for (int c = 0; c < kSplits; ++c) splits[c] = merge_warps(own, kIterations, c, dim, thread);
  const Merged all = merge(splits);
  store_float(o + thread, all.sum / all.total);
}

}  // namespace te::kernels::cuda::decode
