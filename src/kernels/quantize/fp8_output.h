// What a kernel is asked to write when its output is (also) wanted in FP8. Every kernel that produces an
// operand of a GEMM takes one; an empty one asks for nothing.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace te::kernels {

/// Counts of one tensor role, added to with integer atomics (so the order does not matter).
struct Fp8Counters {
  unsigned long long saturated;  ///< finite values with |x * scale| > fp8_max
  unsigned long long flushed;    ///< non-zero values that became zero
  unsigned long long total;
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
  Fp8Counters* counters = nullptr;  ///< added to, or null

  bool wants_data() const { return rowwise || columnwise; }
  explicit operator bool() const { return wants_data() || amax != nullptr; }
};

}  // namespace te::kernels
