// A GEMM operand: values and, for FP8, the inverse scales that dequantize them.
#pragma once

#include <concepts>
#include <cstdint>

#include "core/tensor.h"

namespace te::kernels {

/// Values along one side of a scale block.
constexpr int64_t kScaleBlock = 128;

/// Which values share an inverse scale: x = values * scales. Scales are fp32 in cuBLASLt's layouts OUTER_VEC_32F,
/// VEC128_32F and BLK128x128_32F.
enum class ScaleLayout : uint8_t {
  none,     ///< high precision: no scales
  tensor,   ///< [1]
  rows,     ///< [rows]: one per row of the operand as the GEMM sees it
  vectors,  ///< [ceil(cols / 128), rows]: one per row and 128 columns
  blocks,   ///< [ceil(rows / 128), ceil(cols / 128), rounded up to a multiple of 4]: one per 128 x 128 values
  factor,   ///< [1]: high-precision values, whose sums a GEMM multiplies by the factors of both operands
};

/// Shape of the scales of a [rows, cols] matrix.
inline Shape scale_shape(ScaleLayout layout, int64_t rows, int64_t cols) {
  const auto blocks = [](int64_t count) { return (count + kScaleBlock - 1) / kScaleBlock; };
  switch (layout) {
    case ScaleLayout::rows:
      return {rows};
    case ScaleLayout::vectors:
      return {blocks(cols), rows};
    case ScaleLayout::blocks:
      return {blocks(rows), (blocks(cols) + 3) / 4 * 4};
    default:
      return {1};
  }
}

struct Matrix {
  Tensor values;  ///< [rows, cols] fp32, bf16, fp16 or FP8; tensors of other ranks are viewed as [rows, cols]
  Tensor scales;  ///< inverse scales in this layout; aligned to 16 bytes on a GPU (required by cuBLASLt)
  ScaleLayout layout = ScaleLayout::none;
  /// ScaleLayout::vectors: distance in elements between the scales of consecutive groups of 128 columns; 0 = rows().
  /// Larger for a slice.
  int64_t scale_stride = 0;

  Matrix() = default;
  /// High-precision values from a tensor, or from a type that converts to one.
  template <std::convertible_to<Tensor> T>
  Matrix(const T& high_precision) : values(high_precision) {}  // NOLINT(google-explicit-constructor)
  Matrix(const Tensor& fp8_values, const Tensor& inverse_scales, ScaleLayout scale_layout)
      : values(fp8_values), scales(inverse_scales), layout(scale_layout) {}

  int64_t rows() const { return values.rows(); }
  int64_t cols() const { return values.cols(); }
  DType dtype() const { return values.dtype; }
  explicit operator bool() const { return static_cast<bool>(values); }

  /// Rows [first, first + count) with their scales. ScaleLayout::blocks: whole blocks, or up to the last row.
  Matrix slice_rows(int64_t first, int64_t count) const {
    Matrix part = *this;
    part.values = values.slice_rows(first, count);
    if (layout == ScaleLayout::rows) {
      part.scales = scales.view({scales.numel(), 1}).slice_rows(first, count).view({count});
    } else if (layout == ScaleLayout::vectors) {
      part.scale_stride = scale_stride > 0 ? scale_stride : rows();
      part.scales = {scales.as<float>() + first, DType::f32, scale_shape(layout, count, cols())};
    } else if (layout == ScaleLayout::blocks) {
      TE_CHECK(first % kScaleBlock == 0 && (count % kScaleBlock == 0 || first + count == rows()),
               "rows {}+{} do not align with scales of 128 rows", first, count);
      part.scales = scales.slice_rows(first / kScaleBlock, scale_shape(layout, count, cols())[0]);
    }
    return part;
  }
};

}  // namespace te::kernels
