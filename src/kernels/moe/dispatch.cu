// Order of received rows and tokens on the GPU: one block computes where the rows of each expert and rank are, then a
// block per expert and rank writes them. Slots differ, so no two threads write the same place.
#include <algorithm>

#include "kernels/common/cuda_common.cuh"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/prefix_sum.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
/// The threads of segments_kernel(): one per expert and rank.
constexpr int kSegmentThreads = kMaxExperts;

struct Geometry {
  int ranks, experts, first_expert, stride;
  int64_t begin, end;  ///< positions of the round
  int alignment;
};

__device__ int within(int64_t position, const Geometry& g) {
  return static_cast<int>(min(max(position, g.begin), g.end) - g.begin);
}

__global__ void __launch_bounds__(kSegmentThreads)
    segments_kernel(const int32_t* counts, Geometry g, int32_t* offsets, int32_t* segments) {
  __shared__ int shared[32];
  __shared__ int rows[kSegmentThreads], first[kSegmentThreads];
  const int i = threadIdx.x, all = g.experts * g.ranks;
  // 1. Rows of expert i / ranks and rank i % ranks that belong to the round.
  int count = 0;
  if (i < all) {
    const int32_t* const range = counts + int64_t{i % g.ranks} * g.stride + g.first_expert + i / g.ranks;
    count = range[1] - range[0];
  }
  const int64_t position = prefix_sum(count, shared).x;
  const int own = within(position + count, g) - within(position, g);
  rows[i] = i < all ? own : 0;
  __syncthreads();
  // 2. Their first received row: thread i has rank i / experts and expert i % experts.
  const int by_rank = i < all ? i % g.experts * g.ranks + i / g.experts : 0;
  const int received = prefix_sum(i < all ? rows[by_rank] : 0, shared).x;
  if (i < all) segments[3 * by_rank] = received;
  // 3. The first row of each expert.
  int of_expert = 0;
  if (i < g.experts)
    for (int rank = 0; rank < g.ranks; ++rank) of_expert += rows[i * g.ranks + rank];
  const int aligned = (of_expert + g.alignment - 1) / g.alignment * g.alignment;
  const int start = prefix_sum(aligned, shared).x;
  first[i] = start;
  if (i < g.experts) offsets[i] = start;
  if (i == g.experts - 1) offsets[g.experts] = start + aligned;
  __syncthreads();
  // 4. Their first row.
  if (i >= all) return;
  int row = first[i / g.ranks];
  for (int before = i / g.ranks * g.ranks; before < i; ++before) row += rows[before];
  segments[3 * i + 1] = row;
  segments[3 * i + 2] = rows[i];
}

/// A thread processes a token and a rank.
__global__ void token_ranks_kernel(const int32_t* row_of, int64_t tokens, int topk, const int32_t* offsets,
                                   int own, int ranks, int32_t* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= tokens * ranks) return;
  const int rank = static_cast<int>(i % ranks);
  const int32_t begin = offsets[rank * own], end = offsets[(rank + 1) * own];
  bool sent = false;
  for (int slot = 0; slot < topk; ++slot) {
    const int32_t row = row_of[i / ranks * topk + slot];
    sent = sent || (row >= begin && row < end);
  }
  out[i] = sent ? rank : -1;
}

/// A thread processes a selection.
__global__ void token_slots_kernel(const int32_t* row_of, int64_t selections, int topk,
                                   const int32_t* offsets, int own, const int32_t* token_row_of,
                                   const int32_t* token_offsets, int ranks, int width, int32_t* slots) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= selections) return;
  const int32_t row = row_of[i];
  if (row < 0) return;
  int rank = 0;
  while (row >= offsets[(rank + 1) * own]) ++rank;
  const int32_t begin = offsets[rank * own];
  int slot = 0;
  for (int other = 0; other < topk; ++other) {
    const int32_t of_other = row_of[i / topk * topk + other];
    slot += of_other >= begin && of_other < row ? 1 : 0;
  }
  slots[row] = (token_row_of[i / topk * ranks + rank] - token_offsets[rank]) * width + slot;
}

/// Sets up to n values of four lists, of which some may be empty, to -1.
struct Lists {
  int32_t* list[4];
  int64_t count[4];
};
__global__ void fill_kernel(const __grid_constant__ Lists lists) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (i < lists.count[k]) lists.list[k][i] = -1;
}

/// The slots of the received tokens; null: none.
struct Slots {
  const int32_t* slots;
  const int32_t* counts;  ///< of the first rank: first token for this rank
  int stride, width;
  int32_t *source, *rows;
};

