// Backward pass of tiled_attention.h, with the formulas of attention_cpu.cpp. One launch computes delta. A second
// computes dq in blocks that own queries and iterate over keys. A third computes dk and dv in blocks that own keys and
// iterate over the queries of all heads of their group. Scores are computed twice, but no block waits for another one.
#include "kernels/attention/tiled_attention.h"
#include "kernels/attention/tiled_device.cuh"

namespace te::kernels::cuda {
namespace {

using namespace tiled;

template <class T>
struct BackwardParams {
  const T *qkv, *kv, *o, *d_o;
  T *dqkv, *dkv;
  const float* lse;
  float* delta;
  float scale;
  Layout layout;
  FirstKeys first_keys;
  Dropout dropout;
};

// --- delta ---------------------------------------------------------------------------------------------------

/// One warp per query and head: delta = o . d_o.
template <class T>
__global__ void __launch_bounds__(kThreads)
    tiled_delta_kernel(const __grid_constant__ BackwardParams<T> p, int64_t count) {
  const Layout& l = p.layout;
  const int64_t id = int64_t{blockIdx.x} * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (id >= count) return;
  const int head = static_cast<int>(id % l.heads);
  const int64_t query = id / l.heads;
  const int b = static_cast<int>(query / l.queries), i = static_cast<int>(query % l.queries);
  const int64_t at = l.o(b, head, i);
  float sum = 0.0f;
  for (int d = static_cast<int>(threadIdx.x) % kWarpSize; d < l.dim; d += kWarpSize)
    sum = fmaf(load_float(p.o + at + d), load_float(p.d_o + at + d), sum);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarpSize == 0) p.delta[l.of_query(b, head, i)] = sum;
}

// --- dq ------------------------------------------------------------------------------------------------------

template <class G>
struct QuerySide {
  float q[G::kBlockM * G::kStride], d_o[G::kBlockM * G::kStride];
  float k[G::kBlockN * G::kStride], v[G::kBlockN * G::kStride];
  float ds[G::kBlockM * G::kWeightStride];
  uint8_t keep[G::kBlockM * G::kBlockN];
};

/// Values of one query.
struct QueryNumbers {
  float lse, delta;
  int begin, end;  ///< range of the keys that it sees

