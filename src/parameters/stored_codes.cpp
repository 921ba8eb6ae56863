#include "parameters/stored_codes.h"

#include <algorithm>

#include "kernels/quantize/quantize.h"

namespace te::parameters {
namespace {

using kernels::kScaleBlock;
using kernels::Matrix;
using kernels::ScaleLayout;

/// The scales of the codes in the matrix's layout; empty if it cannot represent them.
std::vector<float> scales_of(const Matrix& matrix, const StoredCodes& stored) {
  if (matrix.values.dtype != DType::e4m3) return {};
  if (matrix.layout == ScaleLayout::tensor || matrix.layout == ScaleLayout::rows) {
    if (stored.group != 0) return {};
    if (matrix.layout == ScaleLayout::rows) return stored.scales;
    std::vector<float> scales;  // one, or one of each expert
    const int64_t count = std::max<int64_t>(1, matrix.scales.numel()),
                  rows = static_cast<int64_t>(stored.scales.size()) / count;
    for (int64_t i = 0; i < count; ++i) {
      const auto first = stored.scales.begin() + i * rows;
      if (std::any_of(first, first + rows, [&](float scale) { return scale != *first; })) return {};
      scales.push_back(*first);
    }
    return scales;
  }
  if (matrix.layout != ScaleLayout::blocks || stored.group != kScaleBlock) return {};
  const int64_t width = matrix.scales.dim(1),
                groups = static_cast<int64_t>(stored.scales.size()) / std::max<int64_t>(1, matrix.rows());
  std::vector<float> scales(static_cast<size_t>(matrix.scales.numel()), 0.0f);
  for (int64_t row = 0; row < matrix.rows(); ++row) {
    const auto own = stored.scales.begin() + row * groups;
    const auto block = scales.begin() + row / kScaleBlock * width;
    if (row % kScaleBlock == 0) std::copy_n(own, groups, block);
    if (!std::equal(own, own + groups, block)) return {};
  }
  return scales;
}

}  // namespace

bool use_codes(const Context& context, const Parameter& parameter, const StoredCodes& stored) {
  const Matrix &rowwise = *parameter.rowwise, &columnwise = *parameter.columnwise;
  TE_CHECK(stored.codes.size() == rowwise.values.bytes(), "{}: {} codes", parameter.name,
           stored.codes.size());
  const std::vector<float> scales = scales_of(rowwise, stored);
  if (scales.empty()) return false;
  context.copy_to_device(rowwise.values, stored.codes.data());
  context.copy_to_device(rowwise.scales, scales.data());
  std::vector<float> transposed;
  if (rowwise.layout == ScaleLayout::blocks) {
    const int64_t from = rowwise.scales.dim(1), to = columnwise.scales.dim(1);
    transposed.resize(static_cast<size_t>(columnwise.scales.numel()), 0.0f);
    for (int64_t r = 0; r < rowwise.scales.dim(0); ++r)
      for (int64_t c = 0; c < columnwise.scales.dim(0); ++c) transposed[c * to + r] = scales[r * from + c];
    context.copy_to_device(columnwise.scales, transposed.data());
  }
  // Where it is not kept, passes make it from the rowwise layout.
  if (rowwise.layout != ScaleLayout::rows && parameter.keeps_columnwise)
    kernels::transpose_fp8(context, rowwise.values, columnwise.values);
  context.synchronize();  // the host vectors must outlive the copies
  return true;
}

}  // namespace te::parameters
