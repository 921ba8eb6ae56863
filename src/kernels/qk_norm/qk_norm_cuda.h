// CUDA launchers of qk_norm.h, and how both backends cut a row.
#pragma once

#include "kernels/qk_norm/qk_norm.h"

namespace te::kernels {

/// Parts of the rows in which sums over tokens are made.
constexpr int64_t kQkNormParts = 64;

namespace cuda {
void qk_norm_forward(const Context& context, const QkNormForward& args);
void qk_norm_forward_sums(const Context& context, const QkNormForward& args);
void qk_norm_backward(const Context& context, const QkNormBackward& args);
void qk_norm_backward_sums(const Context& context, const QkNormBackward& args);
}  // namespace cuda

}  // namespace te::kernels
