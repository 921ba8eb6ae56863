// Causal attention with grouped queries: o = softmax(q k^T * softmax_scale + causal mask) v per head, without storing
// the score matrix. On a GPU (head_dim a multiple of 8, at most 256), attention_kernels() selects one of:
//
//   te-train's Hopper kernels  BF16 heads of 64 and 128 without dropout, with any documents, window and query range
//                              (flash_attention.h)
//   cuDNN                      other 16-bit heads, if cuDNN has kernels for both passes
//   te-train's FP32 kernels    FP32, and combinations that cuDNN lacks, such as a window or a query range with
//   documents
//                              or dropout (tiled_attention.h)
//
// The CPU runs an online-softmax reference (Milakov and Gimelshein, arXiv 1805.02867; Dao, arXiv 2307.08691). q, k and
// v are read in place from the packed output of linear_qkv, and gradients are written in the same layout.
//
// Scores, softmax and sums are FP32; o and dqkv are rounded once (Hopper's kernels and cuDNN also round the
// probabilities and their gradients to 16 bits between the GEMMs). Both backends are deterministic, the CPU for any
// number of threads, with two exceptions in cuDNN. With documents it adds dq with atomics, because its deterministic
// algorithm would need memory for max_documents matrices of seq x seq. For other shapes the context's option
// deterministic_attention decides.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Consecutive queries of a context-parallel rank, which holds the same part of every sample's tokens.
struct QueryRange {
  int64_t count = 0;     ///< 0: no range, the whole sequence
  int64_t position = 0;  ///< position of the first query in the sequence
  int64_t rows = 0;      ///< tokens of a sample that the rank holds
  int64_t first = 0;     ///< index of the first query among these tokens
  /// Number of keys up to the last query. Earlier queries see fewer of them.
  int64_t keys() const { return position + count; }
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;  ///< divides num_heads; head h reads group h / (num_heads / num_query_groups)
  int64_t head_dim = 0;
  float softmax_scale = 0.0f;
  /// Dropout of the attention probabilities, in [0, 1); kept probabilities are divided by 1 - dropout. The mask is
  /// Philox of (seed, (sample, head, query, key)), with the sample's index in this batch and the head's index in the
  /// whole model. cuDNN computes its own Philox sequence, so there the two backends drop different elements of the same
  /// distribution. Forward and backward pass of a microbatch must get the same seed; layers and microbatches must get
  /// different ones.
  float dropout = 0.0f;
  /// A tensor-parallel rank holds heads first_head, first_head + 1, ... of total_heads (0 = num_heads). On the CPU the
  /// masks equal those of an unsharded run. cuDNN counts heads from 0 in every call, so first_head is mixed into the
  /// seed: ranks draw different masks, but not the masks of a single GPU.
  int64_t first_head = 0;
  int64_t total_heads = 0;
  /// With packed samples, attention stays within a document, and both passes need document_start. max_documents is an
  /// upper bound on the documents in the batch, where padding counts as the data define it; cuDNN's time and workspace
  /// grow with it. 0 = every sequence is one document.
  int64_t max_documents = 0;
  /// Sliding window: query i sees keys i - window + 1 to i. 0 = all keys up to i. Must be below seq.
  int64_t window = 0;
  /// With a range, qkv, o, d_o and dqkv have range.rows rows per sample. The call accesses only the rows of the range,
  /// and in qkv and dqkv only the query columns. The keys and values of the full sequences are in `kv`.
  QueryRange range;

  bool has_range() const { return range.count > 0; }
  int64_t queries() const { return has_range() ? range.count : seq; }
  /// Keys that at least one query sees.
  int64_t keys() const { return has_range() ? range.keys() : seq; }
  /// Rows per sample in qkv, o and their gradients.
  int64_t rows() const { return has_range() ? range.rows : seq; }
};

struct AttentionForward {
  AttentionShape shape;
  Tensor qkv;  ///< [batch * seq, (heads + 2 groups) * head_dim]: q | k | v
  Tensor o;    ///< output [batch * seq, heads * head_dim]
  /// Output [batch, heads, seq] fp32: log of the softmax denominator, for the backward pass (its elements are in
  /// another order if cuDNN computes documents). With a range [batch, heads, range.count].
  Tensor lse;
  Tensor workspace;  ///< u8, attention_workspace_bytes(...)
  uint64_t dropout_seed = 0;
  /// Required with max_documents: int32 [batch * seq], the position in its sample at which a token's document begins.
  /// Query i sees keys document_start[i] to i. Within a sample, the values start with 0, never decrease and never
  /// exceed the token's position; a document begins where the value equals the position.
  Tensor document_start;
  Tensor kv;  ///< required with a range: [batch * seq, 2 groups * head_dim]: k | v
};
void attention_forward(const Context& context, const AttentionForward& args);

struct AttentionBackward {
  AttentionShape shape;
  Tensor qkv, o, lse;
  Tensor d_o;   ///< [batch * seq, heads * head_dim]
  Tensor dqkv;  ///< output, layout of qkv; every element is written
  Tensor workspace;
  uint64_t dropout_seed = 0;
  Tensor document_start;  ///< as in the forward pass
  Tensor kv;              ///< as in the forward pass
  /// Output with a range, layout of kv: rows 0, ..., range.keys() - 1 of each sample are written.
  Tensor dkv;
};
void attention_backward(const Context& context, const AttentionBackward& args);

/// Number of documents in document_start (host memory), which must not exceed max_documents. The CPU checks this; cuDNN
/// leaves the outputs of further documents unwritten.
int64_t count_documents(const int32_t* document_start, int64_t batch, int64_t seq);

/// Kernels that compute a shape, from the fastest to the slowest: te-train's for Hopper, cuDNN's, te-train's on FP32
/// CUDA cores, and the CPU's.
enum class AttentionKernels { flash, cudnn, tiled, cpu };
AttentionKernels attention_kernels(const Context& context, const AttentionShape& shape, DType dtype);

/// Bytes of workspace that suffice for both passes (0 on the CPU). Also builds and caches the plans, so that no step
/// does.
int64_t attention_workspace_bytes(const Context& context, const AttentionShape& shape, DType dtype);

/// Empty if this backend supports the shape, otherwise the violated rule (for config errors).
const char* attention_unsupported(DeviceKind device, const AttentionShape& shape, DType dtype);

}  // namespace te::kernels