  /// If not `there`, returns a query that sees no keys.
  template <class T>
  __device__ __forceinline__ static QueryNumbers of(const BackwardParams<T>& p, int b, int head, int i,
                                                    bool there) {
    if (!there) return {0.0f, 0.0f, 0, 0};
    const int position = p.layout.position + i;
    const int64_t at = p.layout.of_query(b, head, i);
    return {p.lse[at], p.delta[at], p.first_keys.of(b, position), position + 1};
  }
  __device__ __forceinline__ bool sees(int key) const { return key >= begin && key < end; }
};

template <class T, class G>
__global__ void __launch_bounds__(kThreads) tiled_dq_kernel(const __grid_constant__ BackwardParams<T> p) {
  extern __shared__ __align__(16) unsigned char memory[];
  QuerySide<G>& shared = *reinterpret_cast<QuerySide<G>*>(memory);
  const Layout& l = p.layout;
  const BlockTask task(l.batch, l.heads);
  const int b = task.batch, head = task.head, group = head / (l.heads / l.groups);
  const int first = (task.tiles - 1 - task.tile) * G::kBlockM;  // longest first
  const int count = min(G::kBlockM, l.queries - first), last = l.position + first + count - 1;
  load_tile<G::kBlockM, G::kDim>(shared.q, p.qkv + l.q(b, head, first), l.qkv_row, count, l.dim);
  load_tile<G::kBlockM, G::kDim>(shared.d_o, p.d_o + l.o(b, head, first), l.o_row, count, l.dim);
  QueryNumbers mine[G::kRows];
#pragma unroll
  for (int i = 0; i < G::kRows; ++i) {
    const int row = thread_y() + i * kSide;
    mine[i] = QueryNumbers::of(p, b, head, first + row, row < count);
  }
  RowSums<G> dq;
  for (int key = p.first_keys.of(b, l.position + first) / G::kBlockN * G::kBlockN; key <= last;
       key += G::kBlockN) {
    const int keys = min(G::kBlockN, l.keys - key);
    load_tile<G::kBlockN, G::kDim>(shared.k, p.kv + l.k(b, group, key), l.kv_row, keys, l.dim);
    load_tile<G::kBlockN, G::kDim>(shared.v, p.kv + l.v(b, group, key), l.kv_row, keys, l.dim);
    if (p.dropout.wanted())
      p.dropout.template fill<G::kBlockM, G::kBlockN>(shared.keep, b, head, l.position + first, key);
    __syncthreads();
    float s[G::kRows][G::kCols], dp[G::kRows][G::kCols];
    multiply_rows<G>(shared.q, shared.k, s);
    multiply_rows<G>(shared.d_o, shared.v, dp);
#pragma unroll
    for (int i = 0; i < G::kRows; ++i)
#pragma unroll
      for (int j = 0; j < G::kCols; ++j) {
        const int row = thread_y() + i * kSide, col = thread_x() + j * kSide;
        const float keep = p.dropout.wanted() ? p.dropout.factor(shared.keep[row * G::kBlockN + col]) : 1.0f;
        const float probability = expf(s[i][j] * p.scale - mine[i].lse);
        shared.ds[row * G::kWeightStride + col] =
            mine[i].sees(key + col) ? probability * (keep * dp[i][j] - mine[i].delta) : 0.0f;
      }
    __syncthreads();
    dq.add(shared.ds, shared.k);
    __syncthreads();  // keys and weights may be overwritten now
  }
#pragma unroll
  for (int i = 0; i < G::kRows; ++i) dq.scale(i, p.scale);
  dq.store(p.dqkv + l.q(b, head, first), l.qkv_row, count, l.dim);
}

// --- dk, dv --------------------------------------------------------------------------------------------------

template <class G>
struct KeySide {
  float k[G::kBlockM * G::kStride], v[G::kBlockM * G::kStride];
  float q[G::kBlockN * G::kStride], d_o[G::kBlockN * G::kStride];
  float p[G::kBlockM * G::kWeightStride], ds[G::kBlockM * G::kWeightStride];  ///< [key][query]
  QueryNumbers queries[G::kBlockN];
  uint8_t keep[G::kBlockN * G::kBlockM];  ///< [query][key]
};

/// Adds the contributions of `count` queries of a head, from `first` on, to dk and dv of the block's keys, from `key`
/// on. `shared` holds the keys and values.
template <class T, class G>
__device__ __forceinline__ void add_queries(const BackwardParams<T>& p, int b, int head, int first, int count,
                                            int key, RowSums<G>& dk, RowSums<G>& dv, KeySide<G>& shared) {
  const Layout& l = p.layout;
  load_tile<G::kBlockN, G::kDim>(shared.q, p.qkv + l.q(b, head, first), l.qkv_row, count, l.dim);
  load_tile<G::kBlockN, G::kDim>(shared.d_o, p.d_o + l.o(b, head, first), l.o_row, count, l.dim);
  for (int i = static_cast<int>(threadIdx.x); i < G::kBlockN; i += kThreads)
    shared.queries[i] = QueryNumbers::of(p, b, head, first + i, i < count);
  if (p.dropout.wanted())
    p.dropout.template fill<G::kBlockN, G::kBlockM>(shared.keep, b, head, l.position + first, key);
  __syncthreads();
  float s[G::kRows][G::kCols], dp[G::kRows][G::kCols];
  multiply_rows<G>(shared.k, shared.q, s);
  multiply_rows<G>(shared.v, shared.d_o, dp);
#pragma unroll
  for (int j = 0; j < G::kCols; ++j) {
    const int col = thread_x() + j * kSide;
    const QueryNumbers query = shared.queries[col];
#pragma unroll
    for (int i = 0; i < G::kRows; ++i) {
      const int row = thread_y() + i * kSide;
      const float keep = p.dropout.wanted() ? p.dropout.factor(shared.keep[col * G::kBlockM + row]) : 1.0f;
      const float probability = query.sees(key + row) ? expf(s[i][j] * p.scale - query.lse) : 0.0f;
      shared.p[row * G::kWeightStride + col] = keep * probability;
      shared.ds[row * G::kWeightStride + col] =
          query.sees(key + row) ? probability * (keep * dp[i][j] - query.delta) : 0.0f;
    }
  }
  __syncthreads();
  dv.add(shared.p, shared.d_o);
  dk.add(shared.ds, shared.q);
  __syncthreads();  // the tiles may be overwritten now
}

template <class T, class G>
__global__ void __launch_bounds__(kThreads) tiled_dkv_kernel(const __grid_constant__ BackwardParams<T> p) {
  extern __shared__ __align__(16) unsigned char memory[];
  KeySide<G>& shared = *reinterpret_cast<KeySide<G>*>(memory);
  const Layout& l = p.layout;
  const BlockTask task(l.batch, l.groups);
  const int b = task.batch, group = task.head;
  const int key = task.tile * G::kBlockM, count = min(G::kBlockM, l.keys - key);
  load_tile<G::kBlockM, G::kDim>(shared.k, p.kv + l.k(b, group, key), l.kv_row, count, l.dim);
  load_tile<G::kBlockM, G::kDim>(shared.v, p.kv + l.v(b, group, key), l.kv_row, count, l.dim);
  RowSums<G> dk, dv;
  const int per_group = l.heads / l.groups;
  for (int head = group * per_group; head < (group + 1) * per_group; ++head) {
    // Skips queries before the block's first key, and queries whose first key is after the block's last one.
    for (int first = max(0, key - l.position) / G::kBlockN * G::kBlockN; first < l.queries;
         first += G::kBlockN) {
      if (p.first_keys.of(b, l.position + first) >= key + count) break;
      add_queries<T, G>(p, b, head, first, min(G::kBlockN, l.queries - first), key, dk, dv, shared);
    }
  }
#pragma unroll
  for (int i = 0; i < G::kRows; ++i) dk.scale(i, p.scale);
  dk.store(p.dkv + l.k(b, group, key), l.kv_row, count, l.dim);
  dv.store(p.dkv + l.v(b, group, key), l.kv_row, count, l.dim);
}

}  // namespace

