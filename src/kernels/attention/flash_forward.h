// Forward pass of causal attention by a kernel of te-train's own (flash_forward.cu).
#pragma once

#include "core/device.h"
#include "kernels/attention/attention.h"

namespace te::kernels::cuda {

/// Whether the kernel covers the shape: head_dim 64 or 128, no dropout, whole sequences.
bool flash_forward_supported(const AttentionShape& shape);
int64_t flash_forward_workspace_bytes(const AttentionShape& shape);
/// bf16; args.lse becomes the natural logarithm of the sum of exp(scaled scores).
void flash_forward(const Context& context, const AttentionForward& args);

}  // namespace te::kernels::cuda
