// Quantization of the operands of grouped GEMMs to FP8 with one scale per expert: for each expert as quantize() does
// for a tensor (kernels/quantize/quantize.h), with the same bytes, scales and state.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct QuantizeExperts {
  Tensor x;  ///< [rows, cols] fp32 or bf16
  /// i32 [experts + 1]: first row of each expert, and the end; empty: rows / experts each. Multiples of 16 on a GPU.
  Tensor offsets;
  int64_t experts = 1;
  /// Optional i32 [rows] with offsets: quantize the rows that permute() would copy from x [tokens, cols] (permute.h).
  Tensor source;
  int64_t topk = 1;  ///< with source
  /// Data of all rows; with offsets, columnwise values are in blocks of rows (row_blocks.h). The pointers are those of
  /// the first expert; the others follow, [experts] or, for predicted scales, [experts, 2]. Rows after the last expert
  /// are not written. Without data only the amax.
  Fp8Output out;
};
void quantize_experts(const Context& context, const QuantizeExperts& args);
/// The output of one expert, without data.
Fp8Output output_of_expert(const Fp8Output& all, int64_t expert);

/// Statistics of a tensor that quantize_groups() has quantized, per expert. Its scales let nothing saturate.
struct CountQuantizedExperts {
  Tensor x, offsets;  ///< as above
  int64_t experts = 1;
  Tensor source;  ///< as above
  int64_t topk = 1;
  Tensor rowwise, columnwise;       ///< FP8, as above; one may be empty, the first is counted
  float* amax = nullptr;            ///< [experts]: updated with max |x|; may be null
  Fp8Counters* counters = nullptr;  ///< [experts]
};
void count_quantized_experts(const Context& context, const CountQuantizedExperts& args);

}  // namespace te::kernels
