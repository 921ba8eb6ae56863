#include "kernels/gemm/widen_cpu.h"

#include "core/float_types.h"
#include "kernels/quantize/nvfp4_formula.h"

namespace te::kernels {

const float* widen(const Tensor& tensor, std::vector<float>& buffer) {
  if (tensor.dtype == DType::f32) return tensor.as<float>();
  const int64_t count = tensor.numel();
  if (static_cast<int64_t>(buffer.size()) < count) buffer.resize(static_cast<size_t>(count));
  float* out = buffer.data();
  const auto convert = [&](auto zero) {
    const auto* in = tensor.as<decltype(zero)>();
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; ++i) out[i] = to_float(in[i]);
  };
  if (tensor.dtype == DType::e2m1) {
    const auto* in = tensor.as<uint8_t>();
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; ++i) out[i] = e2m1_value(in[i / 2] >> i % 2 * 4 & 15u);
  } else if (!visit_high_precision(tensor.dtype, convert)) {
    visit_fp8(tensor.dtype, convert);
  }
  return out;
}

const float* widen(const Matrix& matrix, std::vector<float>& buffer) {
  const float* values = widen(matrix.values, buffer);
  if (scale_dtype(matrix.layout) == DType::u8) {
    const bool mx = matrix.layout == ScaleLayout::mx;
    const auto* scales = matrix.scales.as<uint8_t>();
    const int64_t rows = matrix.rows(), cols = matrix.cols(), group = mx ? kMxGroup : kNvfp4Group;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const uint8_t scale = scales[mx_scale_index(r, c / group, (cols + group - 1) / group)];
        buffer[r * cols + c] *= mx ? e8m0_value(scale) : to_float(float8_e4m3{scale});
      }
    }
    return values;
  }
  const bool vectors = matrix.layout == ScaleLayout::vectors;
  if (!vectors && matrix.layout != ScaleLayout::blocks) return values;
  TE_CHECK(is_fp8(matrix.dtype()), "gemm: only FP8 operands can have scales");
  const int64_t rows = matrix.rows(), cols = matrix.cols();
  const int64_t stride = !vectors                  ? matrix.scales.cols()
                         : matrix.scale_stride > 0 ? matrix.scale_stride
                                                   : rows;
  const float* scales = matrix.scales.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t block = c / kScaleBlock;
      buffer[r * cols + c] *= vectors ? scales[block * stride + r] : scales[r / kScaleBlock * stride + block];
    }
  }
  return values;
}

}  // namespace te::kernels
