// CUDA side of the embedding.
#pragma once

#include "kernels/embedding/embedding.h"

namespace te::kernels::cuda {

void embedding_forward(const Context& context, const EmbeddingForward& args);
void embedding_backward(const Context& context, const EmbeddingBackward& args);
int64_t embedding_backward_workspace_bytes(const Context& context, int64_t rows, int64_t hidden);

}  // namespace te::kernels::cuda
