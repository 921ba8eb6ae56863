// The arithmetic of flash_backward.cu on one tile: 128 keys x queries, of which a warpgroup has 64 keys. Matrices over (key,
// query) are transposed, so that as accumulators they are the operands of the products over queries.
#pragma once

#include "kernels/attention/flash_backward_roles.cuh"

namespace te::kernels::flash {

/// Where a thread of a warpgroup that computes finds its part.
template <int kHeadDim>
struct Place {
  int warpgroup, thread, warp, lane;
  __device__ Place()
      : warpgroup(static_cast<int>(threadIdx.x) / kWarpgroup),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        warp(thread / kWarpSize),
        lane(thread % kWarpSize) {}
  /// Its first key and query in a tile; accumulator 4 g + 2 h + e has key + 8 h and query + 8 g + e.
  __device__ int key() const { return warpgroup * 64 + warp * 16 + lane / 4; }
  __device__ int query() const { return lane % 4 * 2; }
  __device__ int statistics() const { return lane % 4 * Geometry<kHeadDim>::kLineOfC; }
  /// Bytes from the first key of a tile to the warpgroup's.
  __device__ uint32_t keys_bytes() const { return warpgroup * 64 * kTileRowBytes; }
};

/// d = a b^T, [64 keys x queries], over the columns of the head; a and b are shared addresses.
template <int kHeadDim>
__device__ __forceinline__ void product_of_rows(float (&d)[Geometry<kHeadDim>::kQueries / 2], uint32_t a,
                                                uint32_t b) {
  using G = Geometry<kHeadDim>;
#pragma unroll
  for (int c = 0; c < G::kChunks; ++c)
#pragma unroll
    for (int k = 0; k < kTileColumns / 16; ++k)
      product<G::kQueries, Sum::columns, Sum::columns>(d, advance(operand(a), c * G::kKeyTile * 2 + k * 32),
                                                       advance(operand(b), c * G::kQueryTile * 2 + k * 32),
                                                       c + k > 0);
}

/// d += a b, [64 keys x head_dim], over the queries; a from registers, b a shared address; `fresh`: d = a b.
template <int kHeadDim>
__device__ __forceinline__ void product_over_queries(float (&d)[kHeadDim / 2],
                                                     const uint32_t (&a)[Geometry<kHeadDim>::kQueries / 4],
                                                     uint32_t b, bool fresh) {
  using G = Geometry<kHeadDim>;
#pragma unroll
  for (int k = 0; k < G::kQueries / 16; ++k)
    product<kHeadDim, Sum::rows>(d, a + k * 4, operand(b + k * 16 * kTileRowBytes, G::kQueryTile * 2),
                                 !fresh || k > 0);
}

/// d = a^T b over the keys, for 64 rows of a^T and 64 columns of b; both are shared addresses.
__device__ __forceinline__ void product_over_keys(float (&d)[32], uint32_t a, uint32_t b) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k)
    product<64, Sum::rows, Sum::rows>(d, operand(a + k * 16 * kTileRowBytes),
                                      operand(b + k * 16 * kTileRowBytes), k > 0);
}

/// scores^T becomes P^T = exp(scale * scores - lse), 0 where the query does not see the key.
template <int kHeadDim>
__device__ __forceinline__ void probabilities(float (&scores)[Geometry<kHeadDim>::kQueries / 2],
                                              const float* lse2, const Walk<kHeadDim>& w,
                                              const Place<kHeadDim>& place, float scale_log2e) {
  constexpr int kQueries = Geometry<kHeadDim>::kQueries;
  if (w.on_diagonal()) {
    const int first = w.queries * kQueries - w.keys * kKeys + place.query() - place.key();  // query minus key
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i)
      if (first + i / 4 * 8 + i % 2 - i % 4 / 2 * 8 < 0) scores[i] = -kInfinity;
  }
#pragma unroll
  for (int g = 0; g < kQueries / 8; g += 2) {
    const float4 lse = *reinterpret_cast<const float4*>(lse2 + place.statistics() + g * 2);
    float* x = scores + g * 4;
#pragma unroll
    for (int h = 0; h < 4; h += 2) {
      x[h] = exp2_fast(fmaf(x[h], scale_log2e, -lse.x));
      x[h + 1] = exp2_fast(fmaf(x[h + 1], scale_log2e, -lse.y));
      x[h + 4] = exp2_fast(fmaf(x[h + 4], scale_log2e, -lse.z));
      x[h + 5] = exp2_fast(fmaf(x[h + 5], scale_log2e, -lse.w));
    }
  }
}

/// P^T and dS^T = P^T (dP^T - delta) in BF16, as operands of products over queries.
template <int kHeadDim>
__device__ __forceinline__ void score_gradients(const float (&p)[Geometry<kHeadDim>::kQueries / 2],
                                                const float (&dp)[Geometry<kHeadDim>::kQueries / 2],
                                                const float* delta, const Place<kHeadDim>& place,
                                                uint32_t (&p_packed)[Geometry<kHeadDim>::kQueries / 4],
                                                uint32_t (&ds_packed)[Geometry<kHeadDim>::kQueries / 4]) {
#pragma unroll
  for (int g = 0; g < Geometry<kHeadDim>::kQueries / 8; g += 2) {
    const float4 four = *reinterpret_cast<const float4*>(delta + place.statistics() + g * 2);
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const float *x = p + g * 4 + h * 2, *y = dp + g * 4 + h * 2;
      const float d = h < 2 ? four.x : four.z, d1 = h < 2 ? four.y : four.w;
      p_packed[g * 2 + h] = pack_bf16(x[0], x[1]);
      ds_packed[g * 2 + h] = pack_bf16(x[0] * (y[0] - d), x[1] * (y[1] - d1));
    }
  }
}

/// dS^T to shared memory: tiles of 128 keys x 64 queries.
template <int kHeadDim>
__device__ __forceinline__ void store_score_gradients(
    const uint32_t (&ds_packed)[Geometry<kHeadDim>::kQueries / 4], uint32_t to,
    const Place<kHeadDim>& place) {
  const uint32_t row = place.warpgroup * 64 + place.warp * 16 + place.lane % 16;
#pragma unroll
  for (int k = 0; k < Geometry<kHeadDim>::kQueries / 16; ++k) {
    const uint32_t unit = (k % 4 * 2 + place.lane / 16) ^ (row % 8);
    store_matrices(to + k / 4 * Geometry<kHeadDim>::kKeyTile * 2 + row * kTileRowBytes + unit * 16,
                   ds_packed[k * 4], ds_packed[k * 4 + 1], ds_packed[k * 4 + 2], ds_packed[k * 4 + 3]);
  }
}

/// 64 x kN accumulators times a factor to shared memory, in BF16: tiles of 64 x 64.
template <int kN, int kHeadDim>
__device__ __forceinline__ void store_rounded(const float (&d)[kN / 2], float factor, void* tiles,
                                              const Place<kHeadDim>& place) {
  const uint32_t row = place.warp * 16 + place.lane % 16, to = shared_address(tiles);
#pragma unroll
  for (int k = 0; k < kN / 16; ++k) {
    const float* x = d + k * 8;
    const uint32_t unit = (k % 4 * 2 + place.lane / 16) ^ (row % 8);
    store_matrices(to + k / 4 * (64 * kTileRowBytes) + row * kTileRowBytes + unit * 16,
                   pack_bf16(x[0] * factor, x[1] * factor), pack_bf16(x[2] * factor, x[3] * factor),
                   pack_bf16(x[4] * factor, x[5] * factor), pack_bf16(x[6] * factor, x[7] * factor));
  }
}

}  // namespace te::kernels::flash
