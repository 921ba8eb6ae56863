// Backward pass of causal attention by a kernel of te-train's own (flash_backward.cu). It keeps no matrix of scores in memory,
// adds in a fixed order, and is faster than cuDNN's on Hopper (docs/experiments.md).
#pragma once

#include "core/device.h"
#include "kernels/attention/attention.h"

namespace te::kernels::cuda {

/// Whether the kernel covers the shape: head_dim 64 or 128, no dropout, whole sequences.
bool flash_backward_supported(const AttentionShape& shape);

/// dq in FP32, and 9 (head_dim 64) or 10 bytes a query and head.
int64_t flash_backward_workspace_bytes(const AttentionShape& shape);

/// bf16; args.lse is the natural logarithm of the sum of exp(scaled scores). P and dS are rounded to BF16 between the products
/// and are FP32 otherwise.
void flash_backward(const Context& context, const AttentionBackward& args);

}  // namespace te::kernels::cuda
