// Quantization with group scales, against the definition.
#include "kernels/quantize/quantize_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/moe/permute.h"
#include "kernels/quantize_groups_cases.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

/// Checks one layout [rows, cols] of values x(r, c): its scales, and that every value has an error of at most half a
/// step.
template <class Value>
void check_layout(const GroupCase& c, int64_t rows, int64_t cols, const std::vector<float>& values,
                  const std::vector<float>& scales, Value&& x) {
  const int64_t height = c.layout == ScaleLayout::blocks ? kScaleBlock : 1,
                width = c.layout == ScaleLayout::rows ? cols : kScaleBlock;
  const float mantissa = c.format == DType::e4m3 ? 0.0625f : 0.125f;
  const float smallest = c.format == DType::e4m3 ? std::ldexp(1.0f, -9) : std::ldexp(1.0f, -16);
  for (int64_t top = 0; top < rows; top += height) {
    for (int64_t left = 0; left < cols; left += width) {
      const int64_t bottom = std::min(rows, top + height), right = std::min(cols, left + width);
      float amax = 0;
      for (int64_t r = top; r < bottom; ++r)
        for (int64_t k = left; k < right; ++k) amax = std::max(amax, std::abs(x(r, k)));
      const float scale = group_scale(amax, fp8_max(c.format), 1.0f, c.power_of_two);
      ASSERT_EQ(scale_at(c, scales, rows, cols, top, left), 1.0f / scale) << top << " " << left;
      for (int64_t r = top; r < bottom; ++r)
        for (int64_t k = left; k < right; ++k) {
          const float want = x(r, k) * scale, got = values[static_cast<size_t>(r * cols + k)];
          ASSERT_LE(std::abs(got - want), std::max(mantissa * std::abs(want), 0.5f * smallest))
              << r << " " << k;
        }
    }
  }
}

