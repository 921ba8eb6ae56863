// Forward pass of causal attention for Hopper: o = softmax(scale q k^T) v, and the logarithm of the softmax
// denominator.
//
// Follows Shah et al. (arXiv 2407.08608). A task is a block of 128 queries of one head, 64 for each of two consumer
// warpgroups. A producer thread loads the tiles of keys and values that the queries see, from the diagonal down; the
// consumers compute an online softmax. Three techniques keep the tensor cores busy. The scores of a tile and the GEMM
// with v of the previous tile are issued together. The last GEMM with v of a task overlaps with the first scores of the
// next task. And the warpgroups alternate in issuing their GEMMs (ping-pong), so that one computes exponentials while
// the GEMMs of the other one run.
//
// A tile scheduler assigns tasks to thread blocks as these become free, long tasks first, from a group of heads whose
// keys and values fit into the L2 cache.
//
// With documents or a window (kBounded), each query has a first key (first_key.h). Tiles before the task's first keys
// are not loaded, and tiles that some queries see only in part are masked. With a query range (also kBounded), keys and
// values are in a separate tensor, and query blocks are numbered by the key blocks in which they end, starting at the
// range's first one.
#include <algorithm>

#include "kernels/attention/first_key.h"
#include "kernels/attention/flash_attention.h"
#include "kernels/hopper/hopper.cuh"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"

namespace te::kernels {
namespace {

using namespace hopper;

constexpr int kQueries = 128;            // queries per task
constexpr int kKeys = cuda::kFlashKeys;  // keys per tile
constexpr float kInfinity = __builtin_huge_valf();
constexpr int64_t kBytesAtOnce = int64_t{16} << 20;  // of keys and values in the L2 cache

// Queries block * kQueries, ... of one head, as positions in the sequence.
template <bool kBounded>
struct Task {
  int batch, head, block;
  __device__ bool is_end() const { return batch < 0; }
  __device__ int first_tile() const { return 0; }
};
template <>
struct Task<true> : Task<false> {
  int first;  // first key of the first query; it is in the first tile
  int clear;  // all queries see this key and later ones, except for causality
  __device__ int first_tile() const { return first / kKeys; }
};

template <int kHeadDim, bool kBounded>
struct ForwardShared {
  static constexpr int kChunks = kHeadDim / kTileColumns;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;  // tiles of keys and of values in flight
  static constexpr int kQueryStages = kHeadDim == 64 ? 3 : 2;

  __nv_bfloat16 q[kQueryStages][kChunks][kQueries * kTileColumns];  // reused for o
  __nv_bfloat16 k[kStages][kChunks][kKeys * kTileColumns];
  __nv_bfloat16 v[kStages][kChunks][kKeys * kTileColumns];
  Ring<kQueryStages> queries;  // filled with queries, released after o is stored
  Signal<kQueryStages, Side::consumer> o_ready[kConsumers];  // the warpgroup's o has replaced its queries
  Ring<kStages> keys, values;
  Task<kBounded> task[kQueryStages];

