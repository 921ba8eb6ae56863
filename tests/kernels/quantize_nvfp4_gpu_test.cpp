// Quantization to NVFP4 on the GPU against the CPU reference: values, factors, amax and counters are bitwise equal,
// except for the bits of NaN.
// GEMMs with factors.
#include "kernels/quantize/quantize_nvfp4.h"

#include "kernels/gemm/gemm.h"
#include "kernels/quantize_nvfp4_cases.h"

namespace te::kernels {
namespace {

void expect_same_scaling(const Nvfp4Case& c, const Nvfp4Result& actual, const Nvfp4Result& expected) {
  if (c.native) {
    EXPECT_EQ(actual.layouts.row_scales, expected.layouts.row_scales);
    EXPECT_EQ(actual.layouts.column_scales, expected.layouts.column_scales);
  }
  EXPECT_EQ(actual.factors, expected.factors);
  EXPECT_EQ(actual.layouts.amax, expected.layouts.amax);
  EXPECT_EQ(actual.layouts.counters.saturated, expected.layouts.counters.saturated);
  EXPECT_EQ(actual.layouts.counters.flushed, expected.layouts.counters.flushed);
}

TEST(QuantizeNvfp4Gpu, EqualsTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  std::vector<Nvfp4Case> cases = nvfp4_cases();
  cases.push_back({.rows = 2048, .cols = 1392, .hadamard = true, .stochastic = true});
  cases.push_back({.rows = 1392, .cols = 2048, .blocks = true});
  cases.push_back({.rows = 1392, .cols = 1040, .stochastic = true, .native = true});
  for (const Nvfp4Case& c : cases) {
    SCOPED_TRACE(c.name());
    const std::vector<float> x = nvfp4_values(c.rows, c.cols);
    const Nvfp4Result actual = quantize_nvfp4(gpu, c, x), expected = quantize_nvfp4(cpu, c, x);
    EXPECT_EQ(actual.layouts.rowwise, expected.layouts.rowwise);
    EXPECT_EQ(actual.layouts.columnwise, expected.layouts.columnwise);
    expect_same_scaling(c, actual, expected);
    EXPECT_EQ(actual.layouts.counters.total, expected.layouts.counters.total);
  }
}

/// NaN has any bits.
void expect_same_numbers(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i])) << i;
  }
}

TEST(QuantizeNvfp4Gpu, SpecialValuesEqualTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const Nvfp4Case& c : nvfp4_cases()) {
    for (const Special special : {Special::subnormal, Special::nan, Special::infinite}) {
      SCOPED_TRACE(fmt::format("{}, {}", c.name(), static_cast<int>(special)));
      const std::vector<float> x = nvfp4_special_values(c.rows, c.cols, special);
      const Nvfp4Result actual = quantize_nvfp4(gpu, c, x), expected = quantize_nvfp4(cpu, c, x);
      expect_same_numbers(actual.layouts.row_values, expected.layouts.row_values);
      expect_same_numbers(actual.layouts.column_values, expected.layouts.column_values);
      if (c.native) {
        EXPECT_EQ(actual.layouts.rowwise, expected.layouts.rowwise);
        EXPECT_EQ(actual.layouts.columnwise, expected.layouts.columnwise);
      }
      expect_same_scaling(c, actual, expected);
    }
  }
}

TEST(QuantizeNvfp4Gpu, GemmsApplyFactors) {
  TE_REQUIRE_GPU();
  const auto run = [](const Context& context, bool accumulate, bool bias, DType result) {
    testing::TestTensor a(context, DType::bf16, {64, 128}), b(context, DType::bf16, {96, 128}),
        factors(context, DType::f32, {2}), out(context, result, {64, 96}), added(context, result, {96});
    a.fill_normal(1), b.fill_normal(2), out.fill_normal(3), added.fill_normal(4);
    factors.fill({0.25f, 3.0f});
    const auto factor = [&](int64_t i) { return factors.get().view({2, 1}).slice_rows(i, 1).view({1}); };
    gemm(context, {.a = {a, factor(0), ScaleLayout::factor},
                   .b = {b, factor(1), ScaleLayout::factor},
                   .out = out,
                   .trans_b = true,
                   .accumulate = accumulate,
                   .bias = bias ? added.get() : Tensor{}});
    return out.floats();
  };
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const auto& [accumulate, bias, result] :
       {std::tuple{false, false, DType::bf16}, {false, true, DType::bf16}, {true, false, DType::f32}})
    EXPECT_LT(testing::relative_error(run(gpu, accumulate, bias, result), run(cpu, accumulate, bias, result)),
              5e-3);
}

}  // namespace
}  // namespace te::kernels
