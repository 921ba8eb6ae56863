// Dropout and noise with counter-based random numbers. No mask is stored: the backward pass and a recomputed forward
// pass draw the same mask.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// With i = (first_row + r) * cols + c and word = word i % 4 of philox(seed, stream, i / 4):
///   keep    = word >= probability * 2^32; 0 <= probability < 1
///   y[r, c] = keep ? x[r, c] * (1 / (1 - probability)) : 0
/// in FP32, with the factor rounded once. The backward pass is the same call on dy. CPU and GPU results are bitwise
/// equal. first_row is the global row (sample * seq + position), so the mask does not depend on the batch layout. If x
/// has only some columns of a tensor, c counts from first_col, and cols is all_cols. With numbers, first_row + r is
/// replaced by numbers[source[r]], or numbers[r] without source.
struct Dropout {
  Tensor x;  ///< [rows, cols] fp32, bf16 or fp16
  Tensor y;  ///< output; may be x
  float probability = 0.0f;
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t first_row = 0;
  int64_t first_col = 0, all_cols = 0;  ///< all_cols 0: x has all columns; else all are multiples of 8
  Tensor numbers;                       ///< optional i32, read as unsigned; then x has all columns
  Tensor source;                        ///< optional i32 [rows]; -1: a row of zeros, which has no number
};
void dropout(const Context& context, const Dropout& args);

/// numbers[r, i] = (first_row + r) * width + columns[r, i], modulo 2^32: for Dropout::numbers.
struct RowNumbers {
  Tensor numbers;  ///< out i32 [rows, n]
  Tensor columns;  ///< i32 [rows, n]; empty: zeros
  uint64_t first_row = 0;
  int64_t width = 1;
};
void row_numbers(const Context& context, const RowNumbers& args);

/// x[r, c] += amplitude * u, each operation rounded in FP32, the sum then to x's dtype, with u = (word >> 8) / 2^23 -
/// 1, uniform in [-1, 1), of the word above. CPU and GPU results are bitwise equal.
struct UniformNoise {
  Tensor x;  ///< [rows, cols] fp32, bf16 or fp16
  float amplitude = 0.0f;
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t first_row = 0;
};
void uniform_noise(const Context& context, const UniformNoise& args);

}  // namespace te::kernels
