// Quantization statistics against hand-computed values, and against the results of kernels/quantize.
#include <cmath>
#include <limits>

#include "kernels/quantize/quantize.h"
#include "kernels/quantize_groups_cases.h"
#include "kernels/tensor_stats_cases.h"

namespace te::kernels {
namespace {

using testing::TestTensor;
const Context kCpu = Context::cpu();

// run_stats uses the scale 37.5, so values are chosen in units of 1 / 37.5: 448 / 37.5 is the largest.
TEST(TensorStats, ByHand) {
  std::vector<float> x = {1.0f,
                          -2.0f,
                          0.0f,
                          0.5f,
                          1e-6f,
                          20.0f,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()};
  const TensorSums sums = run_stats(kCpu, {2, 4, ScaleLayout::tensor, false, DType::f32}, x);
  EXPECT_EQ(sums.count, 8u);
  EXPECT_EQ(sums.nonfinite, 2u);
  EXPECT_EQ(sums.saturated, 1u);  // 20 * 37.5 = 750
  EXPECT_EQ(sums.flushed, 1u);    // 1e-6
  EXPECT_EQ(sums.amax, 20.0f);
  EXPECT_EQ(sums.smallest, 1e-6f);
  EXPECT_EQ(sums.lowest_scale, 37.5f);
  EXPECT_EQ(sums.highest_scale, 37.5f);
  EXPECT_NEAR(sums.sum1, 19.5, 1e-5);
  EXPECT_NEAR(sums.sum2, 1 + 4 + 0.25 + 400, 1e-5);
  EXPECT_NEAR(sums.sum3, 1 - 8 + 0.125 + 8000, 1e-4);
  EXPECT_NEAR(sums.sum4, 1 + 16 + 0.0625 + 160000, 1e-3);
  // 37.5 lies between 36 and 40: 1, 0.5 (18.75: 18, 20) and 2 (75: 72, 80) each have the relative error 1.5/37.5; 20
  // becomes 448.
  const double lost = 1.5 / 37.5, saturated = 20 - 448 / 37.5;
  EXPECT_NEAR(sums.squared_error, lost * lost * (1 + 0.25 + 4) + saturated * saturated, 1e-4);
}

/// Dequantized values and counts of kernels/quantize.
TensorSums of_real_quantization(const StatsCase& c, const std::vector<float>& values) {
  GroupCase group{c.rows, c.cols, c.layout, c.input, c.format, c.power_of_two};
  TestTensor x(kCpu, c.input, {c.rows, c.cols});
  x.fill(values);
  const GroupStorage storage(kCpu, group);
  QuantizeGroups args = storage.args(x, !c.columnwise, c.columnwise);
  args.margin = c.margin;
  quantize_groups(kCpu, args);
  const GroupResult quantized = storage.read();
  const std::vector<float> exact = x.floats();
  const std::vector<float>& q = c.columnwise ? quantized.column_values : quantized.row_values;
  const Matrix matrix = c.columnwise ? storage.columnwise() : storage.rowwise();
  const auto* scales = matrix.scales.as<float>();
  TensorSums sums{};
  for (int64_t r = 0; r < matrix.rows(); ++r)
    for (int64_t col = 0; col < matrix.cols(); ++col) {
      const int64_t block = col / kScaleBlock;
      const double inverse = c.layout == ScaleLayout::rows ? scales[r]
                             : c.layout == ScaleLayout::vectors
                                 ? scales[block * matrix.rows() + r]
                                 : scales[r / kScaleBlock * matrix.scales.cols() + block];
      const double back = static_cast<double>(q[static_cast<size_t>(r * matrix.cols() + col)]) * inverse;
      const float original = exact[static_cast<size_t>(c.columnwise ? col * c.cols + r : r * c.cols + col)];
      sums.squared_error += (back - original) * (back - original);
    }
  sums.flushed = quantized.counters.flushed;
  sums.saturated = quantized.counters.saturated;
  return sums;
}

TEST(TensorStats, MatchesQuantization) {
  for (const StatsCase& c : stats_cases()) {
    if (c.layout == ScaleLayout::none || c.layout == ScaleLayout::tensor) continue;
    SCOPED_TRACE(c.name());
    const std::vector<float> values = stats_values(c.rows * c.cols);
    const TensorSums sums = run_stats(kCpu, c, values), real = of_real_quantization(c, values);
    EXPECT_EQ(sums.count, static_cast<unsigned long long>(c.rows * c.cols));
    EXPECT_EQ(sums.flushed, real.flushed);
    EXPECT_EQ(sums.saturated, 0u);
    EXPECT_NEAR(sums.squared_error, real.squared_error, 1e-9 * real.squared_error);
    EXPECT_GT(sums.highest_scale, sums.lowest_scale);
  }
}

TEST(TensorStats, MergesIntoExistingSums) {
  const StatsCase c{48, 272, ScaleLayout::rows};
  const std::vector<float> values = stats_values(c.rows * c.cols);
  const TensorSums once = run_stats(kCpu, c, values), twice = run_stats(kCpu, c, values, once);
  EXPECT_EQ(twice.count, 2 * once.count);
  EXPECT_EQ(twice.flushed, 2 * once.flushed);
  EXPECT_NEAR(twice.sum2, 2 * once.sum2, 1e-9 * once.sum2);
  EXPECT_EQ(twice.amax, once.amax);
  EXPECT_EQ(twice.smallest, once.smallest);
  EXPECT_EQ(twice.lowest_scale, once.lowest_scale);
  const TensorSums sum = merged(once, once);
  EXPECT_EQ(sum.count, twice.count);
  EXPECT_EQ(sum.sum4, 2 * once.sum4);
  EXPECT_EQ(sum.squared_error, 2 * once.squared_error);
  EXPECT_EQ(sum.smallest, once.smallest);
  EXPECT_EQ(sum.highest_scale, once.highest_scale);
  // Merging empty sums changes nothing.
  EXPECT_EQ(merged(TensorSums{}, once).smallest, once.smallest);
}

TEST(TensorStats, NothingIsQuantizedWithoutALayout) {
  const TensorSums sums = run_stats(kCpu, {16, 16, ScaleLayout::none}, stats_values(256));
  EXPECT_EQ(sums.squared_error, 0.0);
  EXPECT_EQ(sums.lowest_scale, 0.0f);
  EXPECT_GT(sums.sum2, 0.0);
}

TEST(RowAlignment, IsTheCosineOfTheHalves) {
  TestTensor x(kCpu, DType::f32, {6, 2}), out(kCpu, DType::f32, {3});
  x.fill({1, 0, 3, 4, 0, 0, /**/ 0, 2, -6, -8, 1, 1});
  row_alignment(kCpu, {.x = x, .out = out});
  EXPECT_EQ(out.floats(), (std::vector<float>{0, -1, 0}));
}

}  // namespace
}  // namespace te::kernels
