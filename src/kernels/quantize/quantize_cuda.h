// The CUDA launchers of quantize, and the pieces that the fused kernels share. Private to the kernels room.
#pragma once

#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_groups.h"

namespace te::kernels::cuda {

void quantize(const Context& context, const Quantize& args);
bool quantize_current_scaling(const Context& context, const QuantizeCurrentScaling& args);
void quantize_groups(const Context& context, const QuantizeGroups& args);
void transpose_fp8(const Context& context, const Tensor& x, const Tensor& out);

/// The end of a cast of two launches (fp8_output.h, Fp8Requantize), from the values as they are stored: x [rows, cols],
/// of which the first one has been launched with first_cast(out). Nothing for other outputs.
void requantize(const Context& context, const Tensor& x, const Fp8Output& out);

/// sums[c] += sum over the `blocks` rows of partial [blocks, cols], in a fixed order. sums: fp32 or bf16.
void add_partial_sums(const Context& context, const float* partial, int64_t blocks, int64_t cols,
                      const Tensor& sums);

}  // namespace te::kernels::cuda
