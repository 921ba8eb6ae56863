// Backward pass of causal attention for Hopper.
//
//   S = q k^T   P = exp(scale S - lse)   dP = do v^T   dS = P (dP - delta)   delta = rowsum(do o)
//   dv = P^T do   dk = scale dS^T q   dq = scale dS k
// Follows Dao (arXiv 2307.08691) and Shah et al. (arXiv 2407.08608). A task is a block of 128 keys of one head; dk and
// dv stay in registers while the kernel iterates over the query blocks that see these keys. Two consumer warpgroups
// compute 64 keys each, on tiles that a producer thread prefetches. S and dP are computed transposed, so that P^T and
// dS^T are register operands, and only dq needs dS in shared memory. The GEMMs of the next S are issued before dq is
// stored.
//
// dq is a sum over tasks, kept in FP32 in global memory. A separate thread adds a task's part with a bulk reduction,
// after the tasks of all later keys have added theirs. The order is fixed, so results are deterministic. Tasks of a
// head start with the last keys, and every task starts at its diagonal. The concurrent tasks of a head are therefore at
// different queries, each at those that the previous task has just left, and rarely wait. The task of the first keys,
// which sees all queries, adds the accumulated sum to its own part and writes dq. The tile scheduler assigns tasks in
// this order to the blocks of the grid, so a task only waits for running tasks. The tasks in flight belong to few
// enough heads that their sums, queries and gradients stay in the L2 cache.
//
// With documents or a window (kBounded), each query has a first key (first_key.h). A task then ends with the last
// queries that see some of its keys, the last task of a query block is that of its first keys, and tiles that some
// queries see only in part are masked. With a query range (also kBounded), keys, values and their gradients are in
// separate tensors, and tasks begin with the range's first queries if those see all keys. Key blocks that no query of
// the range sees are not tasks; a separate kernel zeroes their gradients.
#include <algorithm>

#include "kernels/attention/flash_attention.h"
#include "kernels/attention/flash_backward_roles.cuh"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"

namespace te::kernels {
namespace {

using namespace flash;

/// A consumer warpgroup.
template <int kHeadDim, bool kBounded>
class Backward {
  using G = Geometry<kHeadDim>;
  using Keys = Ring<G::kKeyStages>;
  using Queries = Ring<kStages>;
  using TileScheduler = flash::TileScheduler<kHeadDim, kBounded>;
  static constexpr bool kOneChunk = G::kChunks == 1;

 public:
  __device__ __forceinline__ Backward(Shared<kHeadDim>& s, const Params& p, const Thread& thread)
      : s_(s), p_(p), thread_(thread) {}

  __device__ __forceinline__ void run() {
    if (!start_task()) return send(claim_out(), {.kind = Message::kEnd});
    begin_scores();
    bool first_of_keys = true, more = true;
    while (true) {
      // After the last tile, this computes on stale data, because a branch around the GEMMs would make the compiler
      // wait for them.
      float dp[G::kQueries / 2];
      begin_d_probabilities(dp);
      wgmma_wait<1>(scores_);
      probabilities();
      if constexpr (kHeadDim == 128) {
        // These accesses and a wait that returns immediately are here so that the compiler does not wait for the GEMM
        // before the exponentials.
        warpgroup_fence_operand(scores_);
        s_.keys.wait(keys_at_);
      }
      wgmma_wait<0>(dp);
      // The loop ends here, where no GEMM is in flight: a GEMM in flight would read shared memory that is no longer
      // valid.
      if (!more) break;
      begin_gradients(dp, first_of_keys);
      float dq[kSumElements / kWarpgroup];
      begin_dq(dq);
      wgmma_wait<1>();
      s_.sums_ready.wait(queries_at_);  // before the stage is released for the next tile
      if (thread_.lane == 0) s_.queries.release(queries_);

      // The scores of the next tile are issued before dq is stored.
      const TileScheduler done = scheduler_;
      first_of_keys = !scheduler_.next(p_);
      if (first_of_keys) {
        wgmma_wait<0>();
        if (thread_.lane == 0) s_.keys.release(keys_);
        write_keys(done);
        keys_at_.next();
        more = start_task();
      }
      queries_at_.next();
      begin_scores();
      wgmma_wait<1>(dq);
      write_dq(dq, done);
    }
    send(claim_out(), {.kind = Message::kEnd});
  }

