// The elementwise CPU ops against plain host arithmetic.
#include "kernels/elementwise/elementwise.h"

#include <cmath>

#include "core/random.h"
#include "kernels/quantize/quantize.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

TEST(Elementwise, AddRoundsTheExactSumOnce) {
  const Context context = Context::cpu();
  TestTensor a(context, DType::bf16, {3, 7}), b(context, DType::bf16, {3, 7}),
      out(context, DType::bf16, {3, 7});
  a.fill_normal(1);
  b.fill_normal(2);
  add(context, a, b, out);
  const auto x = a.floats(), y = b.floats(), sum = out.floats();
  for (size_t i = 0; i < sum.size(); ++i)
    EXPECT_EQ(sum[i], to_float(to_bf16(static_cast<float>(double(x[i]) + double(y[i])))));
  add(context, a, b, a);  // in place
  EXPECT_EQ(a.raw(), out.raw());

  TestTensor c(context, DType::f32, {5}), d(context, DType::f32, {5});
  c.fill({1, 2, 3, 4, 0.5f});
  d.fill({10, 20, -3, 1e-9f, 0.25f});
  add(context, c, d, d);
  EXPECT_EQ(d.floats(), (std::vector<float>{11, 22, 0, 4, 0.75f}));
}

TEST(Elementwise, BiasGradientAddsColumnSums) {
  const Context context = Context::cpu();
  for (const int64_t rows : {1, 127, 128, 300}) {
    TestTensor dy(context, DType::bf16, {rows, 13}), dbias(context, DType::f32, {13});
    TestTensor scratch(context, DType::f32, {quantize_scratch_elements(rows, 13)});
    dy.fill_normal(9);
    dbias.fill_value(-1.0f);
    bias_gradient(context, dy, dbias, scratch);
    const auto values = dy.floats(), sums = dbias.floats();
    for (int64_t c = 0; c < 13; ++c) {
      double sum = -1, absolute = 1;
      for (int64_t r = 0; r < rows; ++r) sum += values[r * 13 + c], absolute += std::abs(values[r * 13 + c]);
      EXPECT_NEAR(sums[c], sum, 2e-6 * absolute);
    }
  }
}

TEST(Elementwise, CastRoundsToNearestEvenAndBack) {
  const Context context = Context::cpu();
  TestTensor x(context, DType::f32, {4}), half(context, DType::bf16, {4}), back(context, DType::f32, {4});
  x.fill({1.00390625f, 1.01171875f, -3.0f, 1e30f});  // two ties: down to even, up to even
  cast(context, x, half);
  cast(context, half, back);
  EXPECT_EQ(back.floats()[0], 1.0f);
  EXPECT_EQ(back.floats()[1], 1.015625f);
  EXPECT_EQ(back.floats()[2], -3.0f);
  EXPECT_NEAR(back.floats()[3], 1e30f, 1e30 / 256);
}

TEST(Elementwise, FillNormalIsAFunctionOfTheGlobalIndex) {
  const Context context = Context::cpu();
  TestTensor whole(context, DType::f32, {1000}), part(context, DType::f32, {77});
  fill_normal(context, whole, 0.02f, 42, stream_of("w"), 0);
  fill_normal(context, part, 0.02f, 42, stream_of("w"), 123);
  const auto all = whole.floats(), some = part.floats();
  double squares = 0;
  for (const float value : all) squares += double(value) * value;
  EXPECT_NEAR(std::sqrt(squares / 1000), 0.02, 0.0015);
  for (size_t i = 0; i < some.size(); ++i) ASSERT_EQ(some[i], all[123 + i]);
}

TEST(Elementwise, FillValue) {
  const Context context = Context::cpu();
  for (const DType type : {DType::f32, DType::bf16}) {
    TestTensor x(context, type, {3, 5});
    fill_value(context, x, 1.5f);
    EXPECT_EQ(x.floats(), std::vector<float>(15, 1.5f));
  }
}

}  // namespace
}  // namespace te::kernels
