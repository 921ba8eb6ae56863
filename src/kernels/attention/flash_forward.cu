// Forward pass of causal attention, for Hopper: o = softmax(scale q k^T) v, and the logarithm of its denominator.
//
// (Shah et al., arXiv 2407.08608.) A unit of work is a block of 128 queries of a head, 64 for each of two warpgroups; a thread
// loads the blocks of keys and values that they see, from the diagonal down. The product of the next scores runs while the
// softmax of these is computed, and the product with v while the next softmax is.
#include <cudaTypedefs.h>

#include <algorithm>

#include "kernels/attention/flash_forward.h"
#include "kernels/attention/flash_tiles.cuh"

namespace te::kernels {
namespace {

using namespace flash;

constexpr int kBlock = 128;  // queries of a unit, keys of a tile
constexpr int kQueryBuffers = 2;

template <int kHeadDim>
struct ForwardShared {
  static constexpr int kChunks = kHeadDim / kTileColumns;
  static constexpr int kStages = kHeadDim == 64 ? 3 : 2;
  __nv_bfloat16 q[kQueryBuffers][kChunks][kBlock * kTileColumns];  // later o
  __nv_bfloat16 k[kStages][kChunks][kBlock * kTileColumns];
  __nv_bfloat16 v[kStages][kChunks][kBlock * kTileColumns];
  uint64_t q_full[kQueryBuffers], q_empty[kQueryBuffers];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  int unit[kQueryBuffers];

