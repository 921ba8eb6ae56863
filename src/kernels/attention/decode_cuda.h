// CUDA side of decode.h; callers have checked the arguments.
#pragma once

#include "kernels/attention/decode.h"

namespace te::kernels::cuda {

void cache_append(const Context& context, const CacheAppend& args);
void attention_decode(const Context& context, const AttentionDecode& args);
/// Returns false, without launching anything, if the fused kernel does not support these heads or alignments.
bool attention_step(const Context& context, const AttentionStep& args);

}  // namespace te::kernels::cuda
