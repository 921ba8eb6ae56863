// Quantization to FP8 with current scaling per group of values (a row, 128 values of a row, or 128 x 128 values:
// ScaleLayout). Each group's scale is computed from its own amax, so nothing saturates.
//
//   scale = fp8_max * 2^-margin / amax(group), or 1 if that amax is 0, infinite or NaN; optionally rounded down to a
//           power of two (then quantization rounds only once, and the inverse is exact)
//   q     = sat_cast(x * scale); the group's inverse scale is 1 / scale
//
// The rowwise and columnwise layouts have separate groups: within rows of x for rowwise, within its columns for
// columnwise. Blocks are the same in both. Sources: DeepSeek-V3 (arXiv 2412.19437, section 3.3) for vectors and blocks;
// PyTorch's torch._scaled_mm for rows.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct QuantizeGroups {
  Tensor x;  ///< [rows, cols] fp32 or bf16, or tokens; rows and cols of the output are multiples of 16
  /// Optional i32 [rows], with ScaleLayout::vectors: quantize the rows that permute() would copy from x [tokens, cols]
  /// (kernels/moe/permute.h).
  Tensor source;
  int64_t topk = 1;         ///< with source
  Matrix rowwise;           ///< output [rows, cols] FP8 with scales, or empty
  Matrix columnwise;        ///< output [cols, rows] in the same format and scale layout, or empty
  bool row_blocks = false;  ///< columnwise values are in blocks of rows (row_blocks.h)
  bool power_of_two = true;
  int margin = 0;
  float* amax = nullptr;  ///< updated to max(*amax, max |x|), where NaN > inf > finite; may be null
  /// Counts of the rowwise output (of the columnwise one if it is the only output); may be null.
  Fp8Counters* counters = nullptr;

  bool wants_data() const { return rowwise || columnwise; }
};
void check_quantize_groups(const QuantizeGroups& args);
void quantize_groups(const Context& context, const QuantizeGroups& args);
/// Rows of the output.
inline int64_t quantized_rows(const QuantizeGroups& args) {
  return args.source ? args.source.numel() : args.x.rows();
}

}  // namespace te::kernels
