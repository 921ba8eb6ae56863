// Quantization statistics: shapes and layouts, and a run of the op on a context.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels/tensor_stats/tensor_stats.h"
#include "testing/testing.h"

namespace te::kernels {

struct StatsCase {
  int64_t rows, cols;
  ScaleLayout layout;
  bool columnwise = false;
  DType input = DType::bf16, format = DType::e4m3;
  bool power_of_two = true;
  int margin = 0;
  std::string name() const {
    const char* layouts[] = {"none", "tensor", "rows", "vectors", "blocks"};
    return fmt::format("[{}, {}] {} to {} by {}{}{}", rows, cols, dtype_name(input), dtype_name(format),
                       layouts[static_cast<int>(layout)], columnwise ? ", columnwise" : "",
                       power_of_two ? ", powers of two" : "");
  }
};

inline std::vector<StatsCase> stats_cases() {
  using enum ScaleLayout;
  return {{64, 96, none},
          {64, 96, tensor},
          {1, 16, tensor, false, DType::f32},
          {48, 272, rows},
          {48, 272, rows, true},
          {144, 272, vectors},
          {144, 272, vectors, true},
          {272, 144, blocks},
          {144, 272, vectors, false, DType::f32, DType::e5m2, false, 1},
          {608, 160, rows, true, DType::bf16, DType::e5m2, false},
          {1040, 48, vectors, true, DType::bf16, DType::e5m2}};
}

/// The sums of x, with a scale of 37.5 if the layout needs one, merged into `before`.
inline TensorSums run_stats(const Context& context, const StatsCase& c, const std::vector<float>& values,
                            const TensorSums& before = {}) {
  testing::TestTensor x(context, c.input, {c.rows, c.cols}), scale(context, DType::f32, {1}),
      scratch(context, DType::u8, {tensor_stats_scratch_bytes()}),
      into(context, DType::u8, {static_cast<int64_t>(sizeof(TensorSums))});
  x.fill(values);
  scale.fill_value(37.5f);
  into.fill_raw(&before);
  tensor_stats(context, {.x = x,
                         .layout = c.layout,
                         .format = c.format,
                         .columnwise = c.columnwise,
                         .scale = c.layout == ScaleLayout::tensor ? scale.get().as<float>() : nullptr,
                         .power_of_two = c.power_of_two,
                         .margin = c.margin,
                         .scratch = scratch,
                         .into = into.get().as<TensorSums>()});
  const std::vector<uint8_t> bytes = into.raw();
  TensorSums sums;
  std::memcpy(&sums, bytes.data(), sizeof(sums));
  return sums;
}

/// Values of many magnitudes, with zeros, so that all counters change.
inline std::vector<float> stats_values(int64_t count) {
  std::vector<float> values = testing::normal_values(count, 11, 1.0f);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 7 == 0) values[i] *= 1e-4f;
    if (i % 31 == 0) values[i] *= 40.0f;
    if (i % 13 == 0) values[i] = 0.0f;
  }
  return values;
}

}  // namespace te::kernels
