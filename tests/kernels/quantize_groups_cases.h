// Quantization with group scales: storage of both layouts, its read-out, and the definition as plain loops.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/quantize/quantize_groups.h"
#include "kernels/scale_update/scale_formula.h"
#include "testing/testing.h"

namespace te::kernels {

struct GroupCase {
  int64_t rows, cols;
  ScaleLayout layout;
  DType input = DType::bf16, format = DType::e4m3;
  bool power_of_two = true;
  std::string name() const {
    const char* layouts[] = {"none", "tensor", "rows", "vectors", "blocks"};
    return fmt::format("[{}, {}] {} to {} by {}{}", rows, cols, dtype_name(input), dtype_name(format),
                       layouts[static_cast<int>(layout)], power_of_two ? ", powers of two" : "");
  }
};

/// Results of a quantization. Scales exclude the padding of blocks.
struct GroupResult {
  std::vector<uint8_t> rowwise, columnwise;
  std::vector<float> row_values, column_values, row_scales, column_scales;
  float amax = 0;
  Fp8Counters counters{};
};

class GroupStorage {
 public:
  GroupStorage(const Context& context, const GroupCase& c)
      : context_(context),
        case_(c),
        rowwise_(context, c.format, {c.rows, c.cols}),
        columnwise_(context, c.format, {c.cols, c.rows}),
        row_scales_(context, DType::f32, scale_shape(c.layout, c.rows, c.cols)),
        column_scales_(context, DType::f32, scale_shape(c.layout, c.cols, c.rows)),
        amax_(context, DType::f32, {1}),
        counters_(context, DType::u8, {static_cast<int64_t>(sizeof(Fp8Counters))}) {
    amax_.fill_value(0.25f);
    context.zero(counters_);
  }
  Matrix rowwise() const { return {rowwise_, row_scales_, case_.layout}; }
  Matrix columnwise() const { return {columnwise_, column_scales_, case_.layout}; }
  QuantizeGroups args(const Tensor& x, bool rows = true, bool columns = true) const {
    return {.x = x,
            .rowwise = rows ? rowwise() : Matrix{},
            .columnwise = columns ? columnwise() : Matrix{},
            .power_of_two = case_.power_of_two,
            .amax = amax_.get().as<float>(),
            .counters = counters_.get().as<Fp8Counters>()};
  }
  GroupResult read() const {
    GroupResult result{rowwise_.raw(),
                       columnwise_.raw(),
                       rowwise_.floats(),
                       columnwise_.floats(),
                       groups(row_scales_, case_.cols),
                       groups(column_scales_, case_.rows),
                       amax_.floats()[0],
                       {}};
    const std::vector<uint8_t> bytes = counters_.raw();
    std::memcpy(&result.counters, bytes.data(), sizeof(Fp8Counters));
    return result;
  }

 private:
  std::vector<float> groups(const testing::TestTensor& scales, int64_t cols) const {
    std::vector<float> all = scales.floats(), result;
    if (case_.layout != ScaleLayout::blocks) return all;
    const int64_t stride = scales.get().cols(), used = (cols + kScaleBlock - 1) / kScaleBlock;
    for (size_t i = 0; i < all.size(); ++i)
      if (static_cast<int64_t>(i) % stride < used) result.push_back(all[i]);
    return result;
  }

  const Context& context_;
  GroupCase case_;
  testing::TestTensor rowwise_, columnwise_, row_scales_, column_scales_, amax_, counters_;
};

/// Inverse scale of element (r, c) of a layout [rows, cols], from the scales of a GroupResult.
inline float scale_at(const GroupCase& c, const std::vector<float>& scales, int64_t rows, int64_t cols,
                      int64_t row, int64_t col) {
  const int64_t blocks = (cols + kScaleBlock - 1) / kScaleBlock;
  if (c.layout == ScaleLayout::rows) return scales[row];
  if (c.layout == ScaleLayout::vectors) return scales[col / kScaleBlock * rows + row];
  return scales[row / kScaleBlock * blocks + col / kScaleBlock];
}

/// Sizes with partial groups of 128 in rows, columns and both, and one of full tiles.
inline std::vector<GroupCase> group_cases() {
  std::vector<GroupCase> cases;
  for (const auto& [rows, cols] : {std::pair{16, 16}, {128, 128}, {144, 400}, {384, 256}, {32, 1040}})
    for (const ScaleLayout layout : {ScaleLayout::rows, ScaleLayout::vectors, ScaleLayout::blocks})
      for (const DType input : {DType::f32, DType::bf16})
        for (const DType format : {DType::e4m3, DType::e5m2})
          for (const bool power_of_two : {false, true})
            cases.push_back({rows, cols, layout, input, format, power_of_two});
  return cases;
}

/// Values whose magnitude changes from group to group, some of them zero.
inline std::vector<float> group_values(int64_t rows, int64_t cols) {
  std::vector<float> values = testing::normal_values(rows * cols, 5);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      float& value = values[static_cast<size_t>(r * cols + c)];
      value *= std::ldexp(1.0f, static_cast<int>((r / 7 + c / 96) % 23) - 11);
      if (c % 128 == 3 || (r >= 8 && r < 16 && c < 128)) value = 0.0f;  // also full groups of zeros
    }
  return values;
}

/// Rows that are copies of tokens (QuantizeGroups::source), in no order, some of them zeros.
inline std::vector<int32_t> copied_rows(int64_t rows, int64_t tokens, int64_t topk) {
  std::vector<int32_t> source;
  for (int64_t r = 0; r < rows; ++r)
    source.push_back(r % 11 == 7 ? -1 : static_cast<int32_t>((r * 37 + r / 5) % (tokens * topk)));
  return source;
}

}  // namespace te::kernels
