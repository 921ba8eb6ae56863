// CUDA launchers of qk_norm.h, and the partition of token sums that both backends use.
#pragma once

#include "kernels/qk_norm/qk_norm.h"

namespace te::kernels {

/// Number of parts into which tokens are divided for sums over tokens.
constexpr int64_t kQkNormParts = 128;

namespace cuda {
void qk_norm_forward(const Context& context, const QkNormForward& args);
void qk_norm_forward_sums(const Context& context, const QkNormForward& args);
void qk_norm_backward(const Context& context, const QkNormBackward& args);
void qk_norm_backward_sums(const Context& context, const QkNormBackward& args);
}  // namespace cuda

}  // namespace te::kernels