  __device__ void init_barriers() {
    queries.init(1, kConsumers);
    for (auto& of_warpgroup : o_ready) of_warpgroup.init(kWarps);
    keys.init(1, kConsumerWarps);
    values.init(1, kConsumerWarps);
    fence_mbarrier_init();
  }
};

struct ForwardParams {
  float* lse;  // [batch, heads, queries]
  int* next_task;
  int queries, num_heads, num_groups, blocks, tasks;
  int key_column;     // column of the first key head
  int heads;          // of all samples together
  int heads_at_once;  // heads whose tasks run concurrently
  float scale, scale_log2e;
  // kBounded:
  FirstKeys first_keys;
  int first_block;  // first block of queries
};

__device__ Task<false> task_of(const ForwardParams& p, int number, int first_block) {
  const int together = p.heads_at_once * p.blocks, first = number / together * p.heads_at_once;
  const int heads = min(p.heads_at_once, p.heads - first), within = number % together;
  const int head = first + within % heads;
  return {head / p.num_heads, head % p.num_heads, first_block + p.blocks - 1 - within / heads};
}

// Index of the task's first query within the call.
template <bool kBounded>
__device__ int first_query(const ForwardParams& p, const Task<false>& task) {
  return (kBounded ? task.block - p.first_block : task.block) * kQueries;
}

// --- producer threads ----------------------------------------------------------------------------------------------

template <int kHeadDim, bool kBounded>
__device__ void load_tiles(ForwardShared<kHeadDim, kBounded>& s, const ForwardParams& p,
                           const CUtensorMap* queries_map, const CUtensorMap* keys_map) {
  using S = ForwardShared<kHeadDim, kBounded>;
  const auto load = [&](const CUtensorMap* map, auto& tile, auto& ring, auto slot, int column, int row,
                        int batch) {
    ring.commit(slot, sizeof(tile));
    for (int c = 0; c < S::kChunks; ++c)
      tma_load(tile[c], map, ring.full(slot), column + c * kTileColumns, row, batch);
  };
  typename Ring<S::kStages>::Producer stage;
  for (typename Ring<S::kQueryStages>::Producer at;; at.next()) {
    const int number = atomicAdd(p.next_task, 1);
    const auto queries = s.queries.acquire(at);
    if (number >= p.tasks) {
      s.task[queries.stage()].batch = -1;
      s.queries.commit(queries);
      s.keys.commit(s.keys.acquire(stage));  // dummy stage that Forward::step waits for
      return;
    }
    Task<kBounded> task;
    static_cast<Task<false>&>(task) = task_of(p, number, kBounded ? p.first_block : 0);
    if constexpr (kBounded) {
      task.first = p.first_keys.of_padded(task.batch, task.block * kQueries);
      task.clear = p.first_keys.of_padded(task.batch, task.block * kQueries + kQueries - 1);
    }
    s.task[queries.stage()] = task;
    load(queries_map, s.q[queries.stage()], s.queries, queries, task.head * kHeadDim,
         first_query<kBounded>(p, task), task.batch);
    const int group = task.head / (p.num_heads / p.num_groups);
    const int k_column = p.key_column + group * kHeadDim, v_column = k_column + p.num_groups * kHeadDim;
    for (int tile = task.block; tile >= task.first_tile(); --tile, stage.next()) {
      load(keys_map, s.k[stage.stage()], s.keys, s.keys.acquire(stage), k_column, tile * kKeys, task.batch);
      load(keys_map, s.v[stage.stage()], s.values, s.values.acquire(stage), v_column, tile * kKeys,
           task.batch);
    }
  }
}

// Stores a warpgroup's o to memory, then releases the query stage.
template <int kHeadDim, bool kBounded>
__device__ void store_o(ForwardShared<kHeadDim, kBounded>& s, const ForwardParams& p, const CUtensorMap* map,
                        int warpgroup) {
  using S = ForwardShared<kHeadDim, kBounded>;
  for (typename Ring<S::kQueryStages>::Consumer at;; at.next()) {
    const auto slot = s.queries.wait(at);
    const Task<false> task = s.task[slot.stage()];
    if (task.is_end()) return;
    s.o_ready[warpgroup].wait(at);
    for (int c = 0; c < S::kChunks; ++c)
      tma_store(map, s.q[slot.stage()][c] + warpgroup * 64 * kTileColumns,
                task.head * kHeadDim + c * kTileColumns, first_query<kBounded>(p, task) + warpgroup * 64,
                task.batch);
    bulk_commit();
    bulk_wait_read();
    s.queries.release(slot);
  }
}

// --- softmax of a warpgroup's 64 queries; a thread has two of them, 8 rows apart ------------------------------------

struct Rows {
  float max[2], sum[2];  // of unscaled scores; of this thread's exponentials
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// scores -> exp(scale (scores - max)), added to rows. factor: rescales the earlier sums.
template <bool kFirst>
__device__ __forceinline__ void softmax(float (&scores)[kKeys / 2], Rows& rows, float (&factor)[2],
                                        float scale_log2e) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // Four independent chains each, because few warps are available to hide latencies.
    float partial_max[4], sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) partial_max[i] = fmaxf(scores[i * 4 + h * 2], scores[i * 4 + h * 2 + 1]);
#pragma unroll
    for (int g = 4; g < kKeys / 8; ++g)
      partial_max[g % 4] = fmaxf(fmaxf(partial_max[g % 4], scores[g * 4 + h * 2]), scores[g * 4 + h * 2 + 1]);
    float max = quad_max(fmaxf(fmaxf(partial_max[0], partial_max[1]), fmaxf(partial_max[2], partial_max[3])));
    if (!kFirst) {
      max = fmaxf(max, rows.max[h]);
      factor[h] = exp2_fast((rows.max[h] - max) * scale_log2e);
    }
    rows.max[h] = max;
    const float shift = max * scale_log2e;
#pragma unroll
    for (int g = 0; g < kKeys / 8; ++g)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[g * 4 + h * 2 + e];
        x = exp2_fast(fmaf(x, scale_log2e, -shift));
        sum[g % 2 * 2 + e] = g < 2 ? x : sum[g % 2 * 2 + e] + x;
      }
    const float all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    rows.sum[h] = kFirst ? all : fmaf(rows.sum[h], factor[h], all);
  }
}

