// FP8 outputs of the CPU reference implementations. Blocks of rows are distributed to threads; maxima and integer
// counts do not depend on the distribution.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/float_types.h"
#include "kernels/quantize/requantize.h"

namespace te::kernels {

/// max(a, |b|) with NaN > inf > finite, like the GPU's integer atomic max on the bits.
inline float amax_of(float amax, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
  return bits > std::bit_cast<uint32_t>(amax) ? std::bit_cast<float>(bits) : amax;
}

namespace fp8_detail {

inline uint32_t row_amax_bits(const float* x, int64_t cols) {
  uint32_t largest = 0;
  for (int64_t c = 0; c < cols; ++c) largest = std::max(largest, std::bit_cast<uint32_t>(x[c]) & 0x7fffffffu);
  return largest;
}

template <class T>
void quantize_row(const float* x, float scale, T* q, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) q[c] = from_float<T>(x[c] * scale);
}

template <class T>
void count_row(const float* x, float scale, const T* q, int64_t cols, unsigned long long& saturated,
               unsigned long long& flushed) {
  unsigned over = 0, zeroed = 0;
  for (int64_t c = 0; c < cols; ++c) {
    over += std::isfinite(x[c]) && std::abs(x[c] * scale) > fp8_max(dtype_of<T>()) ? 1u : 0u;
    zeroed += x[c] != 0.0f && (q[c].bits & 0x7f) == 0 ? 1u : 0u;
  }
  saturated += over;
  flushed += zeroed;
}

/// Rows per block. The transposed output is written in runs of this many bytes.
constexpr int64_t kRowsAtOnce = 32;

template <class T, class Value>
void write_data(const Fp8Output& out, int64_t rows, int64_t cols, float scale, uint32_t& amax_bits,
                Value& value) {
  T* const rowwise = out.rowwise.as<T>();
  T* const columnwise = out.columnwise.as<T>();
  const bool counting = out.counters != nullptr;
  unsigned long long saturated = 0, flushed = 0;
  uint32_t largest = 0;
#pragma omp parallel reduction(+ : saturated, flushed) reduction(max : largest)
  {
    std::vector<float> x(static_cast<size_t>(cols));
    std::vector<T> block(static_cast<size_t>(cols * kRowsAtOnce));
#pragma omp for
    for (int64_t begin = 0; begin < rows; begin += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, rows - begin);
      for (int64_t r = 0; r < count; ++r) {
        T* const q = block.data() + r * cols;
        for (int64_t c = 0; c < cols; ++c) x[c] = value(begin + r, c);
        largest = std::max(largest, row_amax_bits(x.data(), cols));
        quantize_row(x.data(), scale, q, cols);
        if (counting) count_row(x.data(), scale, q, cols, saturated, flushed);
        if (rowwise != nullptr) std::copy(q, q + cols, rowwise + (begin + r) * cols);
      }
      if (columnwise == nullptr) continue;
      for (int64_t c = 0; c < cols; ++c)
        for (int64_t r = 0; r < count; ++r) columnwise[c * rows + begin + r] = block[r * cols + c];
    }
  }
  amax_bits = std::max(amax_bits, largest);
  if (counting) {
    out.counters->saturated += saturated;
    out.counters->flushed += flushed;
    out.counters->total += static_cast<unsigned long long>(rows * cols);
  }
}

/// Quantizes once with the given scale.
template <class Value>
void quantize(const Fp8Output& out, float scale, int64_t rows, int64_t cols, Value& value) {
  if (out.scale_inv != nullptr) *out.scale_inv = 1.0f / scale;
  uint32_t amax_bits = 0;
  if (out.wants_data()) {
    visit_fp8(out.rowwise ? out.rowwise.dtype : out.columnwise.dtype,
              [&](auto zero) { write_data<decltype(zero)>(out, rows, cols, scale, amax_bits, value); });
  } else {
#pragma omp parallel for reduction(max : amax_bits)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        amax_bits =
            std::max(amax_bits, std::bit_cast<uint32_t>(static_cast<float>(value(r, c))) & 0x7fffffffu);
  }
  if (out.amax != nullptr) *out.amax = amax_of(*out.amax, std::bit_cast<float>(amax_bits));
}

/// Returns the scale for requantization, or 0, and finalizes the tensor's scale state (requantize.h).
inline float finalize_scale(const Fp8ScaleFinalization& s) {
  const float amax = *s.found_amax, first = s.scale != nullptr ? *s.scale : 0.0f,
              scale = second_scale(s, amax, first);
  if (s.amax != nullptr) *s.amax = amax_of(*s.amax, amax);
  finalize_state(s, amax, first, scale);
  return scale;
}

}  // namespace fp8_detail

/// Writes a [rows, cols] FP8 output: data in both layouts, scale_inv, amax and counters. `value(row, col)` returns a
/// high-precision value, already rounded to its dtype. Several threads call it concurrently, and a second time for each
/// element if the tensor is requantized (fp8_output.h).
template <class Value>
void write_fp8_output_cpu(const Context& context, const Fp8Output& out, int64_t rows, int64_t cols,
                          Value&& value) {
  if (!out) return;
  const Fp8Output first = first_quantization(out);
  fp8_detail::quantize(first, first.scale != nullptr ? *first.scale : 1.0f, rows, cols, value);
  if (out.requantize.state == nullptr) return;
  if (out.requantize.all_reduce_amax) out.requantize.all_reduce_amax(context);
  const float scale = fp8_detail::finalize_scale(finalization_of(out));
  if (scale == 0.0f) return;
  Fp8Output requantized = out;
  requantized.amax = nullptr;
  fp8_detail::quantize(requantized, scale, rows, cols, value);
}

}  // namespace te::kernels
