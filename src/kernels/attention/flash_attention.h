// Causal attention by kernels of te-train's own for Hopper: flash_forward.cu, flash_backward.cu. They keep no matrix
// of scores in memory, and the backward pass adds the parts of dq in a fixed order: same inputs, same bits. BF16 only;
// the arguments as in attention.h.
#pragma once

#include "core/device.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/first_key.h"

namespace te::kernels::cuda {

inline constexpr int kFlashKeys = 128;  ///< of a block of keys, in both passes

/// Whether the kernels cover the shape: head_dim 64 or 128, no dropout, softmax_scale > 0; any documents and window,
/// and ranges of queries that begin at a block of keys.
inline bool flash_supported(const AttentionShape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.dropout == 0.0f &&
         shape.range.position % kFlashKeys == 0 && shape.softmax_scale > 0.0f;
}

/// Whether queries may have first keys (first_key.h): documents, of any number, or a window, or both.
inline bool has_first_keys(const AttentionShape& shape) {
  return shape.max_documents > 0 || shape.window > 0;
}

/// Whether queries may have first keys or are a range. The kernels are compiled with and without.
inline bool is_bounded(const AttentionShape& shape) {
  return has_first_keys(shape) || shape.has_range();
}

/// Bytes of args.workspace.
int64_t flash_forward_workspace_bytes(const AttentionShape& shape);
void flash_forward(const Context& context, const AttentionForward& args);

/// Bytes of args.workspace: FP32 sums of dq, two numbers a query, and counts.
int64_t flash_backward_workspace_bytes(const AttentionShape& shape);
/// args.lse is the natural logarithm of the sum of exp(scaled scores), as the forward pass leaves it (cuDNN's, too).
void flash_backward(const Context& context, const AttentionBackward& args);

}  // namespace te::kernels::cuda
