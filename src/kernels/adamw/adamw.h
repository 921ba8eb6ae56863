// AdamW (Loshchilov and Hutter, arXiv 1711.05101) over a flat buffer of parameters: one launch updates the whole model.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/common/granule.h"

namespace te::kernels {

/// With g = main_grad * *grad_multiplier and t = step (1-based):
///   exp_avg    = beta1 exp_avg + (1 - beta1) g
///   exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2
///   main_param = main_param (1 - lr weight_decay [where flagged])
///                - lr (exp_avg / (1 - beta1^t)) / (sqrt(exp_avg_sq / (1 - beta2^t)) + eps)
///   param      = main_param rounded to its dtype
/// in FP32. Bias corrections and lr * weight_decay are computed in FP64 and rounded once. main_param is rounded once
/// per step, because decay and update are added first. CPU and GPU results are bitwise equal.
/// param is computed from the FP32 Adam moments, before these are rounded to their dtype (see moment_rounding.h and
/// moment_fp8.h). With `remainder`, main_param is joined from param and remainder (kernels/param_split) and split again
/// after the update.
/// Nothing is written if *skip is non-zero.
/// Settings of some of the parameters.
struct AdamWGroup {
  float lr_factor = 1.0f;  ///< of lr
  float weight_decay = 0.0f;
  bool operator==(const AdamWGroup&) const = default;
};

struct AdamW {
  Tensor main_param;  ///< fp32 [n], in/out; empty with remainder
  Tensor main_grad;   ///< fp32 or bf16 [n]
  Tensor exp_avg;     ///< fp32, bf16 or e4m3 [n], in/out
  Tensor exp_avg_sq;  ///< fp32, bf16 or u8 (codes of moment_fp8.h) [n], in/out
  /// u8 [granules_of(n)], in/out: block exponents of an Adam moment in e4m3 or u8. On a GPU, n must then be a multiple
  /// of a granule.
  Tensor exp_avg_exponents, exp_avg_sq_exponents;
  /// fp32, bf16 or fp16 [n], output; may be empty or main_param's memory. With remainder: bf16, in/out.
  Tensor param;
  Tensor remainder;  ///< optional u16 [n], in/out
  Tensor flags;      ///< u8 [granules_of(n)]: kGranuleDecays where weight decay applies
  Tensor
      groups;   ///< u8 [k * sizeof(AdamWGroup)], optional: instead of weight_decay, by the index in the flags
  Tensor runs;  ///< u8 [k * sizeof(MomentRun)], needed for moments that are not fp32
  uint64_t seed = 0;  ///< seed of the moments' stochastic rounding
  float lr = 0.0f;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
  int64_t step = 1;
  const float* grad_multiplier = nullptr;  ///< device scalar (the clipping coefficient), or null for 1
  const int32_t* skip = nullptr;           ///< device flag, or null
};
void adamw(const Context& context, const AdamW& args);

}  // namespace te::kernels
