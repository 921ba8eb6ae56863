// FP32 master weights (Megatron's main parameters) of consecutive elements: FP32 values, or the two halves of
// kernels/param_split.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::parameters {

struct MainParams {
  Tensor fp32;              ///< [n]; empty if split into halves
  Tensor value, remainder;  ///< bf16 and u16 [n]

  int64_t count() const { return fp32 ? fp32.numel() : value.numel(); }
  /// Elements [first, first + count).
  MainParams part(int64_t first, int64_t count) const;
  /// Bytes on the device.
  size_t bytes() const { return static_cast<size_t>(count()) * sizeof(float); }

  /// Copies the device's bytes: FP32 values, or all BF16 values and then all remainders. `raw`: bytes() of host memory.
  /// Asynchronous.
  void copy_raw(const Context& context, void* raw) const;
  /// FP32 values [first, first + part) of what copy_raw() has copied: a pointer into `raw`, or `joined`, which it
  /// fills.
  const float* from_raw(const void* raw, int64_t first, int64_t part, float* joined) const;
  /// Writes FP32 values from host memory; `halves`: scratch memory of the same size. Synchronous.
  void write(const Context& context, const float* host, void* halves) const;
};

}  // namespace te::parameters
