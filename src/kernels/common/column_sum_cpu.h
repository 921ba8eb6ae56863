// Column sums of the CPU references (bias gradients): FP32 partial sums over blocks of rows, then over the
// blocks in order, so the result does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/float_types.h"
#include "kernels/quantize/quantize.h"

namespace te::kernels {

/// sums[c] += sum over rows of value(r, c); sums fp32 or bf16 (rounded once). scratch:
/// quantize_scratch_elements(rows, cols) floats.
template <class Value>
void add_column_sums_cpu(int64_t rows, int64_t cols, const Tensor& sums, float* scratch, Value&& value) {
  if (rows == 0) return;
  const int64_t blocks = (rows + kColumnSumRows - 1) / kColumnSumRows;
#pragma omp parallel for
  for (int64_t block = 0; block < blocks; ++block) {
    float* const partial = scratch + block * cols;
    std::fill(partial, partial + cols, 0.0f);
    const int64_t end = std::min(rows, (block + 1) * kColumnSumRows);
    for (int64_t r = block * kColumnSumRows; r < end; ++r)
      for (int64_t c = 0; c < cols; ++c) partial[c] += value(r, c);
  }
  for (int64_t block = 1; block < blocks; ++block)
    for (int64_t c = 0; c < cols; ++c) scratch[c] += scratch[block * cols + c];
  visit_hp(sums.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* const out = sums.as<T>();
    for (int64_t c = 0; c < cols; ++c) out[c] = from_float<T>(to_float(out[c]) + scratch[c]);
  });
}

}  // namespace te::kernels
