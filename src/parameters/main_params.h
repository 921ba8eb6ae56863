// Main parameters of consecutive elements: FP32 numbers, or the two halves of kernels/param_split.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::parameters {

struct MainParams {
  Tensor fp32;              ///< [n]; empty where there are halves
  Tensor value, remainder;  ///< bf16 and u16 [n]

  int64_t count() const { return fp32 ? fp32.numel() : value.numel(); }
  /// Elements [first, first + count).
  MainParams part(int64_t first, int64_t count) const;
  /// Bytes on the device.
  size_t bytes() const { return static_cast<size_t>(count()) * sizeof(float); }

  /// The device's bytes: FP32 numbers, or all values and then all remainders. `raw`: bytes() of host memory. Returns
  /// before the copy is done.
  void copy_raw(const Context& context, void* raw) const;
  /// FP32 numbers [first, first + part) from what copy_raw() has copied: a pointer into raw, or `joined` filled.
  const float* from_raw(const void* raw, int64_t first, int64_t part, float* joined) const;
  /// FP32 numbers from host memory; `halves`: as much host memory. Returns when they are there.
  void write(const Context& context, const float* host, void* halves) const;
};

}  // namespace te::parameters
