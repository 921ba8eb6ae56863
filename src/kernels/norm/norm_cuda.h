// The CUDA versions of the norms. Arguments are checked by the public functions.
#pragma once

#include "kernels/norm/norm.h"

namespace te::kernels {

/// Most blocks that norm_backward's CUDA version gives partial sums of dgamma, dbeta and dbias. A function of the
/// width alone, so that the assignment of rows to blocks, and with it every bit of the sums, does not depend
/// on the device: enough blocks to give each of Hopper's 132 multiprocessors about 512 threads of eight columns.
inline int64_t norm_partial_blocks(int64_t hidden) {
  const int64_t per_sm = 4096 / (hidden > 768 ? hidden : 768);
  return 132 * (per_sm > 1 ? per_sm : 1);
}

namespace cuda {
void norm_forward(const Context& context, const NormForward& args);
void norm_backward(const Context& context, const NormBackward& args);
}  // namespace cuda

}  // namespace te::kernels
