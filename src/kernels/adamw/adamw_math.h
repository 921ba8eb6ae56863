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
  float lr;
  const AdamWGroup* groups;  ///< null: none
};

/// Factors of a granule.
struct AdamWRate {
  float step_size, decay;
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
  c.lr = args.lr;
  c.groups = args.groups.as<const AdamWGroup>();
  return c;
}

inline MomentWords moment_words(const AdamW& args) {
  return {args.runs.as<const MomentRun>(), static_cast<int>(args.runs.bytes() / sizeof(MomentRun)), args.seed,
          static_cast<uint64_t>(args.step)};
}

TE_HOST_DEVICE AdamWRate adamw_rate(const AdamWConstants& c, uint8_t flags) {
  if (c.groups == nullptr) return {c.step_size, (flags & kGranuleDecays) != 0 ? c.decay : 0.0f};
  const AdamWGroup group = c.groups[flags >> kGranuleGroupShift];
  const double lr = static_cast<double>(c.lr) * static_cast<double>(group.lr_factor);
  return {c.step_size * group.lr_factor, static_cast<float>(lr * static_cast<double>(group.weight_decay))};
}

/// Updates one element. `gradient` is already multiplied by the clipping coefficient.
TE_HOST_DEVICE void adamw_element(const AdamWConstants& c, const AdamWRate& rate, float gradient,
                                  float& param, float& exp_avg, float& exp_avg_sq) {
  exp_avg = fmaf(c.beta1, exp_avg, c.one_minus_beta1 * gradient);
  exp_avg_sq = fmaf(c.beta2, exp_avg_sq, c.one_minus_beta2 * gradient * gradient);
  const float denominator = fmaf(sqrtf(exp_avg_sq), c.inv_sqrt_correction2, c.eps);
  const float update = exp_avg / denominator;
  // Decay and update are small compared with param, so adding them first leaves a single rounding of param. The
  // multiplication is an addend of the fmaf, so it cannot be contracted.
  param = param - fmaf(rate.decay, param, rate.step_size * update);
}

/// adamw_element() for an FP32 master weight that is stored as a BF16 weight and a 16-bit remainder.
TE_HOST_DEVICE void adamw_split(const AdamWConstants& c, const AdamWRate& rate, float gradient,
                                SplitFloat& split, float& exp_avg, float& exp_avg_sq) {
  float param = std::bit_cast<float>(join_float(split));
  adamw_element(c, rate, gradient, param, exp_avg, exp_avg_sq);
  split = split_float(std::bit_cast<uint32_t>(param));
}

#ifdef TE_WITH_CUDA
namespace cuda {
void adamw(const Context& context, const AdamW& args);
}
#endif

}  // namespace te::kernels
