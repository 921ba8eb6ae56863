// The z-loss of a row, shared by the CPU reference and the CUDA kernels; cross_entropy.h has the formulas.
#pragma once

#include "core/random.h"

namespace te::kernels {

/// A row's term. Exactly 0 without a z-loss, whatever log Z is.
TE_HOST_DEVICE float z_loss_term(float z_loss, float log_z) {
  return z_loss == 0.0f ? 0.0f : z_loss * log_z * log_z;
}

/// What the softmax is multiplied by in the gradient. Exactly 1 without a z-loss.
TE_HOST_DEVICE float softmax_factor(float z_loss, float log_z) {
  return z_loss == 0.0f ? 1.0f : 1.0f + 2.0f * z_loss * log_z;
}

}  // namespace te::kernels