 private:
  /// Returns false if there are no more tasks.
  __device__ __forceinline__ bool start_task() {
    keys_ = s_.keys.wait(keys_at_);
    const int task = s_.task[keys_.stage()];
    if (task >= p_.tasks) return false;
    scheduler_.start(p_, task);
    return true;
  }

  /// Issues scores^T = k q^T.
  __device__ __forceinline__ void begin_scores() {
    queries_ = s_.queries.wait(queries_at_);
    multiply(scores_, stage_address(s_.k, keys_.stage()), stage_address(s_.q, queries_.stage()));
  }
  /// Issues dP^T = v do^T.
  __device__ __forceinline__ void begin_d_probabilities(float (&dp)[G::kQueries / 2]) {
    s_.d_o_ready.wait(queries_at_);
    multiply(dp, stage_address(s_.v, keys_.stage()), stage_address(s_.d_o, queries_.stage()));
  }
  /// d = a b^T, where a holds the warpgroup's keys.
  __device__ __forceinline__ void multiply(float (&d)[G::kQueries / 2], uint32_t a, uint32_t b) {
    wgmma_fence();
    mma_nt<G::kQueries, kHeadDim>(d, a + thread_.warpgroup * kWarpgroupTileBytes, kKeyTileBytes, b,
                                  kQueryTileBytes);
    wgmma_commit();
  }

  /// Writes dS^T to shared memory for both warpgroups, and issues dv += P^T do and dk += dS^T q.
  __device__ __forceinline__ void begin_gradients(const float (&dp)[G::kQueries / 2], bool first_of_keys) {
    const int stage = queries_.stage();
    uint32_t p_packed[G::kQueries / 4], ds_packed[G::kQueries / 4];
    score_gradients(dp, p_packed, ds_packed);
    store_accumulators<G::kQueries>(thread_,
                                    stage_address(s_.ds, stage) + thread_.warpgroup * kWarpgroupTileBytes,
                                    kKeyTileBytes, [&](int i) { return ds_packed[i]; });
    fence_proxy_async_shared();
    wgmma_fence();
    mma_nn<kHeadDim, G::kQueries>(dv_, p_packed, stage_address(s_.d_o, stage), kQueryTileBytes,
                                  !first_of_keys);
    wgmma_commit();
    wgmma_fence();
    mma_nn<kHeadDim, G::kQueries>(dk_, ds_packed, stage_address(s_.q, stage), kQueryTileBytes,
                                  !first_of_keys);
    wgmma_commit();
  }

  /// Converts scores^T to P^T = exp(scale * scores - lse), with 0 for keys that the query does not see. Accumulator 4 g
  /// + 2 h + e belongs to the thread's key + 8 h and its query + 8 g + e.
  __device__ __forceinline__ void probabilities() {
    if (scheduler_.on_diagonal()) {
      const int query = scheduler_.queries * G::kQueries + thread_.column(),
                key = scheduler_.keys * kKeys + thread_.warpgroup * 64 + thread_.row();
#pragma unroll
      for (int i = 0; i < G::kQueries / 2; ++i)
        if (query - key + i / 4 * 8 + i % 2 - i % 4 / 2 * 8 < 0) scores_[i] = -kInfinity;
    }
    if constexpr (kBounded) {
      if (scheduler_.on_bound()) mask_front();
    }
#pragma unroll
    for (int g = 0; g < G::kQueries / 8; g += 2) {
      const float4 lse = statistics(s_.lse2, g);
      float* x = scores_ + g * 4;
#pragma unroll
      for (int h = 0; h < 4; h += 2) {
        x[h] = exp2_fast(fmaf(x[h], p_.scale_log2e, -lse.x));
        x[h + 1] = exp2_fast(fmaf(x[h + 1], p_.scale_log2e, -lse.y));
        x[h + 4] = exp2_fast(fmaf(x[h + 4], p_.scale_log2e, -lse.z));
        x[h + 5] = exp2_fast(fmaf(x[h + 5], p_.scale_log2e, -lse.w));
      }
    }
  }
  /// Masks the keys before a query's first one.
  __device__ __forceinline__ void mask_front() {
    const int key = scheduler_.keys * kKeys + thread_.warpgroup * 64 + thread_.row();
    const int block = scheduler_.batch(p_) * p_.query_blocks + scheduler_.block_of_call(p_);
    const int* const first = p_.first_keys + int64_t{block} * G::kQueries + thread_.column();
#pragma unroll
    for (int g = 0; g < G::kQueries / 8; ++g) {
      const int2 of = __ldg(reinterpret_cast<const int2*>(first + g * 8));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + i / 2 * 8 < (i % 2 == 0 ? of.x : of.y)) scores_[g * 4 + i] = -kInfinity;
    }
  }
  /// P^T and dS^T = P^T (dP^T - delta) in BF16, as operands of GEMMs over queries.
  __device__ __forceinline__ void score_gradients(const float (&dp)[G::kQueries / 2],
                                                  uint32_t (&p_packed)[G::kQueries / 4],
                                                  uint32_t (&ds_packed)[G::kQueries / 4]) {
#pragma unroll
    for (int g = 0; g < G::kQueries / 8; g += 2) {
      const float4 delta = statistics(s_.delta, g);
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        const float *x = scores_ + g * 4 + h * 2, *y = dp + g * 4 + h * 2;
        const float d = h < 2 ? delta.x : delta.z, d1 = h < 2 ? delta.y : delta.w;
        p_packed[g * 2 + h] = pack_bf16(x[0], x[1]);
        ds_packed[g * 2 + h] = pack_bf16(x[0] * (y[0] - d), x[1] * (y[1] - d1));
      }
    }
  }
  /// Statistics of the thread's queries + 8 g (+ 1), and 8 further on.
  __device__ __forceinline__ float4 statistics(const float (&of)[kStages][G::kStatistics], int g) const {
    const float* const mine = of[queries_.stage()] + thread_.lane % 4 * G::kLineOfC;
    return *reinterpret_cast<const float4*>(mine + g * 2);
  }

