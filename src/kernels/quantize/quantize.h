// Quantization to FP8: q = sat_cast(x * scale), rowwise and/or transposed ("columnwise"), with amax, in one pass.
// Hopper's FP8 GEMMs read both operands along the summed dimension, so each GEMM needs its operands in a particular
// layout, and a transposed operand is a physical transpose.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

struct Quantize {
  Tensor x;        ///< [rows, cols], fp32 or bf16; also fp16 if only dbias is requested
  Fp8Output out;   ///< may request only amax, without rowwise and columnwise data
  Tensor dbias;    ///< optional [cols] fp32 or bf16 (rounded once): += column sums of x, FP32, fixed order
  Tensor scratch;  ///< fp32 [at least quantize_scratch_elements(...)]; required with dbias
};
void quantize(const Context& context, const Quantize& args);
/// Rows per partial column sum, on every backend.
constexpr int64_t kColumnSumRows = 128;
/// Number of FP32 elements of scratch for the partial column sums of a [rows, cols] tensor.
int64_t quantize_scratch_elements(int64_t rows, int64_t cols);

/// Tensorwise quantization of a small tensor in one launch. Bytes, amax and scales equal those of a quantization with a
/// current_scale (fp8_output.h), which takes two launches.
struct QuantizeCurrentScaling {
  Tensor x;     ///< fp32 or bf16
  Tensor out;   ///< FP8, shape of x
  float* amax;  ///< outputs [1] each, in device memory
  float* scale;
  float* scale_inv;
  int margin = 0;
  bool power_of_two = false;
};
constexpr int64_t kMaxSmallElements = int64_t{1} << 20;
/// Returns false, without doing anything, if there is no such kernel (on the CPU, and for more elements or unsupported
/// sizes and alignments).
bool quantize_current_scaling(const Context& context, const QuantizeCurrentScaling& args);

/// Transposes FP8 [rows, cols] to [cols, rows].
void transpose_fp8(const Context& context, const Tensor& x, const Tensor& out);

}  // namespace te::kernels
