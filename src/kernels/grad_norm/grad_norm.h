// Global gradient norm and clipping on the device, so that the host can launch the optimizer update without waiting for
// the norm.
#pragma once

#include <limits>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/common/granule.h"

namespace te::kernels {

/// *out += sum of x^2: FP32 squares, partial sums combined in FP64 in a fixed order (deterministic for any number of
/// threads). x is fp32, bf16 or fp16 [n] and may be empty; out fp32 [1]; scratch fp32
/// [sum_of_squares_scratch_elements()], 8-byte aligned. NaN and infinities propagate to out, also those of an
/// overflowing FP32 square.
/// flags (optional): u8 [granules_of(n)], where x begins at a granule border; only granules with kGranuleCounted are
/// added. If all of them have it, the result is bitwise equal to that without flags.
void sum_of_squares(const Context& context, const Tensor& x, const Tensor& out, const Tensor& scratch,
                    const Tensor& flags = {});
int64_t sum_of_squares_scratch_elements();

/// grad_norm  = sqrt(sum_of_squares) / gradient_scale
/// multiplier = (clip > 0 and norm > clip ? clip / (norm + 1e-6) : 1) / gradient_scale
///              (as in Megatron-LM and torch.nn.utils.clip_grad_norm_)
/// skip       = 1, with multiplier = 0, if the norm or *loss is not finite or *loss is above largest_loss; otherwise 0
struct ClipCoefficient {
  Tensor sum_of_squares;  ///< [1] fp32
  Tensor loss;            ///< [1] fp32, optional
  float clip = 0.0f;      ///< 0 = no clipping
  float largest_loss = std::numeric_limits<float>::infinity();
  float gradient_scale = 1.0f;  ///< factor of the gradients; norm and clip are unscaled
  Tensor grad_norm;             ///< output [1] fp32
  Tensor multiplier;            ///< output [1] fp32
  Tensor skip;                  ///< output [1] int32
};
void clip_coefficient(const Context& context, const ClipCoefficient& args);

}  // namespace te::kernels
