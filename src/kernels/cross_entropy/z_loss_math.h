// z-loss of a row, shared by the CPU reference and the CUDA kernels. Formulas in cross_entropy.h.
#pragma once

#include "core/random.h"

namespace te::kernels {

/// z-loss term of a row. Exactly 0 without a z-loss, even if log Z is infinite or NaN.
TE_HOST_DEVICE float z_loss_term(float z_loss, float log_z) {
  return z_loss == 0.0f ? 0.0f : z_loss * log_z * log_z;
}

/// Factor of the softmax in the gradient. Exactly 1 without a z-loss.
TE_HOST_DEVICE float softmax_factor(float z_loss, float log_z) {
  return z_loss == 0.0f ? 1.0f : 1.0f + 2.0f * z_loss * log_z;
}

}  // namespace te::kernels
