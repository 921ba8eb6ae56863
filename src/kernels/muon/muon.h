// Elementwise steps of Muon (Jordan et al., 2024) in the variant of Moonlight (Liu et al., arXiv 2502.16982), before
// and after its GEMMs (newton_schulz.h). CPU and GPU results are bitwise equal, for any sharding of the elements.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/elementwise/elementwise.h"

namespace te::kernels {

/// With g = main_grad * *grad_multiplier:
///   momentum = decay momentum + g
///   update   = nesterov ? g + decay momentum : momentum, rounded to its dtype
/// in FP32. Nothing is written when *skip is non-zero.
struct MuonMomentum {
  Tensor main_grad;  ///< fp32 or bf16 [n]
  Tensor momentum;   ///< fp32 [n], in/out
  Tensor update;     ///< fp32, bf16 or fp16 [n], output
  float decay = 0.95f;
  bool nesterov = true;
  const float* grad_multiplier = nullptr;  ///< device scalar (the clipping coefficient), or null for 1
  const int32_t* skip = nullptr;           ///< device flag, or null
};
void muon_momentum(const Context& context, const MuonMomentum& args);

/// full[region.index(i)] = part[i]: copies a rank's run of elements to its position in the full matrix.
struct MuonPlace {
  Tensor part;  ///< fp32, bf16 or fp16 [n]
  Tensor full;  ///< the same dtype
  ParameterRegion region;
};
void muon_place(const Context& context, const MuonPlace& args);

/// x = x / (sqrt(*sum_of_squares) + 1e-7), computed in FP32, rounded to x's dtype. Afterwards no singular value is
/// above 1.
struct MuonNormalize {
  Tensor x;               ///< fp32, bf16 or fp16, in/out
  Tensor sum_of_squares;  ///< fp32 [1]: the sum of squares of x
};
void muon_normalize(const Context& context, const MuonNormalize& args);

/// x = a x + b y, computed in FP32 and rounded once to x's dtype.
struct MuonCombine {
  Tensor x;  ///< fp32, bf16 or fp16, in/out
  Tensor y;  ///< the same shape and dtype
  float a = 1.0f, b = 1.0f;
};
void muon_combine(const Context& context, const MuonCombine& args);

/// With o = orthogonal[region.index(i)]:
///   main_param = main_param (1 - lr weight_decay) - lr scale o,   param = main_param rounded to its dtype
/// in FP32. main_param is rounded once, because decay and update are added first, as in AdamW; lr weight_decay and lr
/// scale are computed in FP64 and rounded once. Nothing is written if *skip is non-zero.
struct MuonUpdate {
  Tensor main_param;  ///< fp32 [n], in/out; empty with remainder
  /// fp32, bf16 or fp16 [n], output; may be empty or main_param's memory. With remainder: bf16, in/out.
  Tensor param;
  Tensor remainder;        ///< optional u16 [n], in/out; see kernels/param_split
  Tensor orthogonal;       ///< fp32, bf16 or fp16: the full matrix
  ParameterRegion region;  ///< position of the n elements in it
  float lr = 0.0f;
  float weight_decay = 0.0f;
  double scale = 1.0;
  const int32_t* skip = nullptr;  ///< device flag, or null
};
void muon_update(const Context& context, const MuonUpdate& args);

}  // namespace te::kernels
