// What a cast to FP8 does to a tensor, and how its values are spread, as sums from which all else follows: how many
// values saturate or become zero, the error of what comes back, moments, largest and smallest magnitude. A diagnosis,
// run now and then on tensors that training has made; it writes nothing but its sums.
//
// The cast is that of kernels/quantize: with a given scale of the whole tensor, or with scales of groups of the values'
// own, of the row-wise or of the column-wise form. The same formulas (scale_update/scale_formula.h), the same rounding.
//
// Values that are not finite are counted and enter nothing else but their group's scale. Sums are FP64, in an order
// that depends on the shape alone: an op repeats bit for bit on one backend; two backends add in different orders.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/gemm/matrix.h"

namespace te::kernels {

/// As it lies in device memory. All zero: nothing yet.
struct TensorSums {
  double sum1, sum2, sum3, sum4;      ///< of x, x^2, x^3, x^4
  double squared_error;               ///< of what comes back of the cast, against x
  unsigned long long count;           ///< values, finite or not
  unsigned long long nonfinite;       ///< of these: infinities and NaN
  unsigned long long saturated;       ///< |x * scale| > the format's largest number
  unsigned long long flushed;         ///< x is not 0, and what comes back is
  float amax;                         ///< largest magnitude
  float smallest;                     ///< smallest magnitude that is not 0; 0: there is none
  float lowest_scale, highest_scale;  ///< of the groups; 0: nothing was cast
};
static_assert(sizeof(TensorSums) == 88);

/// The sums of two sets of values from those of each.
TensorSums merged(const TensorSums& a, const TensorSums& b);

struct TensorStats {
  Tensor x;  ///< [rows, cols] fp32 or bf16, of any rank, seen as such
  /// none: no cast. tensor: with `scale`. Else groups of own scales; the end of a dimension may be a smaller group.
  ScaleLayout layout = ScaleLayout::none;
  DType format = DType::e4m3;
  bool columnwise = false;       ///< groups of the column-wise form (rows, vectors)
  const float* scale = nullptr;  ///< device memory; layout tensor only
  bool power_of_two = true;      ///< of own scales
  int margin = 0;
  Tensor scratch;              ///< u8 [tensor_stats_scratch_bytes()]
  TensorSums* into = nullptr;  ///< device memory: the tensor's sums are merged into it
};
void tensor_stats(const Context& context, const TensorStats& args);
int64_t tensor_stats_scratch_bytes();

/// SwiGLU's two weights: out[i] = cosine of rows i and n + i of x, 0 where one of them is zero.
struct RowAlignment {
  Tensor x;    ///< [2 n, cols] fp32 or bf16: gate, then up
  Tensor out;  ///< [n] fp32
};
void row_alignment(const Context& context, const RowAlignment& args);

}  // namespace te::kernels
