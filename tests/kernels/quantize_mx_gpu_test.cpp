// Quantization to MXFP8 on the GPU against the CPU reference: values, amax and counters are bitwise equal.
#include "kernels/quantize/quantize_mx.h"

#include "kernels/quantize_mx_cases.h"

namespace te::kernels {
namespace {

TEST(QuantizeMxGpu, EqualsTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  std::vector<MxCase> cases = mx_cases();
  cases.push_back({2048, 1392});
  cases.push_back({.rows = 1040, .cols = 1392, .native = true});
  cases.push_back({.rows = 1000, .cols = 72, .input = DType::f32});
  for (const MxCase& c : cases) {
    SCOPED_TRACE(c.name());
    const std::vector<float> x = mx_values(c.rows, c.cols);
    const MxResult actual = quantize_mx(gpu, c, x), expected = quantize_mx(cpu, c, x);
    EXPECT_EQ(actual.rowwise, expected.rowwise);
    EXPECT_EQ(actual.columnwise, expected.columnwise);
    if (c.native && c.rowwise) {
      EXPECT_EQ(actual.row_scales, expected.row_scales);
    }
    if (c.native && c.columnwise) {
      EXPECT_EQ(actual.column_scales, expected.column_scales);
    }
    EXPECT_EQ(actual.amax, expected.amax);
    EXPECT_EQ(actual.counters.saturated, expected.counters.saturated);
    EXPECT_EQ(actual.counters.flushed, expected.counters.flushed);
    EXPECT_EQ(actual.counters.total, expected.counters.total);
  }
}

}  // namespace
}  // namespace te::kernels
