// The layout of the columnwise FP8 values of experts' rows, which weight gradients read (moe/grouped_gemm.h). A matrix
// [cols, rows] is stored in blocks of 128 rows, each as a matrix [cols, its rows] after the block before, so that the
// values that a tile of a gradient reads at a time are one piece of memory.
#pragma once

#include <cstdint>

#include "core/random.h"

namespace te::kernels {

constexpr int64_t kRowBlock = 128;

/// Where row r of column c is.
TE_HOST_DEVICE int64_t row_block_index(int64_t c, int64_t r, int64_t cols, int64_t rows) {
  const int64_t first = r / kRowBlock * kRowBlock, left = rows - first;
  return first * cols + c * (left < kRowBlock ? left : kRowBlock) + r - first;
}

}  // namespace te::kernels