// Masks the keys after the query in the tile on the diagonal.
__device__ __forceinline__ void mask(float (&scores)[kKeys / 2], int row, int column) {
  asm volatile("" : "+r"(row));  // keeps the compiler from saving all comparisons for the next task
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i)
    if (i / 4 * 8 + i % 2 + column > row + i % 4 / 2 * 8) scores[i] = -kInfinity;
}

// Masks the keys before the first key of each of the thread's queries.
__device__ __forceinline__ void mask_front(float (&scores)[kKeys / 2], const int (&first_key)[2],
                                           int column) {
  int first[2] = {first_key[0] - column, first_key[1] - column};
  asm volatile("" : "+r"(first[0]), "+r"(first[1]));
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i)
    if (i / 4 * 8 + i % 2 < first[i % 4 / 2]) scores[i] = -kInfinity;
}

__device__ __forceinline__ void pack(const float (&scores)[kKeys / 2], uint32_t (&packed)[kKeys / 4]) {
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) packed[i] = pack_bf16(scores[i * 2], scores[i * 2 + 1]);
}

// --- consumer warpgroup --------------------------------------------------------------------------------------------

template <int kHeadDim, bool kBounded>
class Forward {
  using S = ForwardShared<kHeadDim, kBounded>;
  using Queries = Ring<S::kQueryStages>;

 public:
  __device__ __forceinline__ Forward(S& s, const ForwardParams& p, const Thread& thread)
      : s_(s), p_(p), thread_(thread), order_(1, thread.warpgroup) {}

  __device__ __forceinline__ void run() {
    if (start_task().is_end()) return;
    first_scores();
    while (true) {
      for (int tile = task_.block - 1; tile >= task_.first_tile(); --tile)
        step<false>(tile == task_.block - 1, tile);
      const Task<kBounded> done = task_;
      const Rows sums = rows_;
      const auto done_queries = queries_;
      queries_at_.next();
      const bool end = start_task().is_end();
      step<true>(done.block == done.first_tile(), task_.block);
      finish(done, sums);
      write_o(done_queries);
      if (end) return;
    }
  }

 private:
  __device__ __forceinline__ const Task<false>& start_task() {
    queries_ = s_.queries.wait(queries_at_);
    task_ = s_.task[queries_.stage()];
    if constexpr (kBounded) {
      if (!task_.is_end()) {
        const int query = task_.block * kQueries + thread_.warpgroup * 64 + thread_.row();
#pragma unroll
        for (int h = 0; h < 2; ++h) first_key_[h] = p_.first_keys.of_padded(task_.batch, query + h * 8);
      }
    }
    return task_;
  }

