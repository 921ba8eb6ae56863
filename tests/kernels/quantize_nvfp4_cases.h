// Quantization to NVFP4: storage of both layouts and its read-out, cases and values.
#pragma once

#include "kernels/quantize/quantize_nvfp4.h"
#include "kernels/quantize_mx_cases.h"

namespace te::kernels {

struct Nvfp4Case {
  int64_t rows, cols;
  DType input = DType::bf16;
  bool blocks = false, hadamard = false, stochastic = false, restore = false;
  int margin = 0;
  bool rowwise = true, columnwise = true;
  bool native = false;  ///< codes and scales instead of values times their scale
  std::string name() const {
    return fmt::format("[{}, {}] {}{}{}{}{}{}, margin {}", rows, cols, dtype_name(input),
                       blocks ? ", blocks" : "", hadamard ? ", hadamard" : "",
                       stochastic ? ", stochastic" : "", restore ? ", restored" : "",
                       native ? ", native" : "", margin);
  }
};

struct Nvfp4Result {
  MxResult layouts;
  std::vector<uint8_t> factors;
  float row_factor = 0, column_factor = 0;
};

inline Nvfp4Result quantize_nvfp4(const Context& context, const Nvfp4Case& c,
                                  const std::vector<float>& values, uint64_t stream = 3) {
  // Codes are bytes with two of them.
  const auto storage = [&](int64_t rows, int64_t cols) {
    return testing::TestTensor(context, c.native ? DType::u8 : c.input, {rows, c.native ? cols / 2 : cols});
  };
  testing::TestTensor x(context, c.input, {c.rows, c.cols}),
      rowwise = storage(c.rows, c.cols), columnwise = storage(c.cols, c.rows),
      row_scales(context, DType::u8, scale_shape(ScaleLayout::nvfp4, c.rows, c.cols)),
      column_scales(context, DType::u8, scale_shape(ScaleLayout::nvfp4, c.cols, c.rows)),
      factors(context, DType::f32, {2}), amax(context, DType::f32, {1}),
      counters(context, DType::u8, {static_cast<int64_t>(sizeof(Fp8Counters))});
  x.fill(values);
  amax.fill_value(0.25f);
  factors.fill_value(0.0f);
  context.zero(counters);
  const auto layout = [&](const Tensor& output, int64_t index) {
    const Tensor factor = factors.get().view({2, 1}).slice_rows(index, 1).view({1});
    if (!c.native) return Matrix(output, factor, ScaleLayout::factor);
    const Tensor codes{output.data, DType::e2m1, {output.rows(), 2 * output.cols()}};
    return Matrix(codes, index == 0 ? row_scales : column_scales, ScaleLayout::nvfp4, factor);
  };
  quantize_nvfp4(context, {.x = x,
                           .rowwise = c.rowwise ? layout(rowwise, 0) : Matrix{},
                           .columnwise = c.columnwise ? layout(columnwise, 1) : Matrix{},
                           .blocks = c.blocks,
                           .hadamard = c.hadamard,
                           .stochastic = c.stochastic,
                           .seed = 11,
                           .stream = stream,
                           .margin = c.margin,
                           .restore = c.restore,
                           .amax = amax.get().as<float>(),
                           .counters = counters.get().as<Fp8Counters>()});
  const auto floats = [&](const testing::TestTensor& tensor) {
    return c.native ? std::vector<float>{} : tensor.floats();
  };
  Nvfp4Result result{{rowwise.raw(),
                      columnwise.raw(),
                      floats(rowwise),
                      floats(columnwise),
                      row_scales.raw(),
                      column_scales.raw(),
                      amax.raw(),
                      {}},
                     factors.raw()};
  std::memcpy(&result.layouts.counters, counters.raw().data(), sizeof(Fp8Counters));
  result.row_factor = factors.floats()[0], result.column_factor = factors.floats()[1];
  return result;
}

/// All combinations of options, with partial groups and tiles.
inline std::vector<Nvfp4Case> nvfp4_cases() {
  std::vector<Nvfp4Case> cases;
  for (const auto& [rows, cols] : {std::pair{16, 16}, {48, 80}, {72, 40}, {160, 400}})
    for (const DType input : {DType::f32, DType::bf16})
      for (const bool stochastic : {false, true})
        for (const bool restore : {false, true})
          for (const int option : {0, 1, 2})
            cases.push_back({rows, cols, input, option == 1, option == 2, stochastic, restore});
  cases.push_back({.rows = 64, .cols = 32, .margin = 2});
  cases.push_back({.rows = 64, .cols = 32, .hadamard = true, .rowwise = false});
  cases.push_back({.rows = 64, .cols = 32, .blocks = true, .columnwise = false});
  const size_t count = cases.size();
  for (size_t i = 0; i < count; ++i) {
    if (cases[i].restore) continue;
    cases.push_back(cases[i]);
    cases.back().native = true;
  }
  return cases;
}

/// Magnitudes of 40 octaves, zeros and groups of zeros.
inline std::vector<float> nvfp4_values(int64_t rows, int64_t cols) {
  std::vector<float> values = testing::normal_values(rows * cols, 9);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      float& value = values[static_cast<size_t>(r * cols + c)];
      value = std::ldexp(value, static_cast<int>((r / 16 * 7 + c / 16 * 3) % 40) - 30);
      if (c % 32 == 5 || (r < 16 && c >= 16 && c < 32)) value = 0.0f;
    }
  return values;
}

enum class Special : uint8_t {
  subnormal,  ///< all values, so that the tensor's scale is the largest
  nan,        ///< and a subnormal number in each group
  infinite,   ///< and NaN, in some groups the two together
};

inline std::vector<float> nvfp4_special_values(int64_t rows, int64_t cols, Special special) {
  std::vector<float> values = nvfp4_values(rows, cols);
  for (size_t i = 0; i < values.size(); ++i) {
    if (special == Special::subnormal || i % 16 == 9) values[i] = std::ldexp(values[i], -126);
    if (special != Special::subnormal && i % 53 == 7) values[i] = std::numeric_limits<float>::quiet_NaN();
    if (special == Special::infinite && i % 91 == 11)
      values[i] = std::copysign(std::numeric_limits<float>::infinity(), values[i]);
  }
  return values;
}

}  // namespace te::kernels