  /// Issues dq = dS k: 64 queries (head_dim 64) or 64 columns (128) per warpgroup.
  __device__ __forceinline__ void begin_dq(float (&dq)[kSumElements / kWarpgroup]) {
    named_barrier_sync<kConsumerThreads>(1);
    mma_tn<kKeys>(
        dq, stage_address(s_.ds, queries_.stage()) + (kOneChunk ? thread_.warpgroup : 0) * kKeyTileBytes,
        stage_address(s_.k, keys_.stage()) + (kOneChunk ? 0 : thread_.warpgroup) * kKeyTileBytes);
    wgmma_commit();
  }

  /// Writes dk and dv of a finished block of keys.
  __device__ __forceinline__ void write_keys(const TileScheduler& done) {
    const auto slot = claim_out();
    write_rounded<kHeadDim>(dk_, p_.scale, 0);
    write_rounded<kHeadDim>(dv_, 1.0f, 1);
    send(slot, {Message::kKeys, p_.key_column + done.group(p_) * kHeadDim,
                done.keys * kKeys + thread_.warpgroup * 64, done.batch(p_), 0});
  }

  /// Writes dq, or a partial sum of it.
  __device__ __forceinline__ void write_dq(float (&dq)[kSumElements / kWarpgroup],
                                           const TileScheduler& done) {
    const int block = done.query_block(p_) * kConsumers + thread_.warpgroup;
#pragma unroll
    for (float& x : dq) x *= p_.scale;
    if (done.last_of_queries()) {
      if (!done.first_of_queries()) add_sums(dq, block);
      const auto slot = claim_out();
      write_rounded<64>(dq, 1.0f, 0);
      send(slot,
           {Message::kQueries, done.head_of_model(p_) * kHeadDim + (kOneChunk ? 0 : thread_.warpgroup * 64),
            done.block_of_call(p_) * G::kQueries + (kOneChunk ? thread_.warpgroup * 64 : 0), done.batch(p_),
            0});
    } else {
      const auto slot = claim_out();
      float4* out = reinterpret_cast<float4*>(s_.out[thread_.warpgroup]) + thread_.index;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        out[i * kWarpgroup] = make_float4(dq[i * 4], dq[i * 4 + 1], dq[i * 4 + 2], dq[i * 4 + 3]);
      send(slot, {Message::kSum, 0, 0, done.before(), block});
    }
  }

