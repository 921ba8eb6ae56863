// CUDA launchers of quantization, and functions that other kernels share.
#pragma once

#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_groups.h"
#include "kernels/quantize/quantize_mx.h"
#include "kernels/quantize/quantize_nvfp4.h"

namespace te::kernels::cuda {

void quantize(const Context& context, const Quantize& args);
bool quantize_current_scaling(const Context& context, const QuantizeCurrentScaling& args);
void quantize_groups(const Context& context, const QuantizeGroups& args);
void quantize_mx(const Context& context, const QuantizeMx& args);
void quantize_nvfp4(const Context& context, const QuantizeNvfp4& args);
void transpose_fp8(const Context& context, const Tensor& x, const Tensor& out);

/// Second launch of quantization (fp8_output.h, Fp8Requantize) from stored values x [rows, cols], whose first launch
/// was that of first_quantization(out). Does nothing for other outputs.
void requantize(const Context& context, const Tensor& x, const Fp8Output& out);

/// sums[c] += sum over the `blocks` rows of partial [blocks, cols], in a fixed order. sums: fp32 or bf16.
void add_partial_sums(const Context& context, const float* partial, int64_t blocks, int64_t cols,
                      const Tensor& sums);

}  // namespace te::kernels::cuda
