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

/// What a cast of two launches learns of its own tensor, in device memory. All is zero at first; the counters and the
/// next cast's amax are zero again behind every cast.
struct Fp8CastState {
  float amax[2];  ///< of this tensor alone: casts take one and the other in turns (Fp8Requantize::num_casts)
  float scale;    ///< of the last cast
  unsigned requantized;  ///< casts that were made again, whether they count or not
  Fp8Counters counters;  ///< of the first launch, which count if that is not made again
  unsigned long long casts,
      counted_requantized;  ///< of those that count: how many there were, and how many were made twice
};

/// A cast of two launches, which find the scale or correct it. Between them lies the tensor's own amax; the second one
/// decides on the device, and writes nothing but FP8, scale_inv and counters.
///
/// A scale that was found before the values (current_scale is null): where these have outgrown it, max |x| * scale >
/// fp8_max with max |x| finite, the whole tensor is cast once more, with the scale that its own amax asks for:
///   scale' = fp8_max * margin_factor / max |x|    as current_scale() finds it (kernels/scale_update)
/// Else the second launch ends at once. An infinity or a NaN among the values leaves the first cast as it is.
///
/// A scale of the tensor's own (current_scale is not null): the first launch writes all but FP8, the second casts with
/// scale', 1 where max |x| is 0, infinite or NaN. The values come from where they are stored or are computed again.
/// Rounded down to a power of two, scale' is as a rule that of the cast before: then the first launch casts with that,
/// and the second one where it has changed. The bytes do not depend on the guess.
struct Fp8Requantize {
  Fp8CastState* state = nullptr;  ///< null: one launch; values beyond the scale saturate
  /// In host memory: the casts of this state so far. While one is under way, nobody but it may ask for the state.
  unsigned* num_casts = nullptr;
  float margin_factor = 1.0f;
  float* current_scale = nullptr;  ///< receives scale'; may be where Fp8Output::scale points to
  /// [2], at first 0, or null. With them current_scale is a power of two, rounded as by group_scale(); casts take one
  /// and the other in turns, and find the scale of the cast before there.
  float* predicted_scales = nullptr;
  float* current_amax =
      nullptr;                  ///< with current_scale: receives max |x| (Fp8Output::amax is raised); or null
  float* used_scale = nullptr;  ///< receives the scale that the bytes have in the end; or null
  /// Of a tensor that several ranks cast with one scale: raises *amax() to that of the whole tensor. Called between the
  /// launches. Empty: the tensor is whole.
  std::function<void(const Context&)> all_reduce_amax;

  /// Of the cast that is under way.
  float* amax() const { return &state->amax[*num_casts % 2]; }
  float* predicted_scale() const { return predicted_scales + *num_casts % 2; }
};

/// For an output seen as [rows, cols]:
///   q = sat_cast(x * scale), x first rounded to the high-precision dtype of the op, so that a fused kernel
///   and a separate quantize of the stored output give the same bits.
/// All pointers are to memory of the context's device.
struct Fp8Output {
  Tensor rowwise;     ///< [rows, cols] FP8, or empty
  Tensor columnwise;  ///< [cols, rows] FP8, the physical transpose of rowwise, or empty
  const float* scale =
      nullptr;  ///< required when rowwise or columnwise is asked for; not read with a current_scale
  float* scale_inv = nullptr;  ///< receives 1 / scale, or null
  float* amax = nullptr;       ///< raised to max(*amax, max |x|), x unscaled; NaN > inf > finite; or null
  Fp8Counters* counters = nullptr;  ///< added to, or null: of what is left behind, also by a cast made again
  Fp8Requantize requantize;         ///< with data only

  bool wants_data() const { return rowwise || columnwise; }
  explicit operator bool() const { return wants_data() || amax != nullptr; }
};

}  // namespace te::kernels
