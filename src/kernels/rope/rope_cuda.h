// The CUDA version of the rotary embedding. Arguments are checked by the public function.
#pragma once

#include "kernels/rope/rope.h"

namespace te::kernels::cuda {
void rope(const Context& context, const Rope& args);
/// Rotates and casts in one pass; false where the shape or the alignment does not allow it, and nothing was done.
bool rope_cast(const Context& context, const Rope& args);
}  // namespace te::kernels::cuda
