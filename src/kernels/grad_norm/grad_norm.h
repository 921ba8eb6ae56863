// Global gradient norm and clipping, on the device: the host never waits for the norm before it launches the
// update.
#pragma once

#include <limits>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/common/granule.h"

namespace te::kernels {

/// *out += sum of x^2, FP32 products, partial sums combined in FP64 in a fixed order (the same bits in every
/// run and with any number of threads). x fp32 or bf16 [n], may be empty; out [1] fp32; scratch fp32 of
/// sum_of_squares_scratch_elements(), 8-byte aligned. NaN and infinities, also from an FP32 product that
/// overflows, reach out.
/// flags (optional): u8 [granules_of(n)], x beginning with a granule; only granules with kGranuleCounted are
/// added. Where all have it, the bits are those of a call without flags.
void sum_of_squares(const Context& context, const Tensor& x, const Tensor& out, const Tensor& scratch,
                    const Tensor& flags = {});
int64_t sum_of_squares_scratch_elements();

/// grad_norm  = sqrt(sum_of_squares) / gradient_scale
/// multiplier = (clip > 0 and norm > clip ? clip / (norm + 1e-6) : 1) / gradient_scale
///              (the rule of Megatron-LM and torch.nn.utils.clip_grad_norm_)
/// skip       = 0; but 1, with multiplier = 0, when the norm or *loss is not finite, or *loss is above largest_loss
struct ClipCoefficient {
  Tensor sum_of_squares;  ///< [1] fp32
  Tensor loss;            ///< [1] fp32, optional
  float clip = 0.0f;      ///< 0 = no clipping
  float largest_loss = std::numeric_limits<float>::infinity();
  float gradient_scale =
      1.0f;           ///< what gradients have been multiplied by; norm and clip are of unscaled ones
  Tensor grad_norm;   ///< out [1] fp32
  Tensor multiplier;  ///< out [1] fp32
  Tensor skip;        ///< out [1] int32
};
void clip_coefficient(const Context& context, const ClipCoefficient& args);

}  // namespace te::kernels
