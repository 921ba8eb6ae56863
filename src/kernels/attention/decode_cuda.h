// The CUDA side of decode.h; the arguments have been checked.
#pragma once

#include "kernels/attention/decode.h"

namespace te::kernels::cuda {

void cache_append(const Context& context, const CacheAppend& args);
void attention_decode(const Context& context, const AttentionDecode& args);
/// True: launched. False: nothing was, because the kernel is not made for these heads or alignments.
bool attention_step(const Context& context, const AttentionStep& args);

}  // namespace te::kernels::cuda
