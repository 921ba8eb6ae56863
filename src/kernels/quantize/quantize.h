// Casting to FP8: q = sat_cast(x * scale), row-wise and / or transposed ("columnwise"), with amax, in one
// pass. Hopper's FP8 GEMMs read both operands along the contraction, so each operand needs the
// orientation of the GEMM it enters, and a transposed operand is a physical transpose.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct Quantize {
  Tensor x;        ///< [rows, cols], fp32 or bf16; fp16 too where dbias alone is wanted
  Fp8Output out;   ///< amax alone (no rowwise / columnwise) is allowed: an amax pass
  Tensor dbias;    ///< optional [cols] fp32 or bf16 (rounded once): += column sums of x (FP32, fixed order)
  Tensor scratch;  ///< fp32, at least quantize_scratch_elements(...) when dbias is given
};
void quantize(const Context& context, const Quantize& args);
/// Rows of one partial column sum, on every backend.
constexpr int64_t kColumnSumRows = 128;
/// FP32 elements of scratch for the partial column sums of a [rows, cols] tensor.
int64_t quantize_scratch_elements(int64_t rows, int64_t cols);

/// Tensorwise scaling of a small tensor in one launch: the bytes, amax and scales of a cast with a current_scale
/// (fp8_output.h), which takes two.
struct QuantizeCurrentScaling {
  Tensor x;     ///< fp32 or bf16
  Tensor out;   ///< FP8, of x's shape
  float* amax;  ///< out [1] each, in memory of the device
  float* scale;
  float* scale_inv;
  int margin = 0;
  bool power_of_two = false;
};
constexpr int64_t kMaxSmallElements = int64_t{1} << 20;
/// False: nothing was done, because there is no such kernel (on the CPU, for more elements, for odd sizes and
/// alignments).
bool quantize_current_scaling(const Context& context, const QuantizeCurrentScaling& args);

/// FP8 [rows, cols] -> [cols, rows], the bytes unchanged.
void transpose_fp8(const Context& context, const Tensor& x, const Tensor& out);

}  // namespace te::kernels