/// A block has the rows of an expert and a rank.
__global__ void place_kernel(const int32_t* segments, int ranks, int32_t* source, int32_t* row_of,
                             const __grid_constant__ Slots tokens) {
  const int32_t* const segment = segments + 3 * int64_t{blockIdx.x};
  const int32_t received = segment[0], row = segment[1], count = segment[2];
  int32_t first = 0, end = 0;  // slots of the rank's tokens
  if (tokens.slots != nullptr)
    for (int rank = 0; rank <= static_cast<int>(blockIdx.x) % ranks; ++rank) {
      const int32_t* const of_rank = tokens.counts + int64_t{rank} * tokens.stride;
      first = end, end += (of_rank[1] - of_rank[0]) * tokens.width;
    }
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    source[row + i] = received + i;
    row_of[received + i] = row + i;
    if (tokens.slots == nullptr) continue;
    const int32_t slot = tokens.slots[received + i];
    if (slot < 0 || slot >= end - first) continue;  // a dry run receives no slots of others
    tokens.source[row + i] = first + slot;
    tokens.rows[first + slot] = row + i;
  }
}

__global__ void gather_kernel(const float* x, const int32_t* index, float* out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) out[i] = index[i] < 0 ? 0.0f : x[index[i]];
}

}  // namespace

void token_ranks(const Context& context, const TokenRanks& a) {
  const int64_t tokens = a.row_of.rows(), ranks = a.ranks.cols();
  token_ranks_kernel<<<ceil_div(tokens * ranks, kThreads), kThreads, 0, cuda_stream(context)>>>(
      a.row_of.as<int32_t>(), tokens, static_cast<int>(a.row_of.cols()), a.offsets.as<int32_t>(),
      static_cast<int>((a.offsets.numel() - 1) / ranks), static_cast<int>(ranks), a.ranks.as<int32_t>());
  TE_CUDA_CHECK_LAUNCH();
}

void token_slots(const Context& context, const TokenSlots& a) {
  const int64_t topk = a.row_of.cols(), ranks = a.token_row_of.cols(), own = (a.offsets.numel() - 1) / ranks;
  token_slots_kernel<<<ceil_div(a.row_of.numel(), kThreads), kThreads, 0, cuda_stream(context)>>>(
      a.row_of.as<int32_t>(), a.row_of.numel(), static_cast<int>(topk), a.offsets.as<int32_t>(),
      static_cast<int>(own), a.token_row_of.as<int32_t>(), a.token_offsets.as<int32_t>(),
      static_cast<int>(ranks), static_cast<int>(token_slot_count(topk, own)), a.slots.as<int32_t>());
  TE_CUDA_CHECK_LAUNCH();
}

void dispatch_rows(const Context& context, const DispatchRows& a) {
  const int64_t capacity = a.row_of.numel(), rows = a.source.numel();
  const Geometry geometry{.ranks = static_cast<int>(a.counts.rows()),
                          .experts = static_cast<int>(a.offsets.numel() - 1),
                          .first_expert = static_cast<int>(a.first_expert),
                          .stride = static_cast<int>(a.counts.cols()),
                          .begin = a.round * capacity,
                          .end = (a.round + 1) * capacity,
                          .alignment = static_cast<int>(a.alignment)};
  auto *const segments = a.segments.as<int32_t>(), *const source = a.source.as<int32_t>(),
              *const row_of = a.row_of.as<int32_t>();
  segments_kernel<<<1, kSegmentThreads, 0, cuda_stream(context)>>>(a.counts.as<int32_t>(), geometry,
                                                                   a.offsets.as<int32_t>(), segments);
  TE_CUDA_CHECK_LAUNCH();
  const Lists lists{{source, row_of, a.token_source.as<int32_t>(), a.token_rows.as<int32_t>()},
                    {rows, capacity, a.token_source.numel(), a.token_rows.numel()}};
  fill_kernel<<<ceil_div(*std::max_element(lists.count, lists.count + 4), kThreads), kThreads, 0,
                cuda_stream(context)>>>(lists);
  TE_CUDA_CHECK_LAUNCH();
  const Slots tokens{.slots = a.slots.as<int32_t>(),
                     .counts = a.counts.as<int32_t>() + geometry.stride - (geometry.ranks + 1) +
                               geometry.first_expert / geometry.experts,
                     .stride = geometry.stride,
                     .width = static_cast<int>(a.token_rows.cols()),
                     .source = a.token_source.as<int32_t>(),
                     .rows = a.token_rows.as<int32_t>()};
  place_kernel<<<static_cast<unsigned>(a.segments.rows()), kThreads, 0, cuda_stream(context)>>>(
      segments, geometry.ranks, source, row_of, tokens);
  TE_CUDA_CHECK_LAUNCH();
}

void gather_values(const Context& context, const GatherValues& a) {
  const int64_t n = a.out.numel();
  if (n == 0) return;
  gather_kernel<<<ceil_div(n, kThreads), kThreads, 0, cuda_stream(context)>>>(
      a.x.as<float>(), a.index.as<int32_t>(), a.out.as<float>(), n);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