TEST(QuantizeGroups, FollowsTheDefinition) {
  const Context context = Context::cpu();
  for (const GroupCase& c : group_cases()) {
    SCOPED_TRACE(c.name());
    TestTensor x(context, c.input, {c.rows, c.cols});
    x.fill(group_values(c.rows, c.cols));
    const std::vector<float> values = x.floats();
    const GroupStorage storage(context, c);
    quantize_groups(context, storage.args(x));
    const GroupResult result = storage.read();
    check_layout(c, c.rows, c.cols, result.row_values, result.row_scales,
                 [&](int64_t r, int64_t k) { return values[static_cast<size_t>(r * c.cols + k)]; });
    check_layout(c, c.cols, c.rows, result.column_values, result.column_scales,
                 [&](int64_t r, int64_t k) { return values[static_cast<size_t>(k * c.cols + r)]; });
    float amax = 0.25f;
    for (const float value : values) amax = std::max(amax, std::abs(value));
    EXPECT_EQ(result.amax, amax);
    EXPECT_EQ(result.counters.saturated, 0u);
    EXPECT_EQ(result.counters.total, static_cast<unsigned long long>(c.rows * c.cols));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Each layout is the same whether or not the other one is requested, and blocks are the same in both.
TEST(QuantizeGroups, EachLayoutAlone) {
  const Context context = Context::cpu();
  for (const ScaleLayout layout : {ScaleLayout::rows, ScaleLayout::vectors, ScaleLayout::blocks}) {
    const GroupCase c{144, 272, layout};
    TestTensor x(context, c.input, {c.rows, c.cols});
    x.fill(group_values(c.rows, c.cols));
    const GroupStorage both(context, c), rows(context, c), columns(context, c);
    quantize_groups(context, both.args(x));
    quantize_groups(context, rows.args(x, true, false));
    quantize_groups(context, columns.args(x, false, true));
    const GroupResult all = both.read(), of_rows = rows.read(), of_columns = columns.read();
    EXPECT_EQ(all.rowwise, of_rows.rowwise);
    EXPECT_EQ(all.columnwise, of_columns.columnwise);
    EXPECT_EQ(all.amax, of_rows.amax);
    EXPECT_EQ(all.amax, of_columns.amax);
    EXPECT_EQ(of_columns.counters.total, static_cast<unsigned long long>(c.rows * c.cols));
    for (int64_t r = 0; layout == ScaleLayout::blocks && r < c.rows; ++r)
      for (int64_t k = 0; k < c.cols; ++k)
        ASSERT_EQ(all.rowwise[r * c.cols + k], all.columnwise[k * c.rows + r]);
  }
}

// As quantization of the copies that permute() makes.
TEST(QuantizeGroups, RowsOfTokens) {
  const Context context = Context::cpu();
  constexpr int64_t kTokens = 40, kTopk = 3;
  for (const GroupCase& c : {GroupCase{144, 272, ScaleLayout::vectors},
                             GroupCase{256, 128, ScaleLayout::vectors, DType::f32, DType::e5m2, false}}) {
    TestTensor tokens(context, c.input, {kTokens, c.cols}), source(context, DType::i32, {c.rows}),
        copies(context, c.input, {c.rows, c.cols});
    tokens.fill(group_values(kTokens, c.cols));
    source.fill_ints(copied_rows(c.rows, kTokens, kTopk));
    permute(context, {.x = tokens, .source = source, .topk = kTopk, .rows = copies});
    const GroupStorage storage(context, c), expected(context, c);
    QuantizeGroups args = storage.args(tokens);
    args.source = source, args.topk = kTopk;
    quantize_groups(context, args);
    quantize_groups(context, expected.args(copies));
    const GroupResult result = storage.read(), of_copies = expected.read();
    EXPECT_EQ(result.rowwise, of_copies.rowwise);
    EXPECT_EQ(result.columnwise, of_copies.columnwise);
    EXPECT_EQ(result.row_scales, of_copies.row_scales);
    EXPECT_EQ(result.column_scales, of_copies.column_scales);
    EXPECT_EQ(result.amax, of_copies.amax);
    EXPECT_EQ(result.counters.flushed, of_copies.counters.flushed);
    EXPECT_EQ(result.counters.total, of_copies.counters.total);
  }
}

TEST(QuantizeGroups, PowersOfTwoAreRoundedDown) {
  EXPECT_EQ(group_scale(448.0f, 448.0f, 1.0f, true), 1.0f);
  EXPECT_EQ(group_scale(449.0f, 448.0f, 1.0f, true), 0.5f);
  EXPECT_EQ(group_scale(224.0f, 448.0f, 1.0f, true), 2.0f);
  EXPECT_EQ(group_scale(300.0f, 448.0f, 1.0f, true), 1.0f);
  EXPECT_EQ(group_scale(300.0f, 448.0f, 0.5f, true), 0.5f);
  EXPECT_EQ(group_scale(1e-45f, 448.0f, 1.0f, true), std::ldexp(1.0f, 126));
  EXPECT_EQ(group_scale(0.0f, 448.0f, 1.0f, true), 1.0f);
  EXPECT_EQ(group_scale(300.0f, 448.0f, 1.0f, false), 448.0f / 300.0f);
}

// Zeros, infinities and NaN keep their values and affect only their own group.
TEST(QuantizeGroups, SpecialValues) {
  const Context context = Context::cpu();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const ScaleLayout layout : {ScaleLayout::rows, ScaleLayout::vectors}) {
    const GroupCase c{16, 16, layout};
    std::vector<float> values(256, 1.0f);
    for (int k = 0; k < 16; ++k) values[k] = 0.0f;            // row 0
    values[16] = inf, values[32] = nan, values[48] = 1e-30f;  // rows 1, 2, 3
    TestTensor x(context, c.input, {16, 16});
    x.fill(values);
    const GroupStorage storage(context, c);
    quantize_groups(context, storage.args(x));
    const GroupResult result = storage.read();
    EXPECT_EQ(result.row_values[0], 0.0f);
    EXPECT_EQ(result.row_scales[0], 1.0f);
    EXPECT_EQ(result.row_values[16], 448.0f);
    EXPECT_EQ(result.row_scales[1], 1.0f);
    EXPECT_EQ(result.row_values[17], 1.0f);
    EXPECT_TRUE(std::isnan(result.row_values[32]));
    EXPECT_EQ(result.row_values[33], 1.0f);
    EXPECT_EQ(result.row_values[49] * result.row_scales[3], 1.0f);
    EXPECT_EQ(result.row_values[80] * result.row_scales[5], 1.0f);
    EXPECT_TRUE(std::isnan(result.amax));
    EXPECT_EQ(result.counters.flushed, 1u);
  }
}

TEST(QuantizeGroups, RejectsInvalidArguments) {
  const Context context = Context::cpu();
  const GroupCase c{16, 32, ScaleLayout::vectors};
  TestTensor x(context, DType::bf16, {16, 32}), odd(context, DType::bf16, {8, 32});
  const GroupStorage storage(context, c), other(context, {16, 32, ScaleLayout::rows}),
      small(context, {8, 32, ScaleLayout::vectors});
  EXPECT_THROW(quantize_groups(context, small.args(odd)), InternalError);
  EXPECT_THROW(quantize_groups(context, storage.args(x, false, false)), InternalError);
  QuantizeGroups mixed = storage.args(x);
  mixed.columnwise = other.columnwise();
  EXPECT_THROW(quantize_groups(context, mixed), InternalError);
  QuantizeGroups wrong = storage.args(x);
  wrong.rowwise.layout = ScaleLayout::rows;
  EXPECT_THROW(quantize_groups(context, wrong), InternalError);
  TestTensor source(context, DType::i32, {16});
  QuantizeGroups by_rows = other.args(x);
  by_rows.source = source;
  EXPECT_THROW(quantize_groups(context, by_rows), InternalError);
}

}  // namespace
}  // namespace te::kernels
