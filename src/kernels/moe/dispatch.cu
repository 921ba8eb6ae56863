// Order of received rows on the GPU: one block computes where the rows of each expert and rank are, then a block per
// expert and rank writes them.
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

__global__ void fill_kernel(int32_t* source, int64_t rows, int32_t* row_of, int64_t capacity) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < rows) source[i] = -1;
  if (i < capacity) row_of[i] = -1;
}

__global__ void place_kernel(const int32_t* segments, int32_t* source, int32_t* row_of) {
  const int32_t* const segment = segments + 3 * int64_t{blockIdx.x};
  const int32_t received = segment[0], row = segment[1], count = segment[2];
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    source[row + i] = received + i;
    row_of[received + i] = row + i;
  }
}

__global__ void gather_kernel(const float* x, const int32_t* index, float* out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) out[i] = index[i] < 0 ? 0.0f : x[index[i]];
}

}  // namespace

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
  fill_kernel<<<ceil_div(rows > capacity ? rows : capacity, kThreads), kThreads, 0, cuda_stream(context)>>>(
      source, rows, row_of, capacity);
  TE_CUDA_CHECK_LAUNCH();
  place_kernel<<<static_cast<unsigned>(a.segments.rows()), kThreads, 0, cuda_stream(context)>>>(
      segments, source, row_of);
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
