// The CUDA version of the rotary embedding. Arguments are checked by the public function.
#pragma once

#include "kernels/rope/rope.h"

namespace te::kernels::cuda {
void rope(const Context& context, const Rope& args);
}  // namespace te::kernels::cuda
