// The small ones: residual add, bias gradient, casts.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// out = a + b, FP32 sum rounded to the dtype (fp32 or bf16, all three alike). out may be a or b.
void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out);

/// dbias[c] += sum over rows of dy[r, c]; FP32 sums in a fixed order. dy fp32 or bf16 [rows, cols]; dbias
/// fp32 [cols]; scratch fp32 of quantize_scratch_elements(rows, cols).
void bias_gradient(const Context& context, const Tensor& dy, const Tensor& dbias, const Tensor& scratch);

/// out = x converted between fp32 and bf16.
void cast(const Context& context, const Tensor& x, const Tensor& out);

/// x[i] = std * normal(seed, stream, first_index + i): initial weights; fp32 [n]. Same bits on every
/// backend.
void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 uint64_t first_index);
void fill_value(const Context& context, const Tensor& x, float value);

}  // namespace te::kernels
