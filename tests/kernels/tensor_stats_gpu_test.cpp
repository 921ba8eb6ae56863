// Quantization statistics on the GPU against the CPU reference: counts, extremes and scales are equal. Sums, which are
// FP64 and added in another order, agree to 1e-11 of the sum of their terms' magnitudes. Results are deterministic.
#include <cmath>
#include <limits>

#include "kernels/tensor_stats_cases.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

void compare_stats(const StatsCase& c, const std::vector<float>& values) {
  SCOPED_TRACE(c.name());
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  const TensorSums actual = run_stats(gpu, c, values), again = run_stats(gpu, c, values),
                   expected = run_stats(cpu, c, values);
  EXPECT_EQ(std::memcmp(&actual, &again, sizeof(actual)), 0);
  EXPECT_EQ(actual.count, expected.count);
  EXPECT_EQ(actual.nonfinite, expected.nonfinite);
  EXPECT_EQ(actual.saturated, expected.saturated);
  EXPECT_EQ(actual.flushed, expected.flushed);
  EXPECT_EQ(actual.amax, expected.amax);
  EXPECT_EQ(actual.smallest, expected.smallest);
  EXPECT_EQ(actual.lowest_scale, expected.lowest_scale);
  EXPECT_EQ(actual.highest_scale, expected.highest_scale);
  const double n = static_cast<double>(expected.count), root = std::sqrt(expected.sum2 * n);
  EXPECT_NEAR(actual.sum1, expected.sum1, 1e-11 * root);
  EXPECT_NEAR(actual.sum2, expected.sum2, 1e-11 * expected.sum2);
  EXPECT_NEAR(actual.sum3, expected.sum3, 1e-11 * std::sqrt(expected.sum2 * expected.sum4));
  EXPECT_NEAR(actual.sum4, expected.sum4, 1e-11 * expected.sum4);
  EXPECT_NEAR(actual.squared_error, expected.squared_error, 1e-11 * expected.squared_error);
}

TEST(TensorStatsGpu, EqualsTheCpu) {
  TE_REQUIRE_GPU();
  for (const StatsCase& c : stats_cases()) compare_stats(c, stats_values(c.rows * c.cols));
  compare_stats({2048, 1392, ScaleLayout::vectors, true}, stats_values(2048 * 1392));
}

TEST(TensorStatsGpu, SpecialValues) {
  TE_REQUIRE_GPU();
  std::vector<float> values = stats_values(160 * 160);
  values[7] = std::numeric_limits<float>::infinity();
  values[160 * 40 + 3] = std::numeric_limits<float>::quiet_NaN();
  for (const ScaleLayout layout :
       {ScaleLayout::tensor, ScaleLayout::rows, ScaleLayout::vectors, ScaleLayout::blocks})
    compare_stats({160, 160, layout}, values);
}

TEST(RowAlignmentGpu, EqualsTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  const std::vector<float> values = stats_values(192 * 272);
  const auto run = [&](const Context& context) {
    TestTensor x(context, DType::bf16, {192, 272}), out(context, DType::f32, {96});
    x.fill(values);
    row_alignment(context, {.x = x, .out = out});
    return out.floats();
  };
  const std::vector<float> actual = run(gpu), expected = run(cpu);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6);
}

}  // namespace
}  // namespace te::kernels
