// Backward pass of causal attention, for Hopper.
//
//   S = q k^T   P = exp(scale S - lse)   dP = do v^T   dS = P (dP - delta)   delta = rowsum(do o)
//   dv = P^T do   dk = scale dS^T q   dq = scale dS k
//
// (Dao, arXiv 2307.08691; Shah et al., arXiv 2407.08608). A unit of work is a block of 128 keys of a head; dk and dv stay in
// registers while the blocks of queries that see these keys pass by. Two warpgroups compute, 64 keys each, on tiles that a
// thread loads ahead of them; S and dP are computed transposed, so that P^T and dS^T are operands from registers, and dS goes
// through shared memory for dq alone. The products of the next S are begun before dq is taken away.
//
// dq is a sum over units, kept in FP32 in memory. A thread of its own adds a unit's part there (a bulk copy that adds), when the
// units of all keys behind have added theirs: the order is fixed, so the result repeats bit for bit. Of a head, the last keys
// come first, and every unit starts at its diagonal: at a time, the units of a head are at different queries, each one where
// the unit before it has just been, and hardly ever waits. The unit of the first keys, which sees all queries, adds what it
// finds there to its own part and writes dq. Units are handed out in that order to the blocks of the grid, so a unit waits
// for running ones alone. About sixteen heads of 1,024 (or four of 4,096) queries are under way at a time, which
// keeps their sums, queries and gradients in the L2 cache.
#include <algorithm>

#include "kernels/attention/flash_attention.h"
#include "kernels/attention/flash_backward_math.cuh"

