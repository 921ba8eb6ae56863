// Attention against a key/value cache on the GPU. The keys of one row and head are assigned to kParts warps, kKeys at a
// time. Each lane holds some elements of the head, so a warp reads a key or a value as one contiguous run. Every part
// keeps a running softmax of its keys; finally the parts are merged in a fixed order (split-KV decoding).
//
// With few rows, the parts of a head are the warps of a cluster of kSplits blocks, so that a single sequence also fills
// the device. With many rows, one block computes the parts one after another. Both give bitwise equal results.
//
// A step (AttentionStep) starts while the preceding kernel still computes its queries. Keys and values of earlier
// tokens are complete since the previous pass, so each warp loads its first kKeys of them before it waits. The
// following kernel may start, and prefetch, as soon as the queries are complete. To share an SM with the preceding and
// the following block of decode_megakernel.cu, a block has kThreads threads of up to 72 registers and uses only the
// shared memory that the megakernel leaves. Its fences do not wait for memory while weights are streaming: blocks of a
// cluster send values to each other with st.async, which the receiver's mbarrier counts in bytes.
#include <algorithm>

#include "kernels/attention/decode_cuda.h"
#include "kernels/attention/decode_device.cuh"
#include "kernels/common/dependent_launch.cuh"

namespace te::kernels::cuda {
namespace {

using namespace decode;

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
  int64_t work;  ///< vectors to copy: rows * 2 * width / N
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

constexpr int kMaxDim = 256;

/// Registers per thread. If keys are small enough, they leave room for a block of decode_megakernel.cu on the same SM.
template <class T, int E>
constexpr int max_registers() {
  return E * sizeof(T) <= 8 ? 72 : 255;
}

/// kBlocks: kSplits (a cluster per head) or 1. Part w * kSplits + c is computed by warp w of block c.
template <class T, int E, bool kVectors, int kBlocks, bool kStep>
__global__ void __maxnreg__((max_registers<T, E>()))
    decode_kernel(const __grid_constant__ DecodeParams<T> p) {
  using Head = Packed<T, E, kVectors>;
  constexpr int kIterations = kSplits / kBlocks, kOwn = kWarps * kIterations;
  extern __shared__ float memory[];
  const int dim = kVectors ? kWarpSize * E : p.dim;
  const PartsMemory own(memory, kOwn);
  const ClusterSlice slice(memory + PartsMemory::floats(kOwn, dim), dim);
  [[maybe_unused]] __shared__ uint64_t arrived;
  const int item = static_cast<int>(blockIdx.x) / kBlocks, row = item / p.heads, head = item % p.heads;
  const int in_group = p.heads / p.groups, group = head / in_group;
  const int block = static_cast<int>(blockIdx.x) % kBlocks, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  // One warp per group.
  const bool enters = kStep && block == 0 && warp == 0 && head % in_group == 0;
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) begin_cluster(slice, &arrived, block);
#endif
  if constexpr (!kStep) {
    wait_on_dependent_grids();
    launch_dependent_grids();
  }
  const int last = p.positions[row], earliest = p.window > 0 ? max(last + 1 - p.window, 0) : 0;
  const int64_t first = (p.sequences[row] * p.length * p.groups + static_cast<int64_t>(group)) * dim;
  const int64_t stride = static_cast<int64_t>(p.groups) * dim;
  const T* const keys = p.k + first;
  const T* const values = p.v + first;
  const T* const qkv = p.qkv + row * p.columns;
  const auto begin_of = [&](int iteration) {
    return earliest + (warp * kSplits + (kBlocks == 1 ? iteration : block)) * kKeys;
  };

