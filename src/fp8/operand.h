// The operand of a matrix product, as a recipe left it: high-precision values, FP8 values, or both.
#pragma once

#include "core/tensor.h"

namespace te::fp8 {

/// FP8 values with their own inverse scale: the scale of a tensor class may change while older tensors are
/// still in use.
struct QuantizedTensor {
  Tensor rowwise;     ///< [rows, cols] FP8
  Tensor columnwise;  ///< [cols, rows] FP8, the physical transpose
  Tensor scale_inv;   ///< [1] fp32
};

struct Operand {
  Tensor hp;          ///< [rows, cols] bf16 or fp32; may be empty where only FP8 is kept
  QuantizedTensor q;  ///< empty tensors where the recipe is off
  /// q holds this pass's values, or will: set when a producer is asked to write q in this pass, and when hp
  /// has been cast. hp is then not read.
  bool quantized = false;
  /// A gradient whose producer has already added its column sums to the bias gradient.
  bool bias_summed = false;
};

}  // namespace te::fp8