namespace te::kernels {
namespace {

using namespace flash;

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    flash_backward_kernel(const __grid_constant__ CUtensorMap keys_map,
                          const __grid_constant__ CUtensorMap queries_map,
                          const __grid_constant__ CUtensorMap d_o_map,
                          const __grid_constant__ CUtensorMap out_map, const Params p) {
  using G = Geometry<kHeadDim>;
  constexpr bool kOneChunk = G::kChunks == 1;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<kHeadDim>*>(memory);
  const Place<kHeadDim> place;
  const int warpgroup = place.warpgroup;
  if (threadIdx.x == 0) s.init_barriers();
  __syncthreads();
  if (warpgroup == kConsumers) {
    give_registers<G::kMoverRegisters>();
    if (place.thread == 0) load_tiles<kHeadDim>(s, p, &keys_map, &queries_map, &d_o_map);
    if (place.thread == kWarpSize) watch_sums<kHeadDim>(s, p);
    if (place.thread == 2 * kWarpSize) deliver<kHeadDim>(s, p, &out_map, 0);
    if (place.thread == 3 * kWarpSize) deliver<kHeadDim>(s, p, &out_map, 1);
    return;
  }
  take_registers<G::kConsumerRegisters>();

  const uint32_t k_base = shared_address(s.k), v_base = shared_address(s.v), q_base = shared_address(s.q),
                 d_o_base = shared_address(s.d_o), ds_base = shared_address(s.ds);
  constexpr uint32_t kKeysBytes = sizeof(s.k[0]), kQueriesBytes = sizeof(s.q[0]),
                     kKeyTileBytes = sizeof(s.k[0][0]);
  int letters = 0;
  // Before and after the warpgroup writes its part of s.out.
  const auto claim_out = [&] { wait(&s.out_empty[warpgroup], (letters & 1) ^ 1); };
  const auto send = [&](const Letter& letter) {
    fence_shared_for_async();
    if (place.thread == 0) s.letter[warpgroup] = letter;
    __syncwarp();
    if (place.lane == 0) arrive(&s.out_full[warpgroup]);
    ++letters;
  };

  float dk[kHeadDim / 2], dv[kHeadDim / 2], scores[G::kQueries / 2];
  Walk<kHeadDim> w;
  int count = 0, key_count = 0;  // tiles and units done
  bool first_of_keys = true, more = true;

  // 1. scores^T of the first tile; those of the others are begun in step 8 of the tile before.
  wait(&s.keys_full[0], 0);
  if (s.unit[0] >= p.units) {
    send({.kind = Letter::kEnd});
    return;
  }
  w.start(p, s.unit[0]);
  wait(&s.q_full[0], 0);
  product_fence();
  product_of_rows<kHeadDim>(scores, k_base + place.keys_bytes(), q_base);
  product_commit();

  while (true) {
    const int stage = count % kStages, parity = (count / kStages) & 1, keys_at = key_count % G::kKeyStages;
    const uint32_t k_tile = k_base + keys_at * kKeysBytes, v_tile = v_base + keys_at * kKeysBytes;
    const uint32_t q_tile = q_base + stage * kQueriesBytes, d_o_tile = d_o_base + stage * kQueriesBytes;
    const uint32_t ds_tile = ds_base + (count & 1) * sizeof(s.ds[0]);
    const int64_t sums_at = w.query_block(p) * kConsumers + warpgroup;
    uint32_t ds_packed[G::kQueries / 4];
    {
      // 2. dP^T = v do^T
      float dp[G::kQueries / 2];
      if (more) wait(&s.d_o_full[stage], parity);
      product_fence();
      product_of_rows<kHeadDim>(dp, v_tile + place.keys_bytes(), d_o_tile);
      product_commit();
      product_wait<1>();
      arrived(scores);

      // 3. P^T
      probabilities<kHeadDim>(scores, s.lse2[stage], w, place, p.scale_log2e);
      if constexpr (kHeadDim == 128) {
        // Here, too: a wait that has ended long ago, so that the compiler does not wait for the product before the exponentials.
        arrived(scores);
        wait(&s.keys_full[keys_at], (key_count / G::kKeyStages) & 1);
      }
      product_wait<0>();
      arrived(dp);
      // Here, where no product is under way: leaving while one is lets it read what is no longer there.
      if (!more) break;

      // 4. dS^T, to shared memory for both warpgroups
      uint32_t p_packed[G::kQueries / 4];
      score_gradients<kHeadDim>(scores, dp, s.delta[stage], place, p_packed, ds_packed);
      store_score_gradients<kHeadDim>(ds_packed, ds_tile, place);
      fence_shared_for_async();

      // 5. dv += P^T do
      product_fence();
      product_over_queries<kHeadDim>(dv, p_packed, d_o_tile, first_of_keys);
      product_commit();
    }
    // 6. dk += dS^T q
    product_fence();
    product_over_queries<kHeadDim>(dk, ds_packed, q_tile, first_of_keys);
    product_commit();

    // 7. dq = dS k: 64 queries (head_dim 64) or 64 columns (128) for each warpgroup
    sync_warps<kConsumerThreads>(1);
    float dq[kSumElements / kWarpgroup];
    product_over_keys(dq, ds_tile + (kOneChunk ? warpgroup : 0) * kKeyTileBytes,
                      k_tile + (kOneChunk ? 0 : warpgroup) * kKeyTileBytes);
    product_commit();
    product_wait<1>();
    wait(&s.sums_full[stage], parity);  // before the stage is free for the next tile
    if (place.lane == 0) arrive(&s.queries_empty[stage]);

    // 8. dk and dv of a finished block of keys; scores^T of the next tile
    const Walk<kHeadDim> done = w;
    const bool last_of_keys = !w.next(p);
    const int next = count + 1, next_keys = key_count + (last_of_keys ? 1 : 0);
    if (last_of_keys) {
      product_wait<0>();
      if (place.lane == 0) arrive(&s.keys_empty[keys_at]);
      claim_out();
      store_rounded<kHeadDim>(dk, p.scale, s.out[warpgroup][0], place);
      store_rounded<kHeadDim>(dv, 1.0f, s.out[warpgroup][1], place);
      send({Letter::kKeys, (p.num_heads + done.group(p)) * kHeadDim, done.keys * kKeys + warpgroup * 64,
            done.batch(p), 0});
      const int b = next_keys % G::kKeyStages;
      wait(&s.keys_full[b], (next_keys / G::kKeyStages) & 1);
      more = s.unit[b] < p.units;
      if (more) w.start(p, s.unit[b]);
    }
    if (more) wait(&s.q_full[next % kStages], (next / kStages) & 1);
    // After the last tile, of what is there: a branch around products would make the compiler wait for them.
    product_fence();
    product_of_rows<kHeadDim>(scores, k_base + next_keys % G::kKeyStages * kKeysBytes + place.keys_bytes(),
                              q_base + next % kStages * kQueriesBytes);
    product_commit();
    product_wait<1>();
    arrived(dq);

    // 9. dq, or the part of it
#pragma unroll
    for (float& x : dq) x *= p.scale;
    if (done.last_of_queries()) {
      if (!done.first_of_queries()) {
        const float4* sums =
            reinterpret_cast<const float4*>(p.dq_sums + sums_at * kSumElements) + place.thread;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float4 x = __ldcg(sums + i * kWarpgroup);
          dq[i * 4] += x.x, dq[i * 4 + 1] += x.y, dq[i * 4 + 2] += x.z, dq[i * 4 + 3] += x.w;
        }
      }
      claim_out();
      store_rounded<64>(dq, 1.0f, s.out[warpgroup][0], place);
      send({Letter::kQueries, done.head_of_model(p) * kHeadDim + (kOneChunk ? 0 : warpgroup * 64),
            done.queries * G::kQueries + (kOneChunk ? warpgroup * 64 : 0), done.batch(p), 0});
    } else {
      claim_out();
      float4* out = reinterpret_cast<float4*>(s.out[warpgroup]) + place.thread;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        out[i * kWarpgroup] = make_float4(dq[i * 4], dq[i * 4 + 1], dq[i * 4 + 2], dq[i * 4 + 3]);
      send({Letter::kSum, 0, 0, done.before(), sums_at});
    }
    key_count = next_keys;
    first_of_keys = last_of_keys;
    ++count;
  }
  claim_out();
  send({.kind = Letter::kEnd});
}

/// delta, lse in base 2, and counts at 0. A query past the end of the sequence has the probability 0.
template <int kHeadDim>
__global__ void __launch_bounds__(256)
    flash_backward_prepare(const __nv_bfloat16* o, const __nv_bfloat16* d_o, const float* lse, float* lse2,
                           float* delta, int* counts, int64_t num_counts, int seq, int padded_seq,
                           int heads) {
  using G = Geometry<kHeadDim>;
  constexpr int kLanes = kHeadDim / 8;  // of a query
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int64_t blocks = static_cast<int64_t>(gridDim.x) * gridDim.y * gridDim.z;
  const int64_t block = (static_cast<int64_t>(batch) * gridDim.y + head) * gridDim.x + blockIdx.x;
  for (int64_t i = block * blockDim.x + threadIdx.x; i < num_counts; i += blocks * blockDim.x) counts[i] = 0;

  const int query = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  const int part = static_cast<int>(threadIdx.x) % kLanes;
  float sum = 0.0f;
  if (query < seq) {
    const int64_t at = ((static_cast<int64_t>(batch) * seq + query) * heads + head) * kHeadDim + part * 8;
    const auto x = load_vector<__nv_bfloat16, 8>(o + at), y = load_vector<__nv_bfloat16, 8>(d_o + at);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += __bfloat162float(x.v[i]) * __bfloat162float(y.v[i]);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (part == 0 && query < padded_seq) {
    const int64_t line = static_cast<int64_t>(batch) * heads + head;
    const int tile = query / G::kQueries, in_tile = query % G::kQueries;
    const int64_t to = (line * (padded_seq / G::kQueries) + tile) * G::kStatistics +
                       in_tile % 8 / 2 * G::kLineOfC + in_tile / 8 * 2 + in_tile % 2;
    delta[to] = sum;
    lse2[to] = query < seq ? lse[line * seq + query] * kLog2E : kInfinity;
  }
}

/// Elements of the parts of the workspace, in this order; 4 bytes each.
struct Workspace {
  int64_t statistics, sums, counts;  ///< statistics twice; of counts the last is next_unit
  template <int kHeadDim>
  static Workspace of(const AttentionShape& s) {
    using G = Geometry<kHeadDim>;
    const int64_t tiles = s.batch * s.num_heads * ceil_div(s.seq, G::kQueries);
    return {tiles * G::kStatistics, tiles * kTileElements, tiles * kConsumers + 1};
  }
  int64_t bytes() const { return (2 * statistics + sums + counts) * int64_t{sizeof(float)}; }
};

template <int kHeadDim>
void launch(const Context& context, const AttentionBackward& args) {
  using G = Geometry<kHeadDim>;
  const AttentionShape& s = args.shape;
  const Workspace sizes = Workspace::of<kHeadDim>(s);
  TE_CHECK(static_cast<int64_t>(args.workspace.bytes()) >= sizes.bytes(),
           "attention: workspace has {} bytes, attention_workspace_bytes asked for {}",
           args.workspace.bytes(), sizes.bytes());
  float* const lse2 = args.workspace.as<float>();
  float* const delta = lse2 + sizes.statistics;
  float* const dq_sums = delta + sizes.statistics;
  int* const counts = reinterpret_cast<int*>(dq_sums + sizes.sums);
  const cudaStream_t stream = cuda_stream(context);

  constexpr int kPrepareThreads = 256;
  const int64_t query_blocks = ceil_div(s.seq, G::kQueries), key_blocks = ceil_div(s.seq, kKeys);
  const dim3 grid(ceil_div(query_blocks * G::kQueries, kPrepareThreads / (kHeadDim / 8)),
                  static_cast<unsigned>(s.num_heads), static_cast<unsigned>(s.batch));
  flash_backward_prepare<kHeadDim><<<grid, kPrepareThreads, 0, stream>>>(
      args.o.as<__nv_bfloat16>(), args.d_o.as<__nv_bfloat16>(), args.lse.as<float>(), lse2, delta, counts,
      sizes.counts, static_cast<int>(s.seq), static_cast<int>(query_blocks * G::kQueries),
      static_cast<int>(s.num_heads));
  TE_CUDA_CHECK_LAUNCH();

  const Params p{.lse2 = lse2,
                 .delta = delta,
                 .dq_sums = dq_sums,
                 .added = counts,
                 .next_unit = counts + sizes.counts - 1,
                 .num_heads = static_cast<int>(s.num_heads),
                 .num_groups = static_cast<int>(s.num_query_groups),
                 .heads_per_group = static_cast<int>(s.num_heads / s.num_query_groups),
                 .units = static_cast<int>(s.batch * s.num_query_groups * key_blocks),
                 .key_blocks = static_cast<int>(key_blocks),
                 .query_blocks = static_cast<int>(query_blocks),
                 .scale = s.softmax_scale,
                 .scale_log2e = s.softmax_scale * kLog2E};
  const CUtensorMap keys = tiles_of(args.qkv, s.batch, s.seq, kKeys),
                    queries = tiles_of(args.qkv, s.batch, s.seq, G::kQueries),
                    d_o = tiles_of(args.d_o, s.batch, s.seq, G::kQueries),
                    out = tiles_of(args.dqkv, s.batch, s.seq, 64);
  constexpr int kSharedBytes = sizeof(Shared<kHeadDim>);
  TE_CUDA_CHECK(cudaFuncSetAttribute(flash_backward_kernel<kHeadDim>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const int blocks = std::min(multiprocessor_count(context), p.units);
  flash_backward_kernel<kHeadDim><<<blocks, kThreads, kSharedBytes, stream>>>(keys, queries, d_o, out, p);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

namespace cuda {

int64_t flash_backward_workspace_bytes(const AttentionShape& shape) {
  return (shape.head_dim == 64 ? Workspace::of<64>(shape) : Workspace::of<128>(shape)).bytes();
}

void flash_backward(const Context& context, const AttentionBackward& args) {
  args.shape.head_dim == 64 ? launch<64>(context, args) : launch<128>(context, args);
}

}  // namespace cuda
}  // namespace te::kernels
