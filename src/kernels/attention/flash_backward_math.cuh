// The arithmetic of flash_backward.cu on a tile of scores, 128 keys x queries, of which a warpgroup has 64 keys. Matrices over (key,
// query) are transposed, so that as accumulators they are the operands of the GEMMs over queries.
#pragma once

#include "kernels/attention/flash_backward_roles.cuh"

namespace te::kernels::flash {

/// Where a thread finds its part: accumulator 4 g + 2 h + e has the key key_of + 8 h, the query thread.column() + 8 g + e.
__device__ __forceinline__ int key_of(const Thread& thread) {
  return thread.warpgroup * 64 + thread.row();
}
template <int kHeadDim>
__device__ __forceinline__ int statistics_of(const Thread& thread) {
  return thread.lane % 4 * Geometry<kHeadDim>::kLineOfC;
}

/// scores^T becomes P^T = exp(scale * scores - lse), 0 where the query does not see the key.
template <int kHeadDim>
__device__ __forceinline__ void probabilities(float (&scores)[Geometry<kHeadDim>::kQueries / 2],
                                              const float* lse2, const Walk<kHeadDim>& w,
                                              const Thread& thread, float scale_log2e) {
  constexpr int kQueries = Geometry<kHeadDim>::kQueries;
  if (w.on_diagonal()) {
    const int first =
        w.queries * kQueries - w.keys * kKeys + thread.column() - key_of(thread);  // query minus key
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i)
      if (first + i / 4 * 8 + i % 2 - i % 4 / 2 * 8 < 0) scores[i] = -kInfinity;
  }
#pragma unroll
  for (int g = 0; g < kQueries / 8; g += 2) {
    const float4 lse = *reinterpret_cast<const float4*>(lse2 + statistics_of<kHeadDim>(thread) + g * 2);
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
                                                const float* delta, const Thread& thread,
                                                uint32_t (&p_packed)[Geometry<kHeadDim>::kQueries / 4],
                                                uint32_t (&ds_packed)[Geometry<kHeadDim>::kQueries / 4]) {
#pragma unroll
  for (int g = 0; g < Geometry<kHeadDim>::kQueries / 8; g += 2) {
    const float4 four = *reinterpret_cast<const float4*>(delta + statistics_of<kHeadDim>(thread) + g * 2);
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const float *x = p + g * 4 + h * 2, *y = dp + g * 4 + h * 2;
      const float d = h < 2 ? four.x : four.z, d1 = h < 2 ? four.y : four.w;
      p_packed[g * 2 + h] = pack_bf16(x[0], x[1]);
      ds_packed[g * 2 + h] = pack_bf16(x[0] * (y[0] - d), x[1] * (y[1] - d1));
    }
  }
}

}  // namespace te::kernels::flash
