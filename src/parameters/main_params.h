// FP32 master weights (Megatron's main parameters) of consecutive elements: FP32 values, or the two halves of
// kernels/param_split.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::parameters {

/// Master weights. Parameters that are not trained have their values here, without remainder if these have 16 bits.
struct MainParams {
  Tensor fp32;              ///< [n]; empty if split into halves
  Tensor value, remainder;  ///< bf16 (fp16 without remainder) and u16 [n]

  int64_t count() const { return fp32 ? fp32.numel() : value.numel(); }
  /// Elements [first, first + count).
  MainParams part(int64_t first, int64_t count) const;
  /// Bytes on the device.
  size_t bytes() const { return fp32 ? fp32.bytes() : value.bytes() + remainder.bytes(); }
  /// The dtype of from_raw(): fp32, except BF16 values without remainder.
  DType stored_dtype() const {
    return !fp32 && !remainder && value.dtype == DType::bf16 ? DType::bf16 : DType::f32;
  }

  /// Copies the device's bytes: FP32 values, or all BF16 values and then all remainders. `raw`: bytes() of host memory.
  /// Asynchronous.
  void copy_raw(const Context& context, void* raw) const;
  /// Values [first, first + part) of what copy_raw() has copied, as stored_dtype(): a pointer into `raw`, or `joined`,
  /// which it fills.
  const void* from_raw(const void* raw, int64_t first, int64_t part, float* joined) const;
  /// Writes FP32 values from host memory; `halves`: scratch memory of the same size. Synchronous.
  void write(const Context& context, const float* host, void* halves) const;
};

}  // namespace te::parameters