  // Scores of the very first tile on the diagonal, without a GEMM with v.
  __device__ __forceinline__ void first_scores() {
    const auto keys = s_.keys.wait(tile_);
    wgmma_fence();
    multiply_keys(keys);
    wgmma_commit();
    wgmma_wait<0>(scores_);
    if (thread_.lane == 0) s_.keys.release(keys);
    float factor[2];
    mask(scores_, thread_.warpgroup * 64 + thread_.row(), thread_.column());
    if constexpr (kBounded) mask_front_of(task_.block);
    softmax<true>(scores_, rows_, factor, p_.scale_log2e);
    pack(scores_, packed_);
  }

  // Issues the scores of tile number `tile` together with the GEMM with v of the previous tile, which is the first one
  // of its task if `fresh`. kNewTask: the tile is the diagonal tile of the next task. If there is no next task, the
  // scores are computed from stale data and ignored, because a branch around the GEMMs would make the compiler wait for
  // them.
  template <bool kNewTask>
  __device__ __forceinline__ void step(bool fresh, int tile) {
    const auto before = tile_;
    tile_.next();
    const auto keys = s_.keys.wait(tile_);
    const auto values = s_.values.wait(before);
    order_.wait();
    wgmma_fence();
    multiply_keys(keys);
    wgmma_commit();
    mma_nn<kHeadDim, kKeys>(o_, packed_, stage_address(s_.v, values.stage()), sizeof(s_.v[0][0]), !fresh);
    wgmma_commit();
    order_.arrive();
    wgmma_wait<1>(scores_);
    if (thread_.lane == 0) s_.keys.release(keys);
    float factor[2];
    if constexpr (kNewTask) mask(scores_, thread_.warpgroup * 64 + thread_.row(), thread_.column());
    if constexpr (kBounded) mask_front_of(tile);
    softmax<kNewTask>(scores_, rows_, factor, p_.scale_log2e);
    wgmma_wait<0>(o_);
    if (thread_.lane == 0) s_.values.release(values);
    if constexpr (!kNewTask) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) o_[i] *= factor[i % 4 / 2];
    }
    pack(scores_, packed_);
  }

  __device__ __forceinline__ void multiply_keys(typename Ring<S::kStages>::FullSlot keys) {
    mma_nt<kKeys, kHeadDim>(scores_, q_of(queries_), sizeof(s_.q[0][0]), stage_address(s_.k, keys.stage()),
                            sizeof(s_.k[0][0]));
  }

  // Masks keys before the first ones, if the tile contains any.
  __device__ __forceinline__ void mask_front_of(int tile) {
    if (tile * kKeys < task_.clear) mask_front(scores_, first_key_, tile * kKeys + thread_.column());
  }

  // Writes lse and divides o by the sums.
  __device__ __forceinline__ void finish(const Task<false>& task, const Rows& rows) {
    const int query = first_query<kBounded>(p_, task) + thread_.warpgroup * 64 + thread_.row();
    float* const lse = p_.lse + (static_cast<int64_t>(task.batch) * p_.num_heads + task.head) * p_.queries;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(rows.sum[h]);
      if (thread_.lane % 4 == 0 && query + h * 8 < p_.queries)
        lse[query + h * 8] = fmaf(rows.max[h], p_.scale, __logf(sum));
      const float inverse = __frcp_rn(sum);
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) o_[i * 4 + h * 2] *= inverse, o_[i * 4 + h * 2 + 1] *= inverse;
    }
  }

  // Writes o to the shared memory of q.
  __device__ __forceinline__ void write_o(typename Queries::FullSlot queries) {
    store_accumulators<kHeadDim>(thread_, q_of(queries), sizeof(s_.q[0][0]),
                                 [&](int i) { return pack_bf16(o_[i * 2], o_[i * 2 + 1]); });
    fence_proxy_async_shared();
    __syncwarp();
    if (thread_.lane == 0) s_.o_ready[thread_.warpgroup].commit(queries);
  }

  __device__ __forceinline__ uint32_t q_of(typename Queries::FullSlot queries) const {
    return stage_address(s_.q, queries.stage()) + thread_.warpgroup * kWarpgroupTileBytes;
  }

  S& s_;
  const ForwardParams& p_;
  const Thread thread_;
  const OrderedSequenceBarrier order_;
  Task<kBounded> task_;
  int first_key_[2];  // first keys of the thread's queries
  typename Queries::Consumer queries_at_;
  typename Queries::FullSlot queries_ = Queries::FullSlot::none();
  typename Ring<S::kStages>::Consumer tile_;  // stage of both keys and values
  float scores_[kKeys / 2], o_[kHeadDim / 2];
  uint32_t packed_[kKeys / 4];  // exponentials of the scores, as BF16
  Rows rows_;
};

