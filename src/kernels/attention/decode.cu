// Attention against a cache on the GPU. The keys of one head of one row are dealt to kParts warps, kKeys at a time; a
// lane holds some elements of the head, so a warp reads a key or a value as one run of memory. Every part keeps a
// running softmax of its keys; in the end the parts are put together in a fixed order.
//
// The parts of a head are the warps of a cluster of kSplits blocks where there are few rows, so that one sequence fills
// the device, too; with many rows one block makes them one after another. The bits are the same.
//
// A step (AttentionStep) begins while the kernel in front of it makes its queries: keys and values of earlier tokens are
// there since the pass before, and a warp asks for its first kKeys of them before it waits. What comes behind may begin
// as soon as the queries are there; it reads ahead. To stand beside a block of gemm_chain.cu, in front and behind, a
// block has kThreads of up to 72 registers, and the shared memory that a chain leaves. No fence in it waits for memory
// while that streams weights: blocks of a cluster send each other values that count as bytes at a barrier of the
// receiver.
#include <algorithm>
#include <type_traits>

#include "kernels/attention/decode_cuda.h"
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/hopper/ptx.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSplits = 4;  // blocks of a cluster
constexpr int kParts = kSplits * kWarps;
constexpr int kKeys = 8;  // of a warp at once: independent loads and sums in flight

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

/// E elements of a head in a lane, as they lie in memory: neighbours, moved at once (kVectors, dim = 32 E), or every
/// 32nd one, those beyond dim being 0. As words, since elements of two bytes would take a register each.
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
  /// Rounded.
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

/// Cosines and sines of a position for the elements of a lane (Packed with kVectors).
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
  /// As kernels/rope does it, rounded likewise. The partner of an element is half a head, and so half a warp, away.
  template <class T>
  __device__ __forceinline__ void rotate(Packed<T, E, true>& head) const {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const float x = head[e], other = __shfl_xor_sync(0xffffffffu, x, kWarpSize / 2);
      const float turned = lane < kWarpSize / 2 ? __fsub_rn(__fmul_rn(x, cos[e]), __fmul_rn(other, sin[e]))
                                                : __fadd_rn(__fmul_rn(x, cos[e]), __fmul_rn(other, sin[e]));
      head.set(e, turned);
    }
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
  Packed<T, E, kVectors> key, value;
};

/// kKeys keys and their values.
template <class T, int E, bool kVectors>
struct Keys {
  Packed<T, E, kVectors> key[kKeys], value[kKeys];

  /// From `begin` on; beyond the last key it is read again and counts nothing.
  __device__ __forceinline__ void load(const T* keys, const T* values, int64_t stride, int dim, int begin,
                                       int last) {
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      key[u].load(keys + min(begin + u, last) * stride, dim);
      value[u].load(values + min(begin + u, last) * stride, dim);
    }
  }
};

/// kKeys keys from `begin` on, of which `some` has been loaded, then those kParts * kKeys further on, up to `last`.
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
    // 1. Scores.
    float score[kKeys], highest = of.largest;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      score[u] = 0.0f;
#pragma unroll
      for (int e = 0; e < E; ++e) score[u] += query[e] * some.key[u][e];
    }
#pragma unroll
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {  // beside each other, not one key after another
#pragma unroll
      for (int u = 0; u < kKeys; ++u) score[u] += __shfl_xor_sync(0xffffffffu, score[u], lanes);
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      score[u] = begin + u <= last ? score[u] * p.scale : -INFINITY;
      highest = fmaxf(highest, score[u]);
    }
    // 2. What was summed so far, to the new maximum (finite: the first key always counts).
    const float rescale = __expf(of.largest - highest);
    of.largest = highest;
    of.total *= rescale;
#pragma unroll
    for (int e = 0; e < E; ++e) of.sum[e] *= rescale;
      // 3. Their values.
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

