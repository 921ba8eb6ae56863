// A matrix as a GEMM reads it: its values and, where they are FP8, the inverse scales that give them back their size.
#pragma once

#include <concepts>
#include <cstdint>

#include "core/tensor.h"

namespace te::kernels {

/// Which values share an inverse scale: x = values * scales.
enum class ScaleLayout : uint8_t {
  none,    ///< high precision: no scales
  tensor,  ///< scales fp32 [1]
  rows,    ///< scales fp32 [rows]: one per row, as the GEMM sees it
};

struct Matrix {
  Tensor values;  ///< [rows, cols] fp32, bf16 or FP8; of any rank, seen as [rows, cols]
  Tensor
      scales;  ///< inverse scales as the layout says; on a GPU aligned to 16 bytes (cuBLASLt refuses others)
  ScaleLayout layout = ScaleLayout::none;

  Matrix() = default;
  /// High-precision values, from a tensor or what converts to one.
  template <std::convertible_to<Tensor> T>
  Matrix(const T& high_precision) : values(high_precision) {}  // NOLINT(google-explicit-constructor)
  Matrix(const Tensor& fp8_values, const Tensor& inverse_scales, ScaleLayout scale_layout)
      : values(fp8_values), scales(inverse_scales), layout(scale_layout) {}

  int64_t rows() const { return values.rows(); }
  int64_t cols() const { return values.cols(); }
  DType dtype() const { return values.dtype; }
  explicit operator bool() const { return static_cast<bool>(values); }

  /// Rows [first, first + count) with their scales.
  Matrix slice_rows(int64_t first, int64_t count) const {
    Matrix part = *this;
    part.values = values.slice_rows(first, count);
    if (layout == ScaleLayout::rows)
      part.scales = scales.view({scales.numel(), 1}).slice_rows(first, count).view({count});
    return part;
  }
};

}  // namespace te::kernels
