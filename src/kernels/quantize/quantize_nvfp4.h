// Quantization to NVFP4: E2M1 values with a scale (E4M3) per 16 values of a row of the layout, or per 16 x 16 values,
// and a factor (FP32) per tensor. An output has codes, scales and factor (ScaleLayout::nvfp4), or, for GEMMs in high
// precision on GPUs without such scales, the values times their group's scale, which are exact in BF16, and the factor,
// which GEMMs apply to their sums (ScaleLayout::factor).
//
//   encode  = 6 * 448 / max |x| of the tensor, at most FLT_MAX
//   scale   = E4M3(max |x| of the group * encode / 6)
//   out     = sat_cast(x * 1 / (scale / encode)), or times scale
//   factor  = max |x| of the tensor / (6 * 448)
//
// Options of the recipe in "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149):
//   blocks      a scale per 16 x 16 values, the same in both layouts (weights)
//   hadamard    the columnwise layout gets a Hadamard transform with fixed random signs along each group, which both
//               operands of a wgrad GEMM have, so that it cancels; a group of less than 16 values has none
//   stochastic  values are rounded up or down at random, so that the mean is preserved (gradients). The random numbers
//               are a function of seed, stream, and position (core/random.h)
//
// Formulas and rounding are those of Transformer Engine's reference quantizer. NaN stays NaN and does not affect
// scales; with an infinity the factor is infinite. E2M1 has no NaN, so a group of codes with NaN has the scale NaN.
#pragma once

#include <functional>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct QuantizeNvfp4 {
  Tensor x;  ///< [rows, cols] fp32 or bf16
  /// Output [rows, cols], or empty: E2M1 with ScaleLayout::nvfp4, or in the dtype of x with ScaleLayout::factor.
  Matrix rowwise;
  Matrix columnwise;  ///< output [cols, rows], from groups in the columns of x; or empty
  bool blocks = false, hadamard = false, stochastic = false;
  uint64_t seed = 0, stream = 0;  ///< with stochastic
  int margin = 0;                 ///< the factor is multiplied by 2^margin
  /// For statistics: the output is dequantized in full, without Hadamard transform and factor.
  bool restore = false;
  float* amax = nullptr;  ///< updated to max(*amax, max |x|), where NaN > inf > finite; may be null
  /// Counts of the rowwise output (of the columnwise one if it is the only output); may be null.
  Fp8Counters* counters = nullptr;
  /// For a tensor that is sharded across ranks: all-reduces a layout's amax, fp32 [1]. May be empty.
  std::function<void(const Context&, const Tensor&)> all_reduce_amax;
};
void quantize_nvfp4(const Context& context, const QuantizeNvfp4& args);

}  // namespace te::kernels