int64_t tiled_backward_workspace_bytes(const AttentionShape& shape) {
  return shape.batch * shape.num_heads * shape.queries() * static_cast<int64_t>(sizeof(float));
}

void tiled_backward(const Context& context, const AttentionBackward& args) {
  const AttentionShape& s = args.shape;
  const bool range = s.has_range();
  const Tensor &kv = range ? args.kv : args.qkv, &dkv = range ? args.dkv : args.dqkv;
  for (const Tensor* tensor : {&args.qkv, &kv, &args.o, &args.d_o, &args.dqkv, &dkv})
    TE_CHECK(is_aligned(tensor->data, 16), "attention_backward: tensors must be aligned to 16 bytes");
  TE_CHECK(static_cast<int64_t>(args.workspace.bytes()) >= tiled_backward_workspace_bytes(s),
           "attention_backward: workspace has {} bytes, but needs {} (attention_workspace_bytes)",
           args.workspace.bytes(), tiled_backward_workspace_bytes(s));
  dispatch(context, args.qkv.dtype, s.head_dim, [&]<class T, class G>() {
    const BackwardParams<T> params{args.qkv.as<T>(),
                                   kv.as<T>(),
                                   args.o.as<T>(),
                                   args.d_o.as<T>(),
                                   args.dqkv.as<T>(),
                                   dkv.as<T>(),
                                   args.lse.as<float>(),
                                   args.workspace.as<float>(),
                                   s.softmax_scale,
                                   Layout(s),
                                   first_keys_of(s, args.document_start),
                                   Dropout(s, args.dropout_seed)};
    const int64_t count = s.batch * s.num_heads * s.queries();
    tiled_delta_kernel<T>
        <<<ceil_div(count, kThreads / kWarpSize), kThreads, 0, cuda_stream(context)>>>(params, count);
    TE_CUDA_CHECK_LAUNCH();
    const int64_t query_blocks = s.batch * s.num_heads * ceil_div(params.layout.queries, G::kBlockM);
    launch_tiles<QuerySide<G>>(context, tiled_dq_kernel<T, G>, query_blocks, params);
    const int64_t key_blocks = s.batch * s.num_query_groups * ceil_div(params.layout.keys, G::kBlockM);
    launch_tiles<KeySide<G>>(context, tiled_dkv_kernel<T, G>, key_blocks, params);
  });
}

}  // namespace te::kernels::cuda
