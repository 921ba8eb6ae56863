// What a kernel is asked to write when its output is (also) wanted in FP8. Every kernel that produces an
// operand of a GEMM takes one; an empty one asks for nothing.
#pragma once

#include <cstdint>
#include <functional>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Counts of one tensor role, added to with integer atomics (so the order does not matter).
struct Fp8Counters {
  unsigned long long saturated;  ///< finite values with |x * scale| > fp8_max
  unsigned long long flushed;    ///< non-zero values that became zero
  unsigned long long total;
};

/// What a cast learns of its own tensor, in device memory. All is zero at first; amax, blocks and counters are zero
/// again behind every cast.
struct Fp8CastState {
  float amax;       ///< of this tensor alone
  unsigned blocks;  ///< of the second launch that have read the amax
  float scale;      ///< of the last cast
  unsigned unused;
  Fp8Counters counters;  ///< of the first cast, which count if it is not made again
  unsigned long long casts,
      recasts;  ///< of those that count: how many there were, and how many were made twice
};

/// A cast whose scale was found before its values. Where these have outgrown it, max |x| * scale > fp8_max with max |x|
/// finite, the whole tensor is cast once more, with the scale that its own amax asks for:
///   scale' = fp8_max * margin_factor / max |x|    as current_scale() finds it (kernels/scale_update)
/// The second launch decides on the device and ends at once where nothing is to be done; it writes nothing but FP8,
/// scale_inv and the counters. An infinity or a NaN among the values leaves the first cast as it is.
struct Fp8Recast {
  Fp8CastState* state = nullptr;  ///< null: values beyond the scale saturate
  float margin_factor = 1.0f;
  /// Of a tensor whose rows several ranks cast with one scale: raises state->amax to that of the whole tensor. Called
  /// between the casts. Empty: the tensor is whole, or its scale its own.
  std::function<void(const Context&)> agree;
};

/// For an output seen as [rows, cols]:
///   q = sat_cast(x * scale), x first rounded to the high-precision dtype of the op, so that a fused kernel
///   and a separate quantize of the stored output give the same bits.
/// All pointers are to memory of the context's device.
struct Fp8Output {
  Tensor rowwise;                ///< [rows, cols] FP8, or empty
  Tensor columnwise;             ///< [cols, rows] FP8, the physical transpose of rowwise, or empty
  const float* scale = nullptr;  ///< required when rowwise or columnwise is asked for
  float* scale_inv = nullptr;    ///< receives 1 / scale, or null
  float* amax = nullptr;         ///< raised to max(*amax, max |x|), x unscaled; NaN > inf > finite; or null
  Fp8Counters* counters = nullptr;  ///< added to, or null: of what is left behind, also by a cast made again
  Fp8Recast recast;                 ///< with data only

  bool wants_data() const { return rowwise || columnwise; }
  explicit operator bool() const { return wants_data() || amax != nullptr; }
};

}  // namespace te::kernels