/// A block's share of a head, in its shared memory: from each block of the cluster its maximum, total and sums.
struct Share {
  float* const memory;
  const int dim, width;  ///< of the head, of a share; the last ones may be smaller, or empty
  __device__ __forceinline__ Share(float* at, int head_dim)
      : memory(at), dim(head_dim), width(width_of(head_dim)) {}
  __device__ __forceinline__ float* largest(int c) const { return memory + c; }
  __device__ __forceinline__ float* total(int c) const { return memory + kSplits + c; }
  __device__ __forceinline__ float* sum(int c) const { return memory + 2 * kSplits + c * width; }
  /// Elements of block c's.
  __device__ __forceinline__ int count(int c) const { return max(min(width, dim - c * width), 0); }
  __device__ __forceinline__ uint32_t bytes(int c) const {
    return static_cast<uint32_t>(count(c) > 0 ? kSplits * (2 + count(c)) * sizeof(float) : 0);
  }
  static __host__ __device__ constexpr int width_of(int dim) { return (dim + kSplits - 1) / kSplits; }
  static __host__ __device__ constexpr int floats(int dim) { return kSplits * (2 + width_of(dim)); }
};

/// Of a thread: beside a chain's block (gemm_chain.cu) where keys are small enough.
template <class T, int E>
constexpr int most_registers() {
  return E * sizeof(T) <= 8 ? 72 : 255;
}

/// The parts of all blocks of a cluster to one, each block making its share of the head. `arrived` counts the bytes of
/// it. Behind begin_cluster().
template <class T, int kTurns>
__device__ __forceinline__ void merge_cluster(const PartsMemory& own, const Share& share, uint64_t* arrived,
                                              int block, T* o) {
  const int thread = static_cast<int>(threadIdx.x);
  hopper::cluster_wait();
  if (thread < share.dim) {
    const Merged mine = merge_warps(own, kTurns, 0, share.dim, thread);
    const int to = thread / share.width, d = thread % share.width;
    hopper::store_async(share.sum(block) + d, mine.sum, arrived, to);
    if (d == 0) hopper::store_async(share.largest(block), mine.largest, arrived, to);
    if (d == 0) hopper::store_async(share.total(block), mine.total, arrived, to);
  }
  if (thread >= share.count(block)) return;
  hopper::mbarrier_wait(arrived, 0);
  Merged splits[kSplits];
#pragma unroll
  for (int c = 0; c < kSplits; ++c) splits[c] = {*share.largest(c), *share.total(c), share.sum(c)[thread]};
  const Merged all = merge(splits);
  store_float(o + block * share.width + thread, all.sum / all.total);
}
/// At the start of a block: others may write to its memory when they have waited for the cluster.
__device__ __forceinline__ void begin_cluster(const Share& share, uint64_t* arrived, int block) {
  if (threadIdx.x == 0) {
    hopper::mbarrier_init(arrived, 1);
    hopper::fence_mbarrier_init();
    hopper::mbarrier_arrive_expect_tx(arrived, share.bytes(block));
  }
  __syncwarp();
  hopper::cluster_arrive();
}

/// The turns of one block to one.
template <class T, int kTurns>
__device__ __forceinline__ void merge_turns(const PartsMemory& own, int dim, T* o) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= dim) return;
  Merged splits[kSplits];
#pragma unroll
  for (int c = 0; c < kSplits; ++c) splits[c] = merge_warps(own, kTurns, c, dim, thread);
  const Merged all = merge(splits);
  store_float(o + thread, all.sum / all.total);
}

