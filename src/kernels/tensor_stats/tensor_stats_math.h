// Formulas of tensor_stats, shared by both backends: the groups of values, and what a value adds to the sums.
#pragma once

#include <cfloat>
#include <cmath>

#include "core/random.h"
#include "kernels/tensor_stats/tensor_stats.h"

namespace te::kernels {

/// Number of independent partial sums; part p has the groups p, p + kStatsParts, ...
constexpr int64_t kStatsParts = 512;

/// Partition of x into groups with a common scale: a grid of tiles.
struct StatsTiles {
  int64_t rows, cols;     ///< of x
  int64_t height, width;  ///< of a tile
  int64_t across;         ///< tiles per row of tiles
  int64_t count;
  bool current_scaling;

  struct Tile {
    int64_t row, col, height, width;
  };
  /// Index in TensorStats::dequantized.
  TE_HOST_DEVICE int64_t dequantized_index(bool columnwise, int64_t row, int64_t col) const {
    return columnwise ? col * rows + row : row * cols + col;
  }
  TE_HOST_DEVICE Tile tile(int64_t index) const {
    const int64_t row = index / across * height, col = index % across * width;
    return {row, col, height < rows - row ? height : rows - row, width < cols - col ? width : cols - col};
  }
};

inline StatsTiles stats_tiles(const TensorStats& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  StatsTiles tiles{.rows = rows,
                   .cols = cols,
                   .height = 1,
                   .width = cols,
                   .across = 1,
                   .count = 0,
                   .current_scaling = true};
  switch (args.layout) {
    case ScaleLayout::rows:
      if (args.columnwise) tiles.height = rows, tiles.width = 1;
      break;
    case ScaleLayout::vectors:
      tiles.height = args.columnwise ? kScaleBlock : 1;
      tiles.width = args.columnwise ? 1 : kScaleBlock;
      break;
    case ScaleLayout::blocks:
      tiles.height = tiles.width = kScaleBlock;
      break;
    default:  // any partition works
      tiles.current_scaling = false;
  }
  tiles.across = (cols + tiles.width - 1) / tiles.width;
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): callers have rejected an x without rows
  tiles.count = (rows + tiles.height - 1) / tiles.height * tiles.across;
  return tiles;
}

/// Adds a finite value to the moments.
TE_HOST_DEVICE void add_moments(TensorSums& sums, float x) {
  const double value = x, square = value * value;
  const float magnitude = fabsf(x);
  sums.sum1 += value;
  sums.sum2 += square;
  sums.sum3 += square * value;
  sums.sum4 += square * square;
  if (magnitude > sums.amax) sums.amax = magnitude;
  if (magnitude > 0.0f && (sums.smallest == 0.0f || magnitude < sums.smallest)) sums.smallest = magnitude;
}

/// Adds the error of a finite value under an emulated quantization.
TE_HOST_DEVICE void add_error(TensorSums& sums, float x, float dequantized) {
  const double error = static_cast<double>(dequantized) - static_cast<double>(x);
  sums.squared_error += error * error;
}

/// Adds the counts of an emulated quantization.
TE_HOST_DEVICE void add_counters(TensorSums& sums, const Fp8Counters& counters) {
  sums.saturated += counters.saturated;
  sums.flushed += counters.flushed;
}

/// Adds a finite value to the quantization sums; q: value of the FP8 number.
TE_HOST_DEVICE void add_quantized(TensorSums& sums, float x, float scale, float q, float largest) {
  const double error = static_cast<double>(q) * static_cast<double>(1.0f / scale) - static_cast<double>(x);
  sums.squared_error += error * error;
  sums.saturated += fabsf(x * scale) > largest ? 1u : 0u;
  sums.flushed += x != 0.0f && q == 0.0f ? 1u : 0u;
}

TE_HOST_DEVICE void add_scale(TensorSums& sums, float scale) {
  if (sums.lowest_scale == 0.0f || scale < sums.lowest_scale) sums.lowest_scale = scale;
  if (scale > sums.highest_scale) sums.highest_scale = scale;
}

TE_HOST_DEVICE void add_sums(TensorSums& to, const TensorSums& from) {
  to.sum1 += from.sum1;
  to.sum2 += from.sum2;
  to.sum3 += from.sum3;
  to.sum4 += from.sum4;
  to.squared_error += from.squared_error;
  to.count += from.count;
  to.nonfinite += from.nonfinite;
  to.saturated += from.saturated;
  to.flushed += from.flushed;
  if (from.amax > to.amax) to.amax = from.amax;
  if (from.smallest > 0.0f && (to.smallest == 0.0f || from.smallest < to.smallest))
    to.smallest = from.smallest;
  if (from.lowest_scale > 0.0f) {
    add_scale(to, from.lowest_scale);
    add_scale(to, from.highest_scale);
  }
}

}  // namespace te::kernels
