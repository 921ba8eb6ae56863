// Partition of the sum and clipping rule, shared by the CPU reference and the CUDA kernels of grad_norm.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/random.h"
#include "kernels/grad_norm/grad_norm.h"

namespace te::kernels {

/// Number of partial sums, each an FP64 number (two elements of scratch).
constexpr int kSumOfSquaresParts = 1024;

struct ClipResult {
  float grad_norm, multiplier;
  int32_t skip;
};

TE_HOST_DEVICE bool is_finite_value(float x) {
  return fabsf(x) <= 3.402823466e38f;  // false for NaN, too
}

/// Clipping rule; `unscale` is 1 / gradient_scale.
TE_HOST_DEVICE ClipResult clip_rule(float sum_of_squares, float loss, float clip, float largest_loss,
                                    float unscale) {
  const float norm = sqrtf(sum_of_squares) * unscale;
  if (!is_finite_value(norm) || !is_finite_value(loss) || loss > largest_loss) return {norm, 0.0f, 1};
  const float coefficient = clip > 0.0f && norm > clip ? clip / (norm + 1e-6f) : 1.0f;
  return {norm, coefficient * unscale, 0};
}

#ifdef TE_WITH_CUDA
namespace cuda {
void sum_of_squares(const Context& context, const Tensor& x, const Tensor& out, const Tensor& scratch,
                    const Tensor& flags);
void clip_coefficient(const Context& context, const ClipCoefficient& args);
}  // namespace cuda
#endif

}  // namespace te::kernels
