// The FP8 side of the CPU references: one value at a time, in the definition's words.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/float_types.h"
#include "kernels/quantize/fp8_output.h"

namespace te::kernels {

/// max(a, |b|) in the order NaN > inf > finite, as the GPU's integer atomic max on the bits gives it.
inline float amax_of(float amax, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
  return bits > std::bit_cast<uint32_t>(amax) ? std::bit_cast<float>(bits) : amax;
}

/// Writes a whole [rows, cols] output from `value(row, col)`, which returns the high-precision value already
/// rounded to its dtype: data in both layouts, scale_inv, amax and counters.
template <class Value>
void write_fp8_output_cpu(const Fp8Output& out, int64_t rows, int64_t cols, Value&& value) {
  if (!out) return;
  const float scale = out.scale != nullptr ? *out.scale : 1.0f;
  if (out.scale_inv != nullptr) *out.scale_inv = 1.0f / scale;
  float amax = out.amax != nullptr ? *out.amax : 0.0f;
  unsigned long long saturated = 0, flushed = 0;
  const DType type = out.rowwise ? out.rowwise.dtype : out.columnwise.dtype;
  const auto each = [&](auto zero) {
    using T = decltype(zero);
    T* rowwise = out.rowwise.as<T>();
    T* columnwise = out.columnwise.as<T>();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const float x = value(r, c);
        amax = amax_of(amax, x);
        const float scaled = x * scale;
        const T q = from_float<T>(scaled);
        if (rowwise != nullptr) rowwise[r * cols + c] = q;
        if (columnwise != nullptr) columnwise[c * rows + r] = q;
        saturated += std::isfinite(x) && std::abs(scaled) > fp8_max(dtype_of<T>()) ? 1 : 0;
        flushed += x != 0.0f && (q.bits & 0x7f) == 0 ? 1 : 0;
      }
    }
  };
  if (out.wants_data()) {
    visit_fp8(type, each);
    if (out.counters != nullptr) {
      out.counters->saturated += saturated;
      out.counters->flushed += flushed;
      out.counters->total += static_cast<unsigned long long>(rows * cols);
    }
  } else {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) amax = amax_of(amax, value(r, c));
  }
  if (out.amax != nullptr) *out.amax = amax;
}

}  // namespace te::kernels
