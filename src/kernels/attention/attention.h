// Causal attention with grouped queries: o = softmax(q k^T * softmax_scale + causal mask) v per head, no score matrix
// in memory. On a GPU (head_dim a multiple of 8, at most 256), as attention_kernels() tells:
//
//   te-train's for Hopper  BF16 heads of 64 and 128 without dropout, with any documents, window and range of queries
//                          (flash_attention.h)
//   cuDNN's                other 16-bit heads, where it has kernels for both passes
//   te-train's in FP32     FP32, and what cuDNN does not have, such as a window or a range with documents or dropout
//                          (tiled_attention.h)
//
// On the CPU an online-softmax reference (Milakov and Gimelshein, arXiv 1805.02867; Dao, arXiv 2307.08691). q, k and v
// are read in place from the packed output of linear_qkv, the gradients written to the same layout.
//
// Scores, softmax and sums are FP32; o and dqkv are rounded once (the first two on a GPU also round the probabilities
// and their gradients to 16 bits between the GEMMs). Deterministic on both backends: the same inputs give the
// same bits, on the CPU for any number of threads; on a GPU unless cuDNN is left a shape with documents (dq is then
// added with atomics: its deterministic algorithm would need memory for max_documents matrices of
// seq x seq) or the context's options say so for a shape that is left to it (deterministic_attention).
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Consecutive queries of a rank that holds some of a sequence's tokens, the same ones in every sample.
struct QueryRange {
  int64_t count = 0;     ///< 0: no range, all of the sequence
  int64_t position = 0;  ///< of the first query in the sequence
  int64_t rows = 0;      ///< tokens of a sample that the rank holds
  int64_t first = 0;     ///< the first query's place among them
  /// Keys that the last query sees, and the others some of: those up to itself.
  int64_t keys() const { return position + count; }
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;  ///< divides num_heads; head h reads group h / (num_heads / num_query_groups)
  int64_t head_dim = 0;
  float softmax_scale = 0.0f;
  /// Dropout of the attention probabilities, in [0, 1); the kept ones are divided by 1 - dropout. The mask is
  /// Philox of (seed, (sample, head, query, key)), sample counted within this batch and head in the
  /// whole model; where cuDNN computes its own Philox, so that the two backends drop different elements of the same
  /// distribution. Forward and backward must get the same seed, and different layers and
  /// microbatches different ones.
  float dropout = 0.0f;
  /// A rank that holds some of the heads: they are heads first_head, first_head + 1, ... of total_heads
  /// (0 = num_heads). On the CPU they drop what they would drop in the whole. cuDNN counts heads from 0 in
  /// every call, so there first_head is mixed into the seed: ranks draw different masks, but other ones
  /// than a single GPU would.
  int64_t first_head = 0;
  int64_t total_heads = 0;
  /// Packed samples: attention stays inside a document, and both passes need document_start. The most
  /// documents that the batch holds (padding counts as one, as the data says): cuDNN's time and workspace grow with
  /// it. 0 = the whole sequence is one.
  int64_t max_documents = 0;
  /// Sliding window: query i sees keys i - window + 1 to i. 0 = all before it. Below seq.
  int64_t window = 0;
  /// With a range qkv, o, d_o and dqkv have range.rows rows of each sample, of which the call reads and writes the
  /// range's alone, and of qkv and dqkv their queries; keys and values of the whole sequences are in `kv`.
  QueryRange range;

  bool has_range() const { return range.count > 0; }
  int64_t queries() const { return has_range() ? range.count : seq; }
  /// Those that some query may see.
  int64_t keys() const { return has_range() ? range.keys() : seq; }
  /// Of a sample in qkv, o and their gradients.
  int64_t rows() const { return has_range() ? range.rows : seq; }
};

struct AttentionForward {
  AttentionShape shape;
  Tensor qkv;  ///< [batch * seq, (heads + 2 groups) * head_dim]: q | k | v
  Tensor o;    ///< out [batch * seq, heads * head_dim]
  /// out [batch, heads, seq] fp32: log of the softmax denominator, for the backward pass (where cuDNN
  /// computes documents its elements are in another order). With a range [batch, heads, range.count].
  Tensor lse;
  Tensor workspace;  ///< u8, attention_workspace_bytes(...)
  uint64_t dropout_seed = 0;
  /// With max_documents: int32 [batch * seq], the position in its sample at which the document of a token
  /// begins. Query i sees keys document_start[i] to i. Within a sample it never decreases, starts with 0 and
  /// never passes the token; a document begins where it equals the token's position.
  Tensor document_start;
  Tensor kv;  ///< with a range: [batch * seq, 2 groups * head_dim]: k | v
};
void attention_forward(const Context& context, const AttentionForward& args);

struct AttentionBackward {
  AttentionShape shape;
  Tensor qkv, o, lse;
  Tensor d_o;   ///< [batch * seq, heads * head_dim]
  Tensor dqkv;  ///< out, layout of qkv; every element is written
  Tensor workspace;
  uint64_t dropout_seed = 0;
  Tensor document_start;  ///< as in the forward pass
  Tensor kv;              ///< likewise
  /// out, with a range, layout of kv: rows 0, ..., range.keys() - 1 of each sample are written.
  Tensor dkv;
};
void attention_backward(const Context& context, const AttentionBackward& args);

/// Documents in document_start on the host: what must not pass max_documents (the CPU checks it, cuDNN leaves the
/// outputs of further documents unwritten).
int64_t count_documents(const int32_t* document_start, int64_t batch, int64_t seq);

/// Which kernels compute a shape: te-train's for Hopper, cuDNN's, te-train's on FP32 units (a fifteenth of the others'
/// speed or less), or the CPU's. In the order of their speed.
enum class AttentionKernels { flash, cudnn, tiled, cpu };
AttentionKernels attention_kernels(const Context& context, const AttentionShape& shape, DType dtype);

/// Bytes of workspace that cover both passes (0 on the CPU); builds and caches the plans, so that no step
/// does.
int64_t attention_workspace_bytes(const Context& context, const AttentionShape& shape, DType dtype);

/// Empty when this backend can run the shape, else the rule it breaks (for config errors).
const char* attention_unsupported(DeviceKind device, const AttentionShape& shape, DType dtype);

}  // namespace te::kernels