  __device__ void init_barriers() {
    for (int i = 0; i < kQueryBuffers; ++i) {
      barrier_init(&q_full[i], 1);
      barrier_init(&q_empty[i], kConsumers);
    }
    for (int i = 0; i < kStages; ++i) {
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
  float scale, scale_log2e;
};

// Unit number -> (sample, head, block of queries): long ones first within a head.
struct Unit {
  int batch, head, block;
  __device__ Unit(const ForwardParams& p, int unit) {
    const int line = unit / p.blocks;
    block = p.blocks - 1 - unit % p.blocks;
    batch = line / p.num_heads;
    head = line % p.num_heads;
  }
};

template <int kHeadDim>
__device__ void load_tiles(ForwardShared<kHeadDim>& s, const ForwardParams& p, const CUtensorMap* map) {
  using S = ForwardShared<kHeadDim>;
  int count = 0;
  for (int units = 0;; ++units) {
    const int b = units % kQueryBuffers, unit = atomicAdd(p.next_unit, 1);
    wait(&s.q_empty[b], ((units / kQueryBuffers) & 1) ^ 1);
    s.unit[b] = unit;
    if (unit >= p.units) {
      arrive(&s.q_full[b]);
      return;
    }
    const Unit u(p, unit);
    arrive_expect_bytes(&s.q_full[b], sizeof(s.q[0]));
    for (int c = 0; c < S::kChunks; ++c)
      load_box(s.q[b][c], map, &s.q_full[b], u.head * kHeadDim + c * kTileColumns, u.block * kBlock, u.batch);
    const int group = u.head / (p.num_heads / p.num_groups);
    const int k_column = (p.num_heads + group) * kHeadDim, v_column = k_column + p.num_groups * kHeadDim;
    for (int keys = u.block; keys >= 0; --keys, ++count) {
      const int stage = count % S::kStages, parity = ((count / S::kStages) & 1) ^ 1;
      wait(&s.k_empty[stage], parity);
      arrive_expect_bytes(&s.k_full[stage], sizeof(s.k[0]));
      for (int c = 0; c < S::kChunks; ++c)
        load_box(s.k[stage][c], map, &s.k_full[stage], k_column + c * kTileColumns, keys * kBlock, u.batch);
      wait(&s.v_empty[stage], parity);
      arrive_expect_bytes(&s.v_full[stage], sizeof(s.v[0]));
      for (int c = 0; c < S::kChunks; ++c)
        load_box(s.v[stage][c], map, &s.v_full[stage], v_column + c * kTileColumns, keys * kBlock, u.batch);
    }
  }
}

// Of the two rows of a thread, 8 apart.
struct Rows {
  float max[2], sum[2];
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// scores -> exp(scale (scores - max)); rows.sum is this thread's part. factor: of what was summed up to now.
__device__ __forceinline__ void softmax(float (&scores)[kBlock / 2], Rows& rows, float (&factor)[2],
                                        bool first, float scale_log2e) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = scores[h * 2];
#pragma unroll
    for (int g = 0; g < kBlock / 8; ++g)
      most = fmaxf(most, fmaxf(scores[g * 4 + h * 2], scores[g * 4 + h * 2 + 1]));
    most = quad_max(most);
    if (!first) most = fmaxf(most, rows.max[h]);
    factor[h] = first ? 0.0f : exp2_fast((rows.max[h] - most) * scale_log2e);
    rows.max[h] = most;
    const float shift = most * scale_log2e;
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < kBlock / 8; ++g)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[g * 4 + h * 2 + e];
        x = exp2_fast(fmaf(x, scale_log2e, -shift));
        sum += x;
      }
    rows.sum[h] = first ? sum : fmaf(rows.sum[h], factor[h], sum);
  }
}

__device__ __forceinline__ void pack(const float (&scores)[kBlock / 2], uint32_t (&packed)[kBlock / 4]) {
#pragma unroll
  for (int i = 0; i < kBlock / 4; ++i) packed[i] = pack_bf16(scores[i * 2], scores[i * 2 + 1]);
}

template <int kHeadDim>
__device__ __forceinline__ void product_scores(float (&d)[kBlock / 2], uint32_t q, uint32_t k) {
#pragma unroll
  for (int c = 0; c < kHeadDim / kTileColumns; ++c)
#pragma unroll
    for (int i = 0; i < kTileColumns / 16; ++i)
      product<kBlock, Sum::columns, Sum::columns>(d, advance(operand(q), c * kBlock * kTileRowBytes + i * 32),
                                                  advance(operand(k), c * kBlock * kTileRowBytes + i * 32),
                                                  c + i > 0);
}
template <int kHeadDim>
__device__ __forceinline__ void product_values(float (&d)[kHeadDim / 2], const uint32_t (&p)[kBlock / 4],
                                               uint32_t v, bool fresh) {
#pragma unroll
  for (int i = 0; i < kBlock / 16; ++i)
    product<kHeadDim, Sum::rows>(d, p + i * 4, operand(v + i * 16 * kTileRowBytes, kBlock * kTileRowBytes),
                                 !fresh || i > 0);
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    flash_forward_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap out_map,
                         const ForwardParams p) {
  using S = ForwardShared<kHeadDim>;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<S*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, warp = thread / kWarpSize,
            lane = thread % kWarpSize;
  if (threadIdx.x == 0) s.init_barriers();
  __syncthreads();
  if (warpgroup == kConsumers) {
    give_registers<24>();
    if (thread == 0) load_tiles<kHeadDim>(s, p, &map);
    return;
  }
  take_registers<240>();
  const uint32_t rows_bytes = warpgroup * 64 * kTileRowBytes;
  const int row = warpgroup * 64 + warp * 16 + lane / 4, column = lane % 4 * 2;
  const uint32_t k_base = shared_address(s.k), v_base = shared_address(s.v);
  constexpr uint32_t kStageBytes = sizeof(s.k[0]);

  float scores[kBlock / 2], o[kHeadDim / 2];
  uint32_t packed[kBlock / 4];
  int count = 0;
  for (int units = 0;; ++units) {
    const int b = units % kQueryBuffers;
    wait(&s.q_full[b], (units / kQueryBuffers) & 1);
    if (s.unit[b] >= p.units) break;
    const Unit u(p, s.unit[b]);
    const uint32_t q = shared_address(s.q[b]) + rows_bytes;
    Rows rows;
    float factor[2];

    // 1. The tile on the diagonal.
    int stage = count % S::kStages, parity = (count / S::kStages) & 1;
    wait(&s.k_full[stage], parity);
    product_fence();
    product_scores<kHeadDim>(scores, q, k_base + stage * kStageBytes);
    product_commit();
    product_wait<0>();
    arrived(scores);
    if (lane == 0) arrive(&s.k_empty[stage]);
#pragma unroll
    for (int i = 0; i < kBlock / 2; ++i)
      if (i / 4 * 8 + i % 2 + column > row + i % 4 / 2 * 8) scores[i] = -kInfinity;
    softmax(scores, rows, factor, true, p.scale_log2e);
    pack(scores, packed);
    // The buffer before this one is free when o has left it.
    if (thread == 0 && units > 0) {
      wait_for_sources();
      arrive(&s.q_empty[b ^ 1]);
    }

    // 2. The others: scores of a tile beside the product with v of the tile before.
    for (int keys = u.block - 1; keys >= 0; --keys) {
      const int next = (count + 1) % S::kStages, next_parity = ((count + 1) / S::kStages) & 1;
      wait(&s.k_full[next], next_parity);
      product_fence();
      product_scores<kHeadDim>(scores, q, k_base + next * kStageBytes);
      product_commit();
      wait(&s.v_full[stage], parity);
      product_fence();
      product_values<kHeadDim>(o, packed, v_base + stage * kStageBytes, keys == u.block - 1);
      product_commit();
      product_wait<1>();
      arrived(scores);
      if (lane == 0) arrive(&s.k_empty[next]);
      softmax(scores, rows, factor, false, p.scale_log2e);
      product_wait<0>();
      arrived(o);
      if (lane == 0) arrive(&s.v_empty[stage]);
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= factor[i % 4 / 2];
      pack(scores, packed);
      ++count, stage = next, parity = next_parity;
    }
    wait(&s.v_full[stage], parity);
    product_fence();
    product_values<kHeadDim>(o, packed, v_base + stage * kStageBytes, u.block == 0);
    product_commit();
    product_wait<0>();
    arrived(o);
    if (lane == 0) arrive(&s.v_empty[stage]);
    ++count;

    // 3. o to where q was, from there to memory; lse.
    const int query = u.block * kBlock + row;
    float* const lse = p.lse + (static_cast<int64_t>(u.batch) * p.num_heads + u.head) * p.seq;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(rows.sum[h]);
      if (lane % 4 == 0 && query + h * 8 < p.seq) lse[query + h * 8] = fmaf(rows.max[h], p.scale, logf(sum));
      const float inverse = 1.0f / sum;
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) o[i * 4 + h * 2] *= inverse, o[i * 4 + h * 2 + 1] *= inverse;
    }
    const uint32_t store_row = warpgroup * 64 + warp * 16 + lane % 16, to = shared_address(s.q[b]);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const float* x = o + k * 8;
      const uint32_t unit = (k % 4 * 2 + lane / 16) ^ (store_row % 8);
      store_matrices(to + k / 4 * (kBlock * kTileRowBytes) + store_row * kTileRowBytes + unit * 16,
                     pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                     pack_bf16(x[6], x[7]));
    }
    fence_shared_for_async();
    sync_warps<kWarpgroup>(2 + warpgroup);
    if (thread == 0) {
      for (int c = 0; c < S::kChunks; ++c)
        store_box(&out_map, s.q[b][c] + warpgroup * 64 * kTileColumns, u.head * kHeadDim + c * kTileColumns,
                  u.block * kBlock + warpgroup * 64, u.batch);
      commit_stores();
    }
  }
  if (thread == 0) wait_for_sources();
}

