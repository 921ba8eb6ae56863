// CUDA side of the norms; the public functions have checked the arguments.
#pragma once

#include "kernels/norm/norm.h"

namespace te::kernels {

/// Maximum number of blocks for which norm_backward's CUDA version stores partial sums of dgamma, dbeta and dbias. It
/// depends only on the width, so that the assignment of rows to blocks, and thus every bit of the sums, does not depend
/// on the device. It is chosen to give each of the H100's 132 SMs about 512 threads of eight columns.
inline int64_t norm_partial_blocks(int64_t hidden) {
  const int64_t per_sm = 4096 / (hidden > 768 ? hidden : 768);
  return 132 * (per_sm > 1 ? per_sm : 1);
}

namespace cuda {
void norm_forward(const Context& context, const NormForward& args);
void norm_backward(const Context& context, const NormBackward& args);
}  // namespace cuda

}  // namespace te::kernels
