// Finds the starts of a batch's documents from document_start: one block iterates over the tokens and numbers those
// that begin a document with a running count.
#include "kernels/attention/attention_documents.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;

struct DocumentParams {
  const int32_t* document_start;
  DocumentArrays to;
  int tokens, seq, max_documents;
  int qkv_row, o_row, lse_row;  ///< elements per token
};

__global__ void __launch_bounds__(kThreads) find_documents_kernel(DocumentParams p) {
  __shared__ int counts[kWarps];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int found = 0;  // documents before this iteration; the same in every thread
  for (int first = 0; first < p.tokens; first += kThreads) {
    const int token = first + static_cast<int>(threadIdx.x);
    const bool begins = token < p.tokens && p.document_start[token] == token % p.seq;
    const unsigned ballot = __ballot_sync(kAllLanes, begins);
    if (lane == 0) counts[warp] = __popc(ballot);
    __syncthreads();
    int number = found + __popc(ballot & ((1u << lane) - 1u));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) number += counts[w];
      found += counts[w];
    }
    if (begins && number <= p.max_documents) p.to.begins[number] = token;
    __syncthreads();  // counts is reused in the next iteration, and begins is read below
  }
  for (int d = static_cast<int>(threadIdx.x); d <= p.max_documents; d += kThreads) {
    const int begin = d < found ? p.to.begins[d] : p.tokens;
    p.to.qkv_offsets[d] = begin * p.qkv_row;
    p.to.o_offsets[d] = begin * p.o_row;
    p.to.lse_offsets[d] = begin * p.lse_row;
    if (d == p.max_documents) continue;
    // The last document of a sample ends where the next sample begins.
    p.to.lengths[d] = (d + 1 < found ? p.to.begins[d + 1] : p.tokens) - begin;
  }
}

int64_t padded(int64_t elements) {
  return (elements + 63) / 64 * 64;
}

}  // namespace

int64_t document_bytes(const AttentionShape& shape) {
  if (shape.max_documents == 0) return 0;
  return 5 * padded(shape.max_documents + 1) * static_cast<int64_t>(sizeof(int32_t));
}

DocumentArrays document_arrays(const AttentionShape& shape, void* memory) {
  int32_t* const base = static_cast<int32_t*>(memory);
  const int64_t size = padded(shape.max_documents + 1);
  return {base, base + size, base + 2 * size, base + 3 * size, base + 4 * size};
}

void find_documents(const Context& context, const AttentionShape& shape, const Tensor& document_start,
                    const DocumentArrays& arrays) {
  const int64_t qkv_row = (shape.num_heads + 2 * shape.num_query_groups) * shape.head_dim;
  const DocumentParams p{document_start.as<int32_t>(),
                         arrays,
                         static_cast<int>(shape.batch * shape.seq),
                         static_cast<int>(shape.seq),
                         static_cast<int>(shape.max_documents),
                         static_cast<int>(qkv_row),
                         static_cast<int>(shape.num_heads * shape.head_dim),
                         static_cast<int>(shape.num_heads)};
  find_documents_kernel<<<1, kThreads, 0, cuda_stream(context)>>>(p);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