template <int kHeadDim>
void launch(const Context& context, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  const cudaStream_t stream = cuda_stream(context);
  const int64_t blocks = ceil_div(s.seq, kBlock);
  const ForwardParams p{.lse = args.lse.as<float>(),
                        .next_unit = args.workspace.as<int>(),
                        .seq = static_cast<int>(s.seq),
                        .num_heads = static_cast<int>(s.num_heads),
                        .num_groups = static_cast<int>(s.num_query_groups),
                        .blocks = static_cast<int>(blocks),
                        .units = static_cast<int>(s.batch * s.num_heads * blocks),
                        .scale = s.softmax_scale,
                        .scale_log2e = s.softmax_scale * kLog2E};
  TE_CUDA_CHECK(cudaMemsetAsync(p.next_unit, 0, sizeof(int), stream));
  const CUtensorMap map = tiles_of(args.qkv, s.batch, s.seq, kBlock),
                    out = tiles_of(args.o, s.batch, s.seq, 64);
  constexpr int kSharedBytes = sizeof(ForwardShared<kHeadDim>);
  TE_CUDA_CHECK(cudaFuncSetAttribute(flash_forward_kernel<kHeadDim>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  flash_forward_kernel<kHeadDim>
      <<<std::min(multiprocessor_count(context), p.units), kThreads, kSharedBytes, stream>>>(map, out, p);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

namespace cuda {

bool flash_forward_supported(const AttentionShape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.dropout == 0.0f && shape.max_documents == 0;
}
int64_t flash_forward_workspace_bytes(const AttentionShape&) {
  return 16;
}
void flash_forward(const Context& context, const AttentionForward& args) {
  args.shape.head_dim == 64 ? launch<64>(context, args) : launch<128>(context, args);
}

}  // namespace cuda
}  // namespace te::kernels
