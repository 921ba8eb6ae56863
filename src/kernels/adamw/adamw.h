// AdamW (Loshchilov and Hutter, arXiv 1711.05101) over a flat buffer of parameters, one launch for the whole
// model.
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
/// in FP32; bias corrections and lr weight_decay are computed in FP64 and rounded once. main_param is rounded
/// once per step (decay and update are added first). CPU and GPU give the same bits.
/// Moments are rounded to their dtype after param has been made of the FP32 ones (moment_rounding.h and
/// moment_fp8.h say how). With `remainder` main_param is param and remainder joined (kernels/param_split), and
/// is split again.
/// Nothing is written when *skip is non-zero.
struct AdamW {
  Tensor main_param;  ///< fp32 [n], in/out; empty with remainder
  Tensor main_grad;   ///< fp32 or bf16 [n]
  Tensor exp_avg;     ///< fp32, bf16 or e4m3 [n], in/out
  Tensor exp_avg_sq;  ///< fp32, bf16 or u8 (codes of moment_fp8.h) [n], in/out
  /// u8 [granules_of(n)], in/out: of the blocks of a moment in e4m3 or u8. On a GPU n is then a multiple of a granule.
  Tensor exp_avg_exponents, exp_avg_sq_exponents;
  Tensor
      param;  ///< fp32, bf16 or fp16 [n], out; may be empty, or the memory of main_param; bf16, in/out with remainder
  Tensor remainder;   ///< optional u16 [n], in/out
  Tensor flags;       ///< u8 [granules_of(n)]: kGranuleDecays where weight decay applies
  Tensor runs;        ///< u8 [k * sizeof(MomentRun)]: for moments that are not fp32, whose elements these are
  uint64_t seed = 0;  ///< of their rounding
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
