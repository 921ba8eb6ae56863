// CUDA side of attention.h; callers have checked the arguments.
#pragma once

#include "kernels/attention/attention.h"

namespace te::kernels::cuda {

void attention_forward(const Context& context, const AttentionForward& args);
void attention_backward(const Context& context, const AttentionBackward& args);
AttentionKernels attention_kernels(const Context& context, const AttentionShape& shape, DType dtype);
int64_t attention_workspace_bytes(const Context& context, const AttentionShape& shape, DType dtype);

}  // namespace te::kernels::cuda
