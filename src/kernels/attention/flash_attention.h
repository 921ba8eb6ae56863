// te-train's causal attention kernels for Hopper: flash_forward.cu, flash_backward.cu. They store no score matrix, and
// the backward pass accumulates dq in a fixed order, so results are deterministic. BF16 only; arguments as in
// attention.h.
#pragma once

#include "core/device.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/first_key.h"

namespace te::kernels::cuda {

inline constexpr int kFlashKeys = 128;  ///< keys per block, in both passes

/// Whether the kernels support the shape: head_dim 64 or 128, no dropout, softmax_scale > 0; any documents and window,
/// and query ranges that begin at a block of keys.
inline bool flash_supported(const AttentionShape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.dropout == 0.0f &&
         shape.range.position % kFlashKeys == 0 && shape.softmax_scale > 0.0f;
}

/// Whether queries may have first keys (first_key.h), which documents or a window define.
inline bool has_first_keys(const AttentionShape& shape) {
  return shape.max_documents > 0 || shape.window > 0;
}

/// Whether queries may have first keys or form a range. The kernels are compiled for both cases.
inline bool is_bounded(const AttentionShape& shape) {
  return has_first_keys(shape) || shape.has_range();
}

/// Required bytes of args.workspace.
int64_t flash_forward_workspace_bytes(const AttentionShape& shape);
void flash_forward(const Context& context, const AttentionForward& args);

/// Required bytes of args.workspace: FP32 sums of dq, two numbers per query, and counters.
int64_t flash_backward_workspace_bytes(const AttentionShape& shape);
/// args.lse is the natural logarithm of the sum of exp(scaled scores), as the forward pass (also cuDNN's) writes it.
void flash_backward(const Context& context, const AttentionBackward& args);

}  // namespace te::kernels::cuda