  Keys<T, E, kVectors> some;
  Head query;
  OwnToken<T, E, kVectors> token;
  some.load(keys, values, stride, dim, begin_of(0), last);
  if constexpr (kStep) {
    Angles<E> angles;
    if (p.cos != nullptr) angles.load(p, last);
    wait_on_dependent_grids();
    query.load(qkv + head * dim, dim);
    token.key.load(qkv + (p.heads + group) * dim, dim);
    token.value.load(qkv + (p.heads + p.groups + group) * dim, dim);
    launch_dependent_grids_after(query.word());
    if (p.cos != nullptr) angles.rotate(query), angles.rotate(token.key);
  } else {
    query.load(qkv + head * dim, dim);
  }
  float asked[E];
#pragma unroll
  for (int e = 0; e < E; ++e) asked[e] = query[e];
    // 1. The parts of this block
#pragma unroll 1
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const int begin = begin_of(iteration), slot = warp * kIterations + iteration;
    if (iteration > 0) some.load(keys, values, stride, dim, begin, last);
    const Softmax<E> of = attend<T, E, kVectors, kStep>(p, asked, token, keys, values, some, begin, last);
#pragma unroll
    for (int e = 0; e < E; ++e)
      if (kVectors || Head::element(e) < dim) own.sum[slot * dim + Head::element(e)] = of.sum[e];
    if (threadIdx.x % kWarpSize == 0) own.largest[slot] = of.largest, own.total[slot] = of.total;
  }
  __syncthreads();
  // 2. Merge the parts of a block's warps, or of one iteration of a single block; then merge blocks (or iterations)
  T* const o = p.o + (static_cast<int64_t>(row) * p.heads + head) * dim;
  if constexpr (kBlocks > 1) {
#if __CUDA_ARCH__ >= 900
    merge_cluster<T, kIterations>(own, slice, &arrived, block, o);
#endif
  } else {
    merge_iterations<T, kIterations>(own, dim, o);
  }
  // 3. Write the row's own key and value to the cache
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
                                                           (kBlocks > 1 ? ClusterSlice::floats(p.dim) : 0));
  static_assert((PartsMemory::floats(kParts, kMaxDim) + ClusterSlice::floats(kMaxDim)) * sizeof(float) <=
                48 * 1024);
  launch_dependent_clusters(context, kKernel, static_cast<unsigned>(rows * p.heads * kBlocks), kThreads,
                            bytes, true, kBlocks, p);
}

// Uses one block per head as soon as those fill the device, or if it has no clusters.
template <class T, int E, bool kVectors, bool kStep>
void launch_split(const Context& context, const DecodeParams<T>& p, int64_t rows) {
  static const int num_sms = sm_count(context);
  if (rows * p.heads < 2 * num_sms && device_caps(context).clusters)
    return launch_blocks<T, E, kVectors, kSplits, kStep>(context, p, rows);
  launch_blocks<T, E, kVectors, 1, kStep>(context, p, rows);
}

/// Whether heads can be read as vectors of E elements per lane.
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
/// Returns false if these heads are not supported.
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
           "attention_decode: {} rows of {} heads are too many for one launch", a.qkv.rows(), p.heads);
  p.window = static_cast<int>(std::min<int64_t>(a.window, INT32_MAX));
  return p;
}

/// Calls fn.operator()<E>() with the number of elements per lane.
template <class Fn>
auto visit_dim(int64_t dim, Fn&& fn) {
  if (dim <= 32) return fn.template operator()<1>();
  if (dim <= 64) return fn.template operator()<2>();
  if (dim <= 128) return fn.template operator()<4>();
  return fn.template operator()<8>();
}

}  // namespace

void cache_append(const Context& context, const CacheAppend& args) {
  visit_high_precision(args.qkv.dtype, [&](auto zero) {
    launch_append<typename DeviceType<decltype(zero)>::type>(context, args);
  });
}

void attention_decode(const Context& context, const AttentionDecode& args) {
  visit_high_precision(args.qkv.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const DecodeParams<T> p = params_of<T>(args);
    visit_dim(p.dim, [&]<int E>() { launch_decode<T, E>(context, p, args.qkv.rows()); });
  });
}

bool attention_step(const Context& context, const AttentionStep& args) {
  bool launched = false;
  visit_high_precision(args.decode.qkv.dtype, [&](auto zero) {
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
