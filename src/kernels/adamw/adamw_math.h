// Arithmetic of AdamW, shared by the CPU reference and the CUDA kernel for bitwise equal results: every multiply-add is
// written as fmaf, so the compiler has nothing to contract, and division and square root are IEEE-rounded on both
// sides.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/random.h"
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/moment_rounding.h"
#include "kernels/param_split/param_split.h"

namespace te::kernels {

struct AdamWConstants {
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;             ///< lr / (1 - beta1^t)
  float inv_sqrt_correction2;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
  float decay;  ///< lr * weight_decay
};

inline AdamWConstants adamw_constants(const AdamW& args) {
  const double t = static_cast<double>(args.step), beta1 = args.beta1, beta2 = args.beta2, lr = args.lr;
  AdamWConstants c;
  c.beta1 = args.beta1;
  c.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  c.beta2 = args.beta2;
  c.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  c.step_size = static_cast<float>(lr / (1.0 - std::pow(beta1, t)));
  c.inv_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, t)));
  c.eps = args.eps;
  c.decay = static_cast<float>(lr * static_cast<double>(args.weight_decay));
  return c;
}

inline MomentWords moment_words(const AdamW& args) {
  return {args.runs.as<const MomentRun>(), static_cast<int>(args.runs.bytes() / sizeof(MomentRun)), args.seed,
          static_cast<uint64_t>(args.step)};
}

/// Updates one element. `gradient` is already multiplied by the clipping coefficient; `decay` is c.decay or 0.
TE_HOST_DEVICE void adamw_element(const AdamWConstants& c, float decay, float gradient, float& param,
                                  float& exp_avg, float& exp_avg_sq) {
  exp_avg = fmaf(c.beta1, exp_avg, c.one_minus_beta1 * gradient);
  exp_avg_sq = fmaf(c.beta2, exp_avg_sq, c.one_minus_beta2 * gradient * gradient);
  const float denominator = fmaf(sqrtf(exp_avg_sq), c.inv_sqrt_correction2, c.eps);
  const float update = exp_avg / denominator;
  // Decay and update are small compared with param, so adding them first leaves a single rounding of param. The
  // multiplication is an addend of the fmaf, so it cannot be contracted.
  param = param - fmaf(decay, param, c.step_size * update);
}

/// adamw_element() for an FP32 master weight that is stored as a BF16 weight and a 16-bit remainder.
TE_HOST_DEVICE void adamw_split(const AdamWConstants& c, float decay, float gradient, SplitFloat& split,
                                float& exp_avg, float& exp_avg_sq) {
  float param = std::bit_cast<float>(join_float(split));
  adamw_element(c, decay, gradient, param, exp_avg, exp_avg_sq);
  split = split_float(std::bit_cast<uint32_t>(param));
}

#ifdef TE_WITH_CUDA
namespace cuda {
void adamw(const Context& context, const AdamW& args);
}
#endif

}  // namespace te::kernels
