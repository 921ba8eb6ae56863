// CUDA side of the rotary embedding; the public function has checked the arguments.
#pragma once

#include "kernels/rope/rope.h"

namespace te::kernels::cuda {
void rope(const Context& context, const Rope& args);
/// Rotates and quantizes in one pass. Returns false, without doing anything, if the shape or alignment is not
/// supported.
bool rope_quantize(const Context& context, const Rope& args);
}  // namespace te::kernels::cuda
