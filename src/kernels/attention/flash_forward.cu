// Forward pass of causal attention, for Hopper: o = softmax(scale q k^T) v, and the logarithm of the softmax's denominator.
//
// (Shah et al., arXiv 2407.08608.) A unit of work is a block of 128 queries of a head, 64 for each of two warpgroups. A thread
// loads the tiles of keys and values that they see, from the diagonal down; softmax is computed as they come, with the largest
// score so far. Three things keep the tensor cores at work meanwhile. Scores of a tile and the product with v of the tile
// before are begun together. The last product with v of a unit goes with the first scores of the next. And the warpgroups
// take turns at beginning their products, so that one computes exponentials while the other's products run.
//
// Units are handed out to the blocks of the grid as they become free, the long ones first; of as many heads at a time as the
// L2 cache has room for.
#include <algorithm>

#include "kernels/attention/flash_attention.h"
#include "kernels/attention/flash_tiles.cuh"

namespace te::kernels {
namespace {

using namespace flash;

constexpr int kQueries = 128;                        // of a unit
constexpr int kKeys = 128;                           // of a tile
constexpr int64_t kBytesAtOnce = int64_t{16} << 20;  // of keys and values, in the L2 cache

template <int kHeadDim>
struct ForwardGeometry {
  static constexpr int kChunks = kHeadDim / kTileColumns;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;  // tiles of keys, and of values, in shared memory
  static constexpr int kQueryBuffers = kHeadDim == 64 ? 3 : 2;
};

// A unit: of a head the queries from block * kQueries on.
struct Unit {
  int batch, head, block;
  __device__ bool is_end() const { return batch < 0; }
};

template <int kHeadDim>
struct ForwardShared {
  using G = ForwardGeometry<kHeadDim>;
  __nv_bfloat16 q[G::kQueryBuffers][G::kChunks][kQueries * kTileColumns];  // later o
  __nv_bfloat16 k[G::kStages][G::kChunks][kKeys * kTileColumns];
  __nv_bfloat16 v[G::kStages][G::kChunks][kKeys * kTileColumns];
  uint64_t q_full[G::kQueryBuffers], q_empty[G::kQueryBuffers], o_full[kConsumers];
  uint64_t k_full[G::kStages], k_empty[G::kStages], v_full[G::kStages], v_empty[G::kStages];
  Unit unit[G::kQueryBuffers];

