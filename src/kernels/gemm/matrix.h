// A GEMM operand: values and, for FP8, the inverse scales that dequantize them.
#pragma once

#include <concepts>
#include <cstdint>

#include "core/random.h"
#include "core/tensor.h"

namespace te::kernels {

/// Values along one side of a scale block.
constexpr int64_t kScaleBlock = 128;
/// Values along a row that share a scale in ScaleLayout::mx and nvfp4.
constexpr int64_t kMxGroup = 32, kNvfp4Group = 16;

/// Which values share an inverse scale: x = values * scales. Scales are fp32 in cuBLASLt's layouts OUTER_VEC_32F,
/// VEC128_32F and BLK128x128_32F, or bytes in VEC32_UE8M0 and VEC16_UE4M3 (mx_scale_index()).
enum class ScaleLayout : uint8_t {
  none,     ///< high precision: no scales
  tensor,   ///< [1]
  rows,     ///< [rows]: one per row of the operand as the GEMM sees it
  vectors,  ///< [ceil(cols / 128), rows]: one per row and 128 columns
  blocks,   ///< [ceil(rows / 128), ceil(cols / 128), rounded up to a multiple of 4]: one per 128 x 128 values
  factor,   ///< [1]: high-precision values, whose sums a GEMM multiplies by the factors of both operands
  mx,       ///< u8 [ceil(rows / 128), ceil(cols / 128), 512]: E8M0 per row and 32 columns
  nvfp4,    ///< u8 [ceil(rows / 128), ceil(cols / 64), 512]: E4M3 per row and 16 columns; and Matrix::factor
};

/// Where mx and nvfp4 have the scale of row r and group g of `groups`: in tiles of 128 rows x 4 groups, whose 16
/// consecutive bytes are the scales of rows r, r + 32, r + 64 and r + 96 ("1D Block Scaling Factors Layout" in the
/// documentation of cuBLAS). Scales without values in the last tiles are 0.
TE_HOST_DEVICE int64_t mx_scale_index(int64_t r, int64_t g, int64_t groups) {
  const int64_t tile = r / kScaleBlock * ((groups + 3) / 4) + g / 4;
  return tile * 512 + r % 32 * 16 + r % kScaleBlock / 32 * 4 + g % 4;
}

/// Type of the scales.
inline DType scale_dtype(ScaleLayout layout) {
  return layout == ScaleLayout::mx || layout == ScaleLayout::nvfp4 ? DType::u8 : DType::f32;
}

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
    case ScaleLayout::mx:
      return {blocks(rows), blocks(cols), 512};
    case ScaleLayout::nvfp4:
      return {blocks(rows), blocks(2 * cols), 512};
    default:
      return {1};
  }
}

struct Matrix {
  Tensor values;  ///< [rows, cols] fp32, bf16, fp16, FP8 or E2M1; other ranks are viewed as [rows, cols]
  Tensor scales;  ///< inverse scales in this layout; aligned to 16 bytes on a GPU (required by cuBLASLt)
  ScaleLayout layout = ScaleLayout::none;
  Tensor factor;  ///< ScaleLayout::nvfp4: fp32 [1], multiplies the sums of a GEMM
  /// ScaleLayout::vectors: distance in elements between the scales of consecutive groups of 128 columns; 0 = rows().
  /// Larger for a slice.
  int64_t scale_stride = 0;

  Matrix() = default;
  /// High-precision values from a tensor, or from a type that converts to one.
  template <std::convertible_to<Tensor> T>
  Matrix(const T& high_precision) : values(high_precision) {}  // NOLINT(google-explicit-constructor)
  Matrix(const Tensor& fp8_values, const Tensor& inverse_scales, ScaleLayout scale_layout,
         const Tensor& tensor_factor = {})
      : values(fp8_values), scales(inverse_scales), layout(scale_layout), factor(tensor_factor) {}

  /// Whether a GEMM multiplies its sums by tensor_factor(), fp32 [1]; also with ScaleLayout::tensor.
  bool has_factor() const { return layout == ScaleLayout::factor || layout == ScaleLayout::nvfp4; }
  const Tensor& tensor_factor() const { return layout == ScaleLayout::nvfp4 ? factor : scales; }
  int64_t rows() const { return values.rows(); }
  int64_t cols() const { return values.cols(); }
  DType dtype() const { return values.dtype; }
  explicit operator bool() const { return static_cast<bool>(values); }

  /// Rows [first, first + count) with their scales. ScaleLayout::blocks, mx and nvfp4: whole blocks, or up to the last
  /// row.
  Matrix slice_rows(int64_t first, int64_t count) const {
    Matrix part = *this;
    part.values = values.slice_rows(first, count);
    if (layout == ScaleLayout::rows) {
      part.scales = scales.view({scales.numel(), 1}).slice_rows(first, count).view({count});
    } else if (layout == ScaleLayout::vectors) {
      part.scale_stride = scale_stride > 0 ? scale_stride : rows();
      part.scales = {scales.as<float>() + first, DType::f32, scale_shape(layout, count, cols())};
    } else if (layout == ScaleLayout::blocks || scale_dtype(layout) == DType::u8) {
      TE_CHECK(first % kScaleBlock == 0 && (count % kScaleBlock == 0 || first + count == rows()),
               "rows {}+{} do not align with scales of 128 rows", first, count);
      const Shape shape = scale_shape(layout, count, cols());
      const int64_t per_block = layout == ScaleLayout::blocks ? 1 : shape[1];
      part.scales = scales.slice_rows(first / kScaleBlock * per_block, shape[0] * per_block).view(shape);
    }
    return part;
  }
};

}  // namespace te::kernels
