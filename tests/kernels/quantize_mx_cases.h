// Quantization to MXFP8: storage of both layouts and its read-out, cases and values.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/quantize/quantize_mx.h"
#include "testing/testing.h"

namespace te::kernels {

struct MxCase {
  int64_t rows, cols;
  DType input = DType::bf16, format = DType::e4m3;
  bool rowwise = true, columnwise = true;
  int margin = 0;
  bool native = false;  ///< codes and scales instead of dequantized values
  std::string name() const {
    return fmt::format("[{}, {}] {} to {}, margin {}{}{}{}", rows, cols, dtype_name(input),
                       dtype_name(format), margin, rowwise ? ", rowwise" : "",
                       columnwise ? ", columnwise" : "", native ? ", native" : "");
  }
};

struct MxResult {
  std::vector<uint8_t> rowwise, columnwise;        ///< bytes
  std::vector<float> row_values, column_values;    ///< with scales still to be multiplied
  std::vector<uint8_t> row_scales, column_scales;  ///< native
  std::vector<uint8_t> amax;
  Fp8Counters counters{};
};

inline MxResult quantize_mx(const Context& context, const MxCase& c, const std::vector<float>& values) {
  const DType output = c.native ? c.format : c.input;
  const ScaleLayout layout = c.native ? ScaleLayout::mx : ScaleLayout::none;
  testing::TestTensor x(context, c.input, {c.rows, c.cols}), rowwise(context, output, {c.rows, c.cols}),
      columnwise(context, output, {c.cols, c.rows}),
      row_scales(context, DType::u8, scale_shape(ScaleLayout::mx, c.rows, c.cols)),
      column_scales(context, DType::u8, scale_shape(ScaleLayout::mx, c.cols, c.rows)),
      amax(context, DType::f32, {1}),
      counters(context, DType::u8, {static_cast<int64_t>(sizeof(Fp8Counters))});
  x.fill(values);
  amax.fill_value(0.25f);
  context.zero(counters);
  const auto matrix = [&](const testing::TestTensor& values, const testing::TestTensor& scales) {
    return c.native ? Matrix(values.get(), scales.get(), layout) : Matrix(values.get());
  };
  quantize_mx(context, {.x = x,
                        .format = c.format,
                        .rowwise = c.rowwise ? matrix(rowwise, row_scales) : Matrix{},
                        .columnwise = c.columnwise ? matrix(columnwise, column_scales) : Matrix{},
                        .margin = c.margin,
                        .amax = amax.get().as<float>(),
                        .counters = counters.get().as<Fp8Counters>()});
  MxResult result{rowwise.raw(),    columnwise.raw(),    rowwise.floats(), columnwise.floats(),
                  row_scales.raw(), column_scales.raw(), amax.raw(),       {}};
  std::memcpy(&result.counters, counters.raw().data(), sizeof(Fp8Counters));
  return result;
}

/// Sizes with complete and partial groups, each layout alone, both formats and inputs, and a margin.
inline std::vector<MxCase> mx_cases() {
  std::vector<MxCase> cases;
  for (const auto& [rows, cols] : {std::pair{32, 32}, {16, 48}, {80, 96}, {1, 64}, {160, 400}})
    for (const DType input : {DType::f32, DType::bf16})
      for (const DType format : {DType::e4m3, DType::e5m2}) cases.push_back({rows, cols, input, format});
  cases.push_back({.rows = 96, .cols = 64, .columnwise = false});
  cases.push_back({.rows = 96, .cols = 64, .rowwise = false});
  cases.push_back({.rows = 96, .cols = 64, .margin = 3});
  const size_t count = cases.size();
  for (size_t i = 0; i < count; ++i) {
    cases.push_back(cases[i]);
    cases.back().native = true;
  }
  return cases;
}

/// Magnitudes that change from group to group over the whole range of BF16, zeros, groups of zeros, infinities and NaN.
inline std::vector<float> mx_values(int64_t rows, int64_t cols) {
  std::vector<float> values = testing::normal_values(rows * cols, 7);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      float& value = values[static_cast<size_t>(r * cols + c)];
      value = std::ldexp(value, static_cast<int>((r / 7 * 31 + c / 24 * 17) % 250) - 135);
      if (c % 64 == 3 || (r >= 8 && r < 16 && c < 32)) value = 0.0f;
      if (r % 37 == 19 && c % 41 == 7) value = std::numeric_limits<float>::infinity();
      if (r % 29 == 3 && c % 43 == 9) value = -std::numeric_limits<float>::infinity();
      if (r % 31 == 5 && c % 47 == 11) value = std::numeric_limits<float>::quiet_NaN();
    }
  return values;
}

}  // namespace te::kernels
