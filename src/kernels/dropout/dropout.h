// Dropout with a counter-based mask. No mask is stored: the backward pass and a recomputed forward pass draw the same
// mask.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// With i = (first_row + r) * cols + c and word = word i % 4 of philox(seed, stream, i / 4):
///   keep    = word >= probability * 2^32; 0 <= probability < 1
///   y[r, c] = keep ? x[r, c] * (1 / (1 - probability)) : 0
/// in FP32, with the factor rounded once. The backward pass is the same call on dy. CPU and GPU results are bitwise
/// equal. first_row is the global row (sample * seq + position), so the mask does not depend on the batch layout.
struct Dropout {
  Tensor x;  ///< [rows, cols] fp32, bf16 or fp16
  Tensor y;  ///< output; may be x
  float probability = 0.0f;
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t first_row = 0;
};
void dropout(const Context& context, const Dropout& args);

}  // namespace te::kernels
