// Column sums (bias gradients) of the CPU reference implementations. Each block of rows is summed in FP32, then the
// block sums are added in order. One thread owns a column, so the result does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/float_types.h"
#include "kernels/quantize/quantize.h"

namespace te::kernels {

/// sums[c] += sum over rows of value(r, c); sums fp32 or bf16 (rounded once).
template <class Value>
void add_column_sums_cpu(int64_t rows, int64_t cols, const Tensor& sums, Value&& value) {
  constexpr int64_t kColumns = 16;  // columns that a thread sums at a time
#pragma omp parallel for
  for (int64_t begin = 0; begin < cols; begin += kColumns) {
    const int64_t columns = std::min(kColumns, cols - begin);
    float total[kColumns] = {};
    for (int64_t first = 0; first < rows; first += kColumnSumRows) {
      float partial[kColumns] = {};
      for (int64_t r = first; r < std::min(rows, first + kColumnSumRows); ++r)
        for (int64_t c = 0; c < columns; ++c) partial[c] += value(r, begin + c);
      for (int64_t c = 0; c < columns; ++c) total[c] += partial[c];
    }
    visit_high_precision(sums.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* const out = sums.as<T>() + begin;
      for (int64_t c = 0; c < columns; ++c) out[c] = from_float<T>(to_float(out[c]) + total[c]);
    });
  }
}

}  // namespace te::kernels
