// Quantization to MXFP8 (OCP Microscaling Formats 1.0): E4M3 or E5M2 values with a power-of-two scale per 32 values of
// a row of the layout. An output has codes and scales (ScaleLayout::mx), or the dequantized values (none), for GEMMs in
// high precision on GPUs without such scales.
//
//   code = E8M0 code of max |x| * 2^margin / fp8_max, rounded up to a power of two; scale = 2^(code - 127)
//   out  = sat_cast(x / scale), dequantized: times scale
//
// The OCP specification proposes to round the scale down (floor(log2 max |x|) minus the exponent of the format's
// largest number), with which values above fp8_max saturate. Rounding up is Transformer Engine's rule and that of
// "Recipes for Pre-training LLMs with MXFP8" (arXiv 2506.08027): nothing saturates. Special values are Transformer
// Engine's, too: a group of zeros has the smallest scale, 2^-127; NaN does not affect the scale; an infinity gives the
// scale 2^127, so it stays infinite, and finite values below 2^117 or so become 0.
//
// Dequantized values are exact in the dtype of x, subnormal numbers included.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct QuantizeMx {
  Tensor x;  ///< [rows, cols] fp32 or bf16
  DType format = DType::e4m3;
  Matrix rowwise;  ///< output [rows, cols], or empty: in `format` with ScaleLayout::mx, or in the dtype of x
  Matrix columnwise;  ///< output [cols, rows], from groups in the columns of x; or empty
  int margin = 0;
  float* amax = nullptr;  ///< updated to max(*amax, max |x|), where NaN > inf > finite; may be null
  /// Counts of the rowwise output (of the columnwise one if it is the only output); may be null.
  Fp8Counters* counters = nullptr;
};
void quantize_mx(const Context& context, const QuantizeMx& args);

}  // namespace te::kernels