  __device__ void init_barriers() {
    for (int i = 0; i < G::kQueryBuffers; ++i) {
      barrier_init(&q_full[i], 1);
      barrier_init(&q_empty[i], kConsumers);
    }
    for (int i = 0; i < kConsumers; ++i) barrier_init(&o_full[i], kConsumerWarps / kConsumers);
    for (int i = 0; i < G::kStages; ++i) {
      barrier_init(&k_full[i], 1);
      barrier_init(&v_full[i], 1);
      barrier_init(&k_empty[i], kConsumerWarps);
      barrier_init(&v_empty[i], kConsumerWarps);
    }
    fence_barrier_init();
  }
};

struct ForwardParams {
  float* lse;  // [batch, heads, seq]
  int* next_unit;
  int seq, num_heads, num_groups, blocks, units;
  int lines;          // heads of all samples
  int lines_at_once;  // of which units are under way at a time
  float scale, scale_log2e;
};

__device__ Unit unit_of(const ForwardParams& p, int number) {
  const int together = p.lines_at_once * p.blocks, first = number / together * p.lines_at_once;
  const int lines = min(p.lines_at_once, p.lines - first), within = number % together;
  const int line = first + within % lines;
  return {line / p.num_heads, line % p.num_heads, p.blocks - 1 - within / lines};
}

// A buffer or stage, one after the other in a ring, and the parity of its barriers' phase.
template <int kCount>
struct Ring {
  int at = 0, parity = 0;
  __device__ void next() {
    at = at + 1 == kCount ? 0 : at + 1;
    if (at == 0) parity ^= 1;
  }
};

// --- the threads that move data ------------------------------------------------------------------------------------

template <int kHeadDim>
__device__ void load_tiles(ForwardShared<kHeadDim>& s, const ForwardParams& p, const CUtensorMap* map) {
  using G = ForwardGeometry<kHeadDim>;
  const auto load = [&](auto& tile, uint64_t* full, int column, int row, int batch) {
    arrive_expect_bytes(full, sizeof(tile));
    for (int c = 0; c < G::kChunks; ++c) load_box(tile[c], map, full, column + c * kTileColumns, row, batch);
  };
  Ring<G::kStages> stage;
  for (Ring<G::kQueryBuffers> b;; b.next()) {
    const int number = atomicAdd(p.next_unit, 1);
    wait(&s.q_empty[b.at], b.parity ^ 1);
    if (number >= p.units) {
      s.unit[b.at].batch = -1;
      arrive(&s.q_full[b.at]);
      return;
    }
    const Unit u = unit_of(p, number);
    s.unit[b.at] = u;
    load(s.q[b.at], &s.q_full[b.at], u.head * kHeadDim, u.block * kQueries, u.batch);
    const int group = u.head / (p.num_heads / p.num_groups);
    const int k_column = (p.num_heads + group) * kHeadDim, v_column = k_column + p.num_groups * kHeadDim;
    for (int tile = u.block; tile >= 0; --tile, stage.next()) {
      wait(&s.k_empty[stage.at], stage.parity ^ 1);
      load(s.k[stage.at], &s.k_full[stage.at], k_column, tile * kKeys, u.batch);
      wait(&s.v_empty[stage.at], stage.parity ^ 1);
      load(s.v[stage.at], &s.v_full[stage.at], v_column, tile * kKeys, u.batch);
    }
  }
}

// Takes the o of a warpgroup to memory; then the queries' buffer is free.
template <int kHeadDim>
__device__ void deliver(ForwardShared<kHeadDim>& s, const CUtensorMap* map, int warpgroup) {
  using G = ForwardGeometry<kHeadDim>;
  int parity = 0;
  for (Ring<G::kQueryBuffers> b;; b.next(), parity ^= 1) {
    wait(&s.q_full[b.at], b.parity);
    const Unit u = s.unit[b.at];
    if (u.is_end()) return;
    wait(&s.o_full[warpgroup], parity);
    for (int c = 0; c < G::kChunks; ++c)
      store_box(map, s.q[b.at][c] + warpgroup * 64 * kTileColumns, u.head * kHeadDim + c * kTileColumns,
                u.block * kQueries + warpgroup * 64, u.batch);
    commit_stores();
    wait_for_sources();
    arrive(&s.q_empty[b.at]);
  }
}

// --- the arithmetic of a warpgroup: 64 queries, of which a thread has two, 8 apart ---------------------------------------

struct Rows {
  float max[2], sum[2];  // of scores, not scaled; of exponentials, this thread's part
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// scores -> exp(scale (scores - max)), added to rows. factor: what was summed up to now has to be multiplied by.
template <bool kFirst>
__device__ __forceinline__ void softmax(float (&scores)[kKeys / 2], Rows& rows, float (&factor)[2],
                                        float scale_log2e) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // Four chains each: few warps are there to hide latencies.
    float most[4], sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) most[i] = fmaxf(scores[i * 4 + h * 2], scores[i * 4 + h * 2 + 1]);
#pragma unroll
    for (int g = 4; g < kKeys / 8; ++g)
      most[g % 4] = fmaxf(fmaxf(most[g % 4], scores[g * 4 + h * 2]), scores[g * 4 + h * 2 + 1]);
    float max = quad_max(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
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

// Keys behind the query, in the tile on the diagonal.
__device__ __forceinline__ void mask(float (&scores)[kKeys / 2], int row, int column) {
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i)
    if (i / 4 * 8 + i % 2 + column > row + i % 4 / 2 * 8) scores[i] = -kInfinity;
}

__device__ __forceinline__ void pack(const float (&scores)[kKeys / 2], uint32_t (&packed)[kKeys / 4]) {
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) packed[i] = pack_bf16(scores[i * 2], scores[i * 2 + 1]);
}

template <int kHeadDim>
__device__ __forceinline__ void product_scores(float (&d)[kKeys / 2], uint32_t q, uint32_t k) {
#pragma unroll
  for (int c = 0; c < kHeadDim / kTileColumns; ++c)
#pragma unroll
    for (int i = 0; i < kTileColumns / 16; ++i)
      product<kKeys, Sum::columns, Sum::columns>(
          d, advance(operand(q), c * kQueries * kTileRowBytes + i * 32),
          advance(operand(k), c * kKeys * kTileRowBytes + i * 32), c + i > 0);
}
template <int kHeadDim>
__device__ __forceinline__ void product_values(float (&d)[kHeadDim / 2], const uint32_t (&p)[kKeys / 4],
                                               uint32_t v, bool fresh) {
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i)
    product<kHeadDim, Sum::rows>(d, p + i * 4, operand(v + i * 16 * kTileRowBytes, kKeys * kTileRowBytes),
                                 !fresh || i > 0);
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    flash_forward_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap out_map,
                         const ForwardParams p) {
  using G = ForwardGeometry<kHeadDim>;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<ForwardShared<kHeadDim>*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, warp = thread / kWarpSize,
            lane = thread % kWarpSize;
  if (threadIdx.x == 0) s.init_barriers();
  __syncthreads();
  if (warpgroup == kConsumers) {
    give_registers<40>();
    if (thread == 0) load_tiles<kHeadDim>(s, p, &map);
    if (thread == kWarpSize) deliver<kHeadDim>(s, &out_map, 0);
    if (thread == 2 * kWarpSize) deliver<kHeadDim>(s, &out_map, 1);
    return;
  }
  take_registers<232>();
  // Of the warpgroup's part of a buffer or of the block of queries.
  const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  const uint32_t q_base = shared_address(s.q) + warpgroup * 64 * kTileRowBytes, k_base = shared_address(s.k),
                 v_base = shared_address(s.v);
  constexpr uint32_t kQueryBytes = sizeof(s.q[0]), kStageBytes = sizeof(s.k[0]);
  const auto begin_turn = [&] { sync_warps<kConsumerThreads>(1 + warpgroup); };
  const auto end_turn = [&] { arrive_warps<kConsumerThreads>(2 - warpgroup); };
  if (warpgroup == 1) end_turn();

  float scores[kKeys / 2], o[kHeadDim / 2], factor[2];
  uint32_t packed[kKeys / 4];
  Rows rows;
  Ring<G::kQueryBuffers> b;
  Ring<G::kStages> stage;

  // 1. The first unit's tile on the diagonal.
  wait(&s.q_full[0], 0);
  Unit u = s.unit[0];
  if (u.is_end()) return;
  wait(&s.k_full[0], 0);
  product_fence();
  product_scores<kHeadDim>(scores, q_base, k_base);
  product_commit();
  product_wait<0>();
  arrived(scores);
  if (lane == 0) arrive(&s.k_empty[0]);
  mask(scores, warpgroup * 64 + row, column);
  softmax<true>(scores, rows, factor, p.scale_log2e);
  pack(scores, packed);

  while (true) {
    bool fresh = true;
    // 2. The scores of a tile beside the product with v of the tile before.
    for (int tile = u.block - 1; tile >= 0; --tile) {
      const Ring before = stage;
      stage.next();
      wait(&s.k_full[stage.at], stage.parity);
      wait(&s.v_full[before.at], before.parity);
      begin_turn();
      product_fence();
      product_scores<kHeadDim>(scores, q_base + b.at * kQueryBytes, k_base + stage.at * kStageBytes);
      product_commit();
      product_values<kHeadDim>(o, packed, v_base + before.at * kStageBytes, fresh);
      product_commit();
      end_turn();
      product_wait<1>();
      arrived(scores);
      if (lane == 0) arrive(&s.k_empty[stage.at]);
      softmax<false>(scores, rows, factor, p.scale_log2e);
      product_wait<0>();
      arrived(o);
      if (lane == 0) arrive(&s.v_empty[before.at]);
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= factor[i % 4 / 2];
      pack(scores, packed);
      fresh = false;
    }

    // 3. The last product with v, beside the scores on the next unit's diagonal. When there is none, they are of what is
    // there, and nobody looks at them: a branch around products would make the compiler wait for them.
    const Unit done = u;
    const Rows sums = rows;
    const Ring before = stage;
    const uint32_t o_to = q_base + b.at * kQueryBytes;
    b.next();
    stage.next();
    wait(&s.q_full[b.at], b.parity);
    u = s.unit[b.at];
    if (!u.is_end()) wait(&s.k_full[stage.at], stage.parity);
    wait(&s.v_full[before.at], before.parity);
    begin_turn();
    product_fence();
    product_scores<kHeadDim>(scores, q_base + b.at * kQueryBytes, k_base + stage.at * kStageBytes);
    product_commit();
    product_values<kHeadDim>(o, packed, v_base + before.at * kStageBytes, fresh);
    product_commit();
    end_turn();
    product_wait<1>();
    arrived(scores);
    if (lane == 0) arrive(&s.k_empty[stage.at]);
    mask(scores, warpgroup * 64 + row, column);
    softmax<true>(scores, rows, factor, p.scale_log2e);
    product_wait<0>();
    arrived(o);
    if (lane == 0) arrive(&s.v_empty[before.at]);
    pack(scores, packed);

    // 4. lse; o to where q was.
    const int query = done.block * kQueries + warpgroup * 64 + row;
    float* const lse = p.lse + (static_cast<int64_t>(done.batch) * p.num_heads + done.head) * p.seq;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(sums.sum[h]);
      if (lane % 4 == 0 && query + h * 8 < p.seq)
        lse[query + h * 8] = fmaf(sums.max[h], p.scale, __logf(sum));
      const float inverse = __frcp_rn(sum);
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) o[i * 4 + h * 2] *= inverse, o[i * 4 + h * 2 + 1] *= inverse;
    }
    const uint32_t store_row = warp * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const float* x = o + k * 8;
      const uint32_t unit = (k % 4 * 2 + lane / 16) ^ (store_row % 8);
      store_matrices(o_to + k / 4 * (kQueries * kTileRowBytes) + store_row * kTileRowBytes + unit * 16,
                     pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                     pack_bf16(x[6], x[7]));
    }
    fence_shared_for_async();
    __syncwarp();
    if (lane == 0) arrive(&s.o_full[warpgroup]);
    if (u.is_end()) return;
  }
}

