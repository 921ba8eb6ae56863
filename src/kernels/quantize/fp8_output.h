// FP8 output of a kernel, in addition to or instead of a high-precision one. Every kernel that produces an operand of a
// GEMM takes an Fp8Output; an empty one requests nothing.
#pragma once

#include <cstdint>
#include <functional>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Counters of one tensor role, updated with integer atomics (so the order does not matter).
struct Fp8Counters {
  unsigned long long saturated;  ///< finite values with |x * scale| > fp8_max
  unsigned long long flushed;    ///< non-zero values that underflow to zero
  unsigned long long total;
};

/// Device state of a tensor that is quantized in two launches. Initially all zero; after each quantization the counters
/// and the amax slot for the next one are zero again.
struct Fp8TensorState {
  float amax[2];         ///< of this tensor only; double-buffered (Fp8Requantize::num_quantizations)
  float scale;           ///< of the last quantization
  unsigned requantized;  ///< number of requantizations, counted in the two fields below or not
  Fp8Counters counters;  ///< of the first launch; discarded if the tensor is requantized
  unsigned long long quantized,
      counted_requantized;  ///< with counters only: quantizations, and those that were requantized
};

/// Quantization in two launches, which compute or correct the scale. The first launch finds the tensor's own amax; the
/// second decides on the device and writes only FP8 data, scale_inv and counters.
///
/// Predetermined scale (current_scale is null), as with delayed scaling: if the values overflow the scale (max |x| is
/// finite, max |x| * scale > fp8_max), the second launch requantizes the whole tensor with a scale from its own amax:
///   scale' = fp8_max * margin_factor / max |x|    as computed by current_scale() (kernels/scale_update)
/// Otherwise the second launch ends immediately. If a value is infinite or NaN, the first quantization is kept.
///
/// Current scaling (current_scale is not null): the first launch writes everything except FP8 data, and the second one
/// quantizes with scale', or with 1 if max |x| is 0, infinite or NaN. Values are read from memory or recomputed. If
/// scale' is rounded down to a power of two, it usually equals that of the previous quantization. The first launch then
/// quantizes with the previous scale as a prediction, and the second one only if the scale has changed. The result does
/// not depend on the prediction.
struct Fp8Requantize {
  Fp8TensorState* state = nullptr;  ///< null: a single launch; values beyond the scale saturate
  /// In host memory: number of quantizations with this state. Only one may be in progress at a time.
  unsigned* num_quantizations = nullptr;
  float margin_factor = 1.0f;
  float* current_scale = nullptr;  ///< receives scale'; may equal Fp8Output::scale
  /// [2], initially 0, or null. With it current_scale is a power of two, rounded like group_scale(). Double-buffered:
  /// the slot of each quantization holds the scale of the previous one.
  float* predicted_scales = nullptr;
  /// With current_scale: receives max |x|, while Fp8Output::amax is updated; may be null.
  float* current_amax = nullptr;
  float* used_scale = nullptr;  ///< receives the scale of the final bytes; may be null
  /// For a tensor that is sharded across ranks with a common scale: all-reduces *amax() to the amax of the full tensor.
  /// Called between the launches. Empty if the tensor is not sharded.
  std::function<void(const Context&)> all_reduce_amax;

  /// Slots of the current quantization.
  float* amax() const { return &state->amax[*num_quantizations % 2]; }
  float* predicted_scale() const { return predicted_scales + *num_quantizations % 2; }
};

/// For an output seen as [rows, cols]:
///   q = sat_cast(x * scale), where x is first rounded to the op's high-precision dtype, so that a fused kernel gives
///       the same bits as a separate quantization of the stored output.
/// All pointers refer to memory of the context's device.
struct Fp8Output {
  Tensor rowwise;     ///< [rows, cols] FP8, or empty
  Tensor columnwise;  ///< [cols, rows] FP8, the physical transpose of rowwise, or empty
  /// Required with rowwise or columnwise data; ignored with a current_scale.
  const float* scale = nullptr;
  float* scale_inv = nullptr;  ///< receives 1 / scale; may be null
  /// Updated to max(*amax, max |x|) with unscaled x, where NaN > inf > finite; may be null.
  float* amax = nullptr;
  Fp8Counters* counters = nullptr;  ///< updated with the counts of the final bytes; may be null
  Fp8Requantize requantize;         ///< only with data

  bool wants_data() const { return rowwise || columnwise; }
  explicit operator bool() const { return wants_data() || amax != nullptr; }
};

}  // namespace te::kernels
