// Elementwise CPU ops against plain host arithmetic.
#include "kernels/elementwise/elementwise.h"

#include <cmath>

#include "core/random.h"
#include "kernels/common/granule.h"
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

TEST(Elementwise, ScaleRoundsTheExactProductOnce) {
  const Context context = Context::cpu();
  for (const DType type : {DType::f32, DType::bf16}) {
    TestTensor x(context, type, {3, 7});
    x.fill_normal(1);
    const auto before = x.floats();
    scale(context, x, 25.25f);
    const auto after = x.floats();
    for (size_t i = 0; i < after.size(); ++i) {
      const auto product = static_cast<float>(double(before[i]) * 25.25);
      EXPECT_EQ(after[i], type == DType::bf16 ? to_float(to_bf16(product)) : product);
    }
  }
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

TEST(Elementwise, ZeroGranulesTouchesNoOthers) {
  const Context context = Context::cpu();
  const std::vector<uint8_t> flags = {kGranuleZeroed, 0, kGranuleDecays | kGranuleZeroed,
                                      kGranuleDecays | kGranuleCounted};
  TestTensor marks(context, DType::u8, {4});
  marks.fill_raw(flags.data());
  for (const DType type : {DType::f32, DType::bf16}) {
    TestTensor x(context, type, {4 * kAdamWGranule});
    const std::vector<uint8_t> before = x.raw();
    zero_granules(context, {.x = x, .flags = marks});
    const std::vector<uint8_t> after = x.raw();
    const size_t size = after.size() / 4;
    for (size_t i = 0; i < after.size(); ++i)
      ASSERT_EQ(after[i], (flags[i / size] & kGranuleZeroed) != 0 ? 0 : before[i]) << i;
  }
  TestTensor ragged(context, DType::f32, {4 * kAdamWGranule - 1});
  EXPECT_THROW(zero_granules(context, {.x = ragged, .flags = marks}), InternalError);
}

TEST(Elementwise, FillNormalOfARegionEqualsTheFullParameter) {
  const Context context = Context::cpu();
  const int64_t rows = 13, cols = 21;
  TestTensor whole(context, DType::f32, {rows, cols});
  fill_normal(context, whole, 0.02f, 42, stream_of("w"), 0);
  const auto all = whole.floats();
  struct Case {
    int64_t row, row_count, col, col_count;
  };
  for (const Case& c : {Case{0, 13, 0, 21}, Case{4, 5, 0, 21}, Case{0, 13, 7, 7}, Case{3, 9, 5, 11},
                        Case{12, 1, 20, 1}, Case{6, 2, 3, 1}}) {
    const int64_t size = c.row_count * c.col_count;
    for (const int64_t first : {int64_t{0}, int64_t{1}, size / 2, size - 1}) {
      if (first == size) continue;
      TestTensor part(context, DType::f32, {size - first});
      fill_normal(context, part, 0.02f, 42, stream_of("w"),
                  {.local_cols = c.col_count,
                   .first_local = first,
                   .global_row = c.row,
                   .global_col = c.col,
                   .global_cols = cols});
      const auto some = part.floats();
      for (int64_t i = 0; i < size - first; ++i) {
        const int64_t row = c.row + (first + i) / c.col_count, col = c.col + (first + i) % c.col_count;
        ASSERT_EQ(some[i], all[row * cols + col]) << row << ", " << col;
      }
    }
  }
  TestTensor part(context, DType::f32, {4});
  const ParameterRegion too_wide{.local_cols = 4, .global_col = 18, .global_cols = 21};
  EXPECT_THROW(fill_normal(context, part, 1.0f, 1, 1, too_wide), InternalError);
}

}  // namespace
}  // namespace te::kernels