template <int kHeadDim>
void launch(const Context& context, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  TE_CHECK(static_cast<int64_t>(args.workspace.bytes()) >= cuda::flash_forward_workspace_bytes(s),
           "attention: workspace has {} bytes, attention_workspace_bytes asked for {}",
           args.workspace.bytes(), cuda::flash_forward_workspace_bytes(s));
  const cudaStream_t stream = cuda_stream(context);
  const int64_t blocks = ceil_div(s.seq, kQueries), lines = s.batch * s.num_heads;
  const int64_t line_bytes = s.seq * s.head_dim * 2 * int64_t{sizeof(__nv_bfloat16)};
  const ForwardParams p{
      .lse = args.lse.as<float>(),
      .next_unit = args.workspace.as<int>(),
      .seq = static_cast<int>(s.seq),
      .num_heads = static_cast<int>(s.num_heads),
      .num_groups = static_cast<int>(s.num_query_groups),
      .blocks = static_cast<int>(blocks),
      .units = static_cast<int>(lines * blocks),
      .lines = static_cast<int>(lines),
      .lines_at_once = static_cast<int>(std::clamp<int64_t>(kBytesAtOnce / line_bytes, 1, lines)),
      .scale = s.softmax_scale,
      .scale_log2e = s.softmax_scale * kLog2E};
  TE_CUDA_CHECK(cudaMemsetAsync(p.next_unit, 0, sizeof(int), stream));
  const CUtensorMap map = tiles_of(args.qkv, s.batch, s.seq, kKeys),
                    out = tiles_of(args.o, s.batch, s.seq, 64);
  constexpr int kSharedBytes = sizeof(ForwardShared<kHeadDim>);
  TE_CUDA_CHECK(cudaFuncSetAttribute(flash_forward_kernel<kHeadDim>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const int grid = std::min(multiprocessor_count(context), p.units);
  flash_forward_kernel<kHeadDim><<<grid, kThreads, kSharedBytes, stream>>>(map, out, p);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

namespace cuda {

int64_t flash_forward_workspace_bytes(const AttentionShape&) {
  return sizeof(int);
}
void flash_forward(const Context& context, const AttentionForward& args) {
  args.shape.head_dim == 64 ? launch<64>(context, args) : launch<128>(context, args);
}

}  // namespace cuda
}  // namespace te::kernels
