// te-train's causal attention kernels on FP32 CUDA cores: tiled_forward.cu, tiled_backward.cu. They cover what the
// faster kernels do not: FP32, and the 16-bit combinations that cuDNN lacks. They store no score matrix and accumulate
// in a fixed order, so results are deterministic. Probabilities stay FP32, and dropout draws the same masks as the CPU.
// Arguments as in attention.h.
#pragma once

#include "core/device.h"
#include "kernels/attention/attention.h"

namespace te::kernels::cuda {

/// Supports fp32, bf16 and fp16; head_dim must be a multiple of 8, at most 256.
void tiled_forward(const Context& context, const AttentionForward& args);
void tiled_backward(const Context& context, const AttentionBackward& args);

/// Required bytes of args.workspace in the backward pass: one number per query and head. The forward pass needs none.
int64_t tiled_backward_workspace_bytes(const AttentionShape& shape);

}  // namespace te::kernels::cuda
