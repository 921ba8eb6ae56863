// Causal attention by kernels of te-train's own that multiply in FP32, on the GPU's ordinary units: tiled_forward.cu,
// tiled_backward.cu. They take what the faster ones do not: FP32, and of 16-bit values the combinations that cuDNN
// lacks. They keep no matrix of scores in memory, and add everything in a fixed order: same
// inputs, same bits. Probabilities stay FP32, and dropout draws the CPU's masks. The arguments as in attention.h.
#pragma once

#include "core/device.h"
#include "kernels/attention/attention.h"

namespace te::kernels::cuda {

constexpr int64_t kTiledMaxHeadDim = 256;

/// fp32, bf16 and fp16; head_dim a multiple of 8, at most kTiledMaxHeadDim.
void tiled_forward(const Context& context, const AttentionForward& args);
void tiled_backward(const Context& context, const AttentionBackward& args);

/// Bytes of args.workspace in the backward pass: a number a query and head. The forward pass needs none.
int64_t tiled_backward_workspace_bytes(const AttentionShape& shape);

}  // namespace te::kernels::cuda
