// Statistics of a tensor and of its quantization to FP8, as sums from which others are derived: saturated and
// underflowed values, quantization error, moments, largest and smallest magnitude. A diagnostic op that runs
// occasionally on tensors of a training run; it writes only its sums.
//
// The quantization is emulated by the caller, or that of kernels/quantize, with a given scale of the whole tensor, or
// with current scaling per group, rowwise or columnwise. It uses the same formulas (scale_update/scale_formula.h) and
// the same rounding.
//
// Values that are not finite are counted and otherwise only affect the scale of their group. Sums are FP64, in an order
// that depends only on the shape. An op is therefore deterministic on one backend, but backends add in different
// orders.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

/// Layout in device memory. All zero means empty.
struct TensorSums {
  double sum1, sum2, sum3, sum4;      ///< sums of x, x^2, x^3, x^4
  double squared_error;               ///< of the dequantized values, against x
  unsigned long long count;           ///< values, finite or not
  unsigned long long nonfinite;       ///< of these: infinities and NaN
  unsigned long long saturated;       ///< |x * scale| > the format's largest number
  unsigned long long flushed;         ///< x is not 0 but underflows in FP8
  float amax;                         ///< largest magnitude
  float smallest;                     ///< smallest nonzero magnitude; 0 if there is none
  float lowest_scale, highest_scale;  ///< over all groups; 0: nothing was quantized, or emulated
};
static_assert(sizeof(TensorSums) == 88);

/// Sums of the union of two sets of values.
TensorSums merged(const TensorSums& a, const TensorSums& b);

// The results are NaN if there are no values.
double sqnr_db(const TensorSums& sums);        ///< 10 log10(signal / error); infinite if the error is 0
double dynamic_range(const TensorSums& sums);  ///< log2(amax / smallest magnitude above 0)
double kurtosis(const TensorSums& sums);       ///< about the mean; 3 for a normal distribution
double saturated_fraction(const TensorSums& sums);
double underflow_fraction(const TensorSums& sums);

struct TensorStats {
  Tensor x;  ///< [rows, cols] fp32, bf16 or fp16; tensors of other ranks are viewed as [rows, cols]
  /// none: no quantization. tensor: uses `scale`. Other layouts: current scaling per group; the last group of a
  /// dimension may be smaller.
  ScaleLayout layout = ScaleLayout::none;
  DType format = DType::e4m3;
  bool columnwise = false;       ///< columnwise groups (for rows and vectors)
  const float* scale = nullptr;  ///< device memory; layout tensor only
  bool power_of_two = true;      ///< for current scaling
  int margin = 0;
  /// The result of an emulated quantization (layout none), in the dtype of x: [rows, cols], or [cols, rows] with
  /// `columnwise`; or empty.
  Tensor dequantized;
  const Fp8Counters* counters = nullptr;  ///< with dequantized: the quantization's
  Tensor scratch;                         ///< u8 [tensor_stats_scratch_bytes()]
  TensorSums* into = nullptr;             ///< device memory; the tensor's sums are merged into it
};
void tensor_stats(const Context& context, const TensorStats& args);
int64_t tensor_stats_scratch_bytes();

/// Alignment of SwiGLU's two weights: out[i] = cosine of rows i and n + i of x, or 0 if one of them is zero.
struct RowAlignment {
  Tensor x;    ///< [2 n, cols] fp32 or bf16: gate, then up
  Tensor out;  ///< [n] fp32
};
void row_alignment(const Context& context, const RowAlignment& args);

}  // namespace te::kernels