  __device__ __forceinline__ void add_sums(float (&dq)[kSumElements / kWarpgroup], int block) {
    const float4* sums =
        reinterpret_cast<const float4*>(p_.dq_sums + int64_t{block} * kSumElements) + thread_.index;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 x = __ldcg(sums + i * kWarpgroup);
      dq[i * 4] += x.x, dq[i * 4 + 1] += x.y, dq[i * 4 + 2] += x.z, dq[i * 4 + 3] += x.w;
    }
  }

  /// Writes accumulators of 64 x kN, times a factor, to a half of the warpgroup's part of s.out.
  template <int kN>
  __device__ __forceinline__ void write_rounded(const float (&d)[kN / 2], float factor, int half) {
    store_accumulators<kN>(thread_, shared_address(s_.out[thread_.warpgroup][half]), kWarpgroupTileBytes,
                           [&](int i) { return pack_bf16(d[i * 2] * factor, d[i * 2 + 1] * factor); });
  }
  /// Called before and after the warpgroup writes its part of s.out.
  __device__ __forceinline__ Ring<1>::EmptySlot claim_out() {
    return s_.results[thread_.warpgroup].acquire(out_at_);
  }
  __device__ __forceinline__ void send(Ring<1>::EmptySlot slot, const Message& message) {
    fence_proxy_async_shared();
    if (thread_.index == 0) s_.message[thread_.warpgroup] = message;
    __syncwarp();
    if (thread_.lane == 0) s_.results[thread_.warpgroup].commit(slot);
    out_at_.next();
  }

  static constexpr uint32_t kKeyTileBytes = sizeof(Shared<kHeadDim>::k[0][0]),
                            kQueryTileBytes = sizeof(Shared<kHeadDim>::q[0][0]);
  Shared<kHeadDim>& s_;
  const Params& p_;
  const Thread thread_;
  TileScheduler scheduler_;
  typename Keys::Consumer keys_at_;
  typename Keys::FullSlot keys_ = Keys::FullSlot::none();
  typename Queries::Consumer queries_at_;
  typename Queries::FullSlot queries_ = Queries::FullSlot::none();
  Ring<1>::Producer out_at_;
  float dk_[kHeadDim / 2], dv_[kHeadDim / 2], scores_[G::kQueries / 2];
};

template <int kHeadDim, bool kBounded>
__global__ void __launch_bounds__(kThreads, 1)
    flash_backward_kernel(const __grid_constant__ CUtensorMap keys_map,
                          const __grid_constant__ CUtensorMap queries_map,
                          const __grid_constant__ CUtensorMap d_o_map,
                          const __grid_constant__ CUtensorMap d_queries_map,
                          const __grid_constant__ CUtensorMap d_keys_map, const Params p) {
  using G = Geometry<kHeadDim>;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<kHeadDim>*>(memory);
  const Thread thread;
  if (threadIdx.x == 0) s.init_barriers();
  __syncthreads();
  if (thread.is_producer()) {
    setmaxnreg_dec<G::kProducerRegisters>();
    if (thread.index == 0) load_tiles<kHeadDim, kBounded>(s, p, &keys_map, &queries_map, &d_o_map);
    if (thread.index == kWarpSize) watch_sums<kHeadDim, kBounded>(s, p);
    if (thread.index == 2 * kWarpSize) store_results<kHeadDim>(s, p, &d_queries_map, &d_keys_map, 0);
    if (thread.index == 3 * kWarpSize) store_results<kHeadDim>(s, p, &d_queries_map, &d_keys_map, 1);
  } else {
    setmaxnreg_inc<G::kConsumerRegisters>();
    Backward<kHeadDim, kBounded>(s, p, thread).run();
  }
}

/// Computes delta and lse in base 2, and zeroes the counters. Padding queries get the probability 0. o and d_o point to
/// the first query; samples are `rows` rows apart. Grid: (samples times blocks of queries, heads).
template <int kHeadDim>
__global__ void __launch_bounds__(256)
    flash_backward_prepare(const __nv_bfloat16* o, const __nv_bfloat16* d_o, const float* lse, float* lse2,
                           float* delta, int* counts, int64_t num_counts, int rows, int queries,
                           int padded_queries, int heads) {
  using G = Geometry<kHeadDim>;
  constexpr int kLanes = kHeadDim / 8;                                                 // per query
  const unsigned of_sample = (padded_queries * kLanes + blockDim.x - 1) / blockDim.x;  // blocks of a head
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.x / of_sample);
  const int64_t blocks = static_cast<int64_t>(gridDim.x) * gridDim.y;
  const int64_t block = static_cast<int64_t>(head) * gridDim.x + blockIdx.x;
  for (int64_t i = block * blockDim.x + threadIdx.x; i < num_counts; i += blocks * blockDim.x) counts[i] = 0;

  const int query = static_cast<int>(blockIdx.x % of_sample * blockDim.x + threadIdx.x) / kLanes;
  const int part = static_cast<int>(threadIdx.x) % kLanes;
  float sum = 0.0f;
  if (query < queries) {
    const int64_t at = ((static_cast<int64_t>(batch) * rows + query) * heads + head) * kHeadDim + part * 8;
    const auto x = load_vector<__nv_bfloat16, 8>(o + at), y = load_vector<__nv_bfloat16, 8>(d_o + at);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += __bfloat162float(x.v[i]) * __bfloat162float(y.v[i]);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (part == 0 && query < padded_queries) {
    const int64_t line = static_cast<int64_t>(batch) * heads + head;
    const int tile = query / G::kQueries, in_tile = query % G::kQueries;
    const int64_t to = (line * (padded_queries / G::kQueries) + tile) * G::kStatistics +
                       in_tile % 8 / 2 * G::kLineOfC + in_tile / 8 * 2 + in_tile % 2;
    delta[to] = sum;
    lse2[to] = query < queries ? lse[line * queries + query] * kLog2E : kInfinity;
  }
}