template <int kHeadDim, bool kBounded>
__global__ void __launch_bounds__(kThreads, 1)
    flash_forward_kernel(const __grid_constant__ CUtensorMap queries_map,
                         const __grid_constant__ CUtensorMap keys_map,
                         const __grid_constant__ CUtensorMap out_map, const ForwardParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<ForwardShared<kHeadDim, kBounded>*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) s.init_barriers();
  __syncthreads();
  if (thread.is_producer()) {
    setmaxnreg_dec<40>();
    if (thread.index == 0) load_tiles(s, p, &queries_map, &keys_map);
    if (thread.index == kWarpSize) store_o(s, p, &out_map, 0);
    if (thread.index == 2 * kWarpSize) store_o(s, p, &out_map, 1);
  } else {
    setmaxnreg_inc<232>();
    Forward<kHeadDim, kBounded>(s, p, thread).run();
  }
}

template <int kHeadDim, bool kBounded>
void launch(const Context& context, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  TE_CHECK(static_cast<int64_t>(args.workspace.bytes()) >= cuda::flash_forward_workspace_bytes(s),
           "attention: workspace has {} bytes, but needs {} (attention_workspace_bytes)",
           args.workspace.bytes(), cuda::flash_forward_workspace_bytes(s));
  const int64_t blocks = ceil_div(s.queries(), kQueries), heads = s.batch * s.num_heads;
  const int64_t head_bytes = s.keys() * s.head_dim * 2 * int64_t{sizeof(__nv_bfloat16)};
  const ForwardParams p{
      .lse = args.lse.as<float>(),
      .next_task = args.workspace.as<int>(),
      .queries = static_cast<int>(s.queries()),
      .num_heads = static_cast<int>(s.num_heads),
      .num_groups = static_cast<int>(s.num_query_groups),
      .blocks = static_cast<int>(blocks),
      .tasks = static_cast<int>(heads * blocks),
      .key_column = static_cast<int>(s.has_range() ? 0 : s.num_heads * s.head_dim),
      .heads = static_cast<int>(heads),
      .heads_at_once = static_cast<int>(std::clamp<int64_t>(kBytesAtOnce / head_bytes, 1, heads)),
      .scale = s.softmax_scale,
      .scale_log2e = s.softmax_scale * kLog2E,
      .first_keys = first_keys_of(s, args.document_start),
      .first_block = static_cast<int>(s.range.position / kQueries)};
  TE_CUDA_CHECK(cudaMemsetAsync(p.next_task, 0, sizeof(int), cuda_stream(context)));
  launch_persistent<flash_forward_kernel<kHeadDim, kBounded>, ForwardShared<kHeadDim, kBounded>>(
      context, p.tasks, boxes_of(args.qkv, s.batch, kQueries, s.range.first, s.queries()),
      boxes_of(s.has_range() ? args.kv : args.qkv, s.batch, kKeys, 0, s.keys()),
      boxes_of(args.o, s.batch, 64, s.range.first, s.queries()), p);
}

}  // namespace

namespace cuda {

int64_t flash_forward_workspace_bytes(const AttentionShape&) {
  return sizeof(int);
}
void flash_forward(const Context& context, const AttentionForward& args) {
  if (is_bounded(args.shape))
    return args.shape.head_dim == 64 ? launch<64, true>(context, args) : launch<128, true>(context, args);
  args.shape.head_dim == 64 ? launch<64, false>(context, args) : launch<128, false>(context, args);
}

}  // namespace cuda
}  // namespace te::kernels