/// kBlocks: kSplits (a cluster a head) or 1. Part w * kSplits + c is that of warp w in block c.
template <class T, int E, bool kVectors, int kBlocks, bool kStep>
__global__ void __maxnreg__((most_registers<T, E>()))
    decode_kernel(const __grid_constant__ DecodeParams<T> p) {
  using Head = Packed<T, E, kVectors>;
  constexpr int kTurns = kSplits / kBlocks, kOwn = kWarps * kTurns;
  extern __shared__ float memory[];
  const int dim = kVectors ? kWarpSize * E : p.dim;
  const PartsMemory own(memory, kOwn);
  const Share share(memory + PartsMemory::floats(kOwn, dim), dim);
  __shared__ uint64_t arrived;
  const int item = static_cast<int>(blockIdx.x) / kBlocks, row = item / p.heads, head = item % p.heads;
  const int in_group = p.heads / p.groups, group = head / in_group;
  const int block = static_cast<int>(blockIdx.x) % kBlocks, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  // One warp of the group.
  const bool enters = kStep && block == 0 && warp == 0 && head % in_group == 0;
  if constexpr (kBlocks > 1) begin_cluster(share, &arrived, block);
  if constexpr (!kStep) {
    grid_dependency_wait();
    allow_dependents();
  }
  const int last = p.positions[row], earliest = p.window > 0 ? max(last + 1 - p.window, 0) : 0;
  const int64_t first = (p.sequences[row] * p.length * p.groups + static_cast<int64_t>(group)) * dim;
  const int64_t stride = static_cast<int64_t>(p.groups) * dim;
  const T* const keys = p.k + first;
  const T* const values = p.v + first;
  const T* const qkv = p.qkv + row * p.columns;
  const auto begin_of = [&](int turn) {
    return earliest + (warp * kSplits + (kBlocks == 1 ? turn : block)) * kKeys;
  };

  Keys<T, E, kVectors> some;
  Head query;
  OwnToken<T, E, kVectors> token;
  some.load(keys, values, stride, dim, begin_of(0), last);
  if constexpr (kStep) {
    Angles<E> angles;
    if (p.cos != nullptr) angles.load(p, last);
    grid_dependency_wait();
    query.load(qkv + head * dim, dim);
    token.key.load(qkv + (p.heads + group) * dim, dim);
    token.value.load(qkv + (p.heads + p.groups + group) * dim, dim);
    allow_dependents_behind(query.word());
    if (p.cos != nullptr) angles.rotate(query), angles.rotate(token.key);
  } else {
    query.load(qkv + head * dim, dim);
  }
  float asked[E];
#pragma unroll
  for (int e = 0; e < E; ++e) asked[e] = query[e];
    // 1. The parts of this block.
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int begin = begin_of(turn), slot = warp * kTurns + turn;
    if (turn > 0) some.load(keys, values, stride, dim, begin, last);
    const Softmax<E> of = attend<T, E, kVectors, kStep>(p, asked, token, keys, values, some, begin, last);
#pragma unroll
    for (int e = 0; e < E; ++e)
      if (kVectors || Head::element(e) < dim) own.sum[slot * dim + Head::element(e)] = of.sum[e];
    if (threadIdx.x % kWarpSize == 0) own.largest[slot] = of.largest, own.total[slot] = of.total;
  }
  __syncthreads();
  // 2. Together: of the warps of a block, or of a turn of one block; then of the blocks (turns).
  T* const o = p.o + (static_cast<int64_t>(row) * p.heads + head) * dim;
  if constexpr (kBlocks > 1) {
    merge_cluster<T, kTurns>(own, share, &arrived, block, o);
  } else {
    merge_turns<T, kTurns>(own, dim, o);
  }
  // 3. The row's own key and value to the cache.
  if constexpr (kStep) {
    if (!enters) return;
    token.key.store(p.new_k + first + last * stride);
    token.value.store(p.new_v + first + last * stride);
  }
}

template <class T, int E, bool kVectors, int kBlocks, bool kStep>
void launch_blocks(const Context& context, const DecodeParams<T>& p, int64_t rows) {
  constexpr auto kKernel = decode_kernel<T, E, kVectors, kBlocks, kStep>;
  const size_t bytes = sizeof(float) * static_cast<size_t>(PartsMemory::floats(kParts / kBlocks, p.dim) +
                                                           (kBlocks > 1 ? Share::floats(p.dim) : 0));
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