/// Computes Params::visible_queries and first_keys, with one block of the grid per sample.
template <int kHeadDim>
__global__ void __launch_bounds__(256)
    flash_backward_bounds(const FirstKeys first, int key_blocks, int first_block, int query_blocks,
                          int4* visible_queries, int* first_keys) {
  constexpr int kQueries = Geometry<kHeadDim>::kQueries;
  const int batch = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x),
            threads = static_cast<int>(blockDim.x);
  for (int keys = thread; keys < key_blocks; keys += threads) {
    const VisibleQueries seen = te::kernels::visible_queries<kKeys, kQueries>(first, batch, keys, first_block,
                                                                              first_block + query_blocks);
    visible_queries[batch * key_blocks + keys] = make_int4(seen.end, seen.clear_end, seen.end_below, 0);
  }
  const int queries = query_blocks * kQueries;
  for (int query = thread; query < queries; query += threads)
    first_keys[int64_t{batch} * queries + query] = first.of_padded(batch, first_block * kQueries + query);
}

/// Zeroes gradients of keys and values [batch, seq, columns] in key blocks before the first query's first key. Grid:
/// (samples, blocks of a sample).
__global__ void __launch_bounds__(256)
    flash_backward_unseen(const FirstKeys first, int first_query, int columns, __nv_bfloat16* dkv) {
  const int batch = static_cast<int>(blockIdx.x);
  const int64_t unseen = int64_t{first.of(batch, first_query) / kKeys * kKeys} * columns;
  __nv_bfloat16* const of_sample = dkv + int64_t{batch} * first.seq * columns;
  for (int64_t i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 8; i < unseen;
       i += int64_t{gridDim.y} * blockDim.x * 8)
    *reinterpret_cast<uint4*>(of_sample + i) = make_uint4(0, 0, 0, 0);
}

/// Number of 4-byte elements of the parts of the workspace, in this order.
struct Workspace {
  int64_t visible_queries,
      first_keys;                    ///< 0 without first keys; visible_queries: four per block of keys
  int64_t statistics, sums, counts;  ///< statistics twice; the last count is next_task
  template <int kHeadDim>
  static Workspace of(const AttentionShape& s) {
    using G = Geometry<kHeadDim>;
    const int64_t query_blocks = ceil_div(s.queries(), G::kQueries),
                  tiles = s.batch * s.num_heads * query_blocks;
    const int64_t bounded = cuda::is_bounded(s) ? s.batch : 0;
    return {bounded * ceil_div(s.keys(), kKeys) * 4, bounded * query_blocks * G::kQueries,
            tiles * G::kStatistics, tiles * kTileElements, tiles * kConsumers + 1};
  }
  int64_t bytes() const {
    return (visible_queries + first_keys + 2 * statistics + sums + counts) * int64_t{sizeof(float)};
  }
};

