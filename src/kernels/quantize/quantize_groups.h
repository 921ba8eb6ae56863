// Casting to FP8 with scales of the values' own: every group of values (a row, 128 of a row, 128 x 128: ScaleLayout)
// gets the scale that its largest magnitude asks for. Nothing is predicted and nothing saturates.
//
//   scale = fp8_max * 2^-margin / amax(group), 1 where that amax is 0, infinite or NaN; rounded down to a power of two
//           if asked for (then the cast rounds once, and the inverse is exact)
//   q     = sat_cast(x * scale), and the group's inverse scale 1 / scale
//
// A row-wise and a column-wise form have groups of their own: of the row-wise form along the columns of x, of the
// column-wise form along its rows. Blocks are the same in both. Sources: DeepSeek-V3 (arXiv 2412.19437, section 3.3)
// for vectors and blocks; rows as in PyTorch's torch._scaled_mm.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct QuantizeGroups {
  Tensor x;           ///< [rows, cols] fp32 or bf16; both multiples of 16
  Matrix rowwise;     ///< out [rows, cols] FP8 with scales, or empty
  Matrix columnwise;  ///< out [cols, rows], of the same format and layout, or empty
  bool power_of_two = true;
  int margin = 0;
  float* amax = nullptr;  ///< raised to max(*amax, max |x|); NaN > inf > finite; or null
  Fp8Counters* counters =
      nullptr;  ///< counts of the row-wise form (the column-wise one where it is alone), or null
};
void quantize_groups(const Context& context, const QuantizeGroups& args);

}  // namespace te::kernels