template <int kHeadDim, bool kBounded>
void launch(const Context& context, const AttentionBackward& args) {
  using G = Geometry<kHeadDim>;
  const AttentionShape& s = args.shape;
  const Workspace sizes = Workspace::of<kHeadDim>(s);
  TE_CHECK(static_cast<int64_t>(args.workspace.bytes()) >= sizes.bytes(),
           "attention: workspace has {} bytes, but needs {} (attention_workspace_bytes)",
           args.workspace.bytes(), sizes.bytes());
  int4* const visible_queries = args.workspace.as<int4>();
  int* const first_keys = args.workspace.as<int>() + sizes.visible_queries;
  float* const lse2 = args.workspace.as<float>() + sizes.visible_queries + sizes.first_keys;
  float* const delta = lse2 + sizes.statistics;
  float* const dq_sums = delta + sizes.statistics;
  int* const counts = reinterpret_cast<int*>(dq_sums + sizes.sums);

  constexpr int kPrepareThreads = 256;
  const int64_t query_blocks = ceil_div(s.queries(), G::kQueries), key_blocks = ceil_div(s.keys(), kKeys);
  const int64_t first_block = s.range.position / G::kQueries, first_o = s.range.first * args.o.cols();
  const unsigned of_sample = ceil_div(query_blocks * G::kQueries, kPrepareThreads / (kHeadDim / 8));
  const dim3 grid(static_cast<unsigned>(s.batch) * of_sample, static_cast<unsigned>(s.num_heads));
  flash_backward_prepare<kHeadDim><<<grid, kPrepareThreads, 0, cuda_stream(context)>>>(
      args.o.as<__nv_bfloat16>() + first_o, args.d_o.as<__nv_bfloat16>() + first_o, args.lse.as<float>(),
      lse2, delta, counts, sizes.counts, static_cast<int>(s.rows()), static_cast<int>(s.queries()),
      static_cast<int>(query_blocks * G::kQueries), static_cast<int>(s.num_heads));
  TE_CUDA_CHECK_LAUNCH();
  if constexpr (kBounded) {
    const FirstKeys first = first_keys_of(s, args.document_start);
    flash_backward_bounds<kHeadDim><<<static_cast<unsigned>(s.batch), 256, 0, cuda_stream(context)>>>(
        first, static_cast<int>(key_blocks), static_cast<int>(first_block), static_cast<int>(query_blocks),
        visible_queries, first_keys);
    TE_CUDA_CHECK_LAUNCH();
    if (s.range.position > 0 && cuda::has_first_keys(s)) {
      const dim3 blocks(static_cast<unsigned>(s.batch), static_cast<unsigned>(sm_count(context)));
      flash_backward_unseen<<<blocks, 256, 0, cuda_stream(context)>>>(
          first, static_cast<int>(s.range.position), static_cast<int>(args.dkv.cols()),
          args.dkv.as<__nv_bfloat16>());
      TE_CUDA_CHECK_LAUNCH();
    }
  }

  const Params p{.lse2 = lse2,
                 .delta = delta,
                 .dq_sums = dq_sums,
                 .added = counts,
                 .next_task = counts + sizes.counts - 1,
                 .num_groups = static_cast<int>(s.num_query_groups),
                 .heads_per_group = static_cast<int>(s.num_heads / s.num_query_groups),
                 .tasks = static_cast<int>(s.batch * s.num_query_groups * key_blocks),
                 .key_blocks = static_cast<int>(key_blocks),
                 .query_blocks = static_cast<int>(query_blocks),
                 .key_column = static_cast<int>(s.has_range() ? 0 : s.num_heads * s.head_dim),
                 .scale = s.softmax_scale,
                 .scale_log2e = s.softmax_scale * kLog2E,
                 .visible_queries = visible_queries,
                 .first_keys = first_keys,
                 .first_block = static_cast<int>(first_block)};
  const Tensor &kv = s.has_range() ? args.kv : args.qkv, &dkv = s.has_range() ? args.dkv : args.dqkv;
  const int64_t first = s.range.first, queries = s.queries(), keys = s.keys();
  launch_persistent<flash_backward_kernel<kHeadDim, kBounded>, Shared<kHeadDim>>(
      context, p.tasks, boxes_of(kv, s.batch, kKeys, 0, keys),
      boxes_of(args.qkv, s.batch, G::kQueries, first, queries),
      boxes_of(args.d_o, s.batch, G::kQueries, first, queries),
      boxes_of(args.dqkv, s.batch, 64, first, queries), boxes_of(dkv, s.batch, 64, 0, keys), p);
}

}  // namespace

namespace cuda {

int64_t flash_backward_workspace_bytes(const AttentionShape& shape) {
  return (shape.head_dim == 64 ? Workspace::of<64>(shape) : Workspace::of<128>(shape)).bytes();
}

void flash_backward(const Context& context, const AttentionBackward& args) {
  if (is_bounded(args.shape))
    return args.shape.head_dim == 64 ? launch<64, true>(context, args) : launch<128, true>(context, args);
  args.shape.head_dim == 64 ? launch<64, false>(context, args) : launch<128, false>(context, args);
}

}  // namespace cuda
}  // namespace te::kernels
