// CPU reference of dropout: the definition word by word, the fraction of kept elements, and the independence of the
// mask from the partition of rows.
#include "kernels/dropout/dropout.h"

#include <cmath>

#include "core/random.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

TEST(Dropout, FollowsTheDefinition) {
  const int64_t rows = 5, cols = 7;  // rows do not begin at groups of four
  TestTensor x(cpu(), DType::f32, {rows, cols}), y(cpu(), DType::f32, {rows, cols});
  x.fill_normal(1);
  dropout(cpu(), {.x = x, .y = y, .probability = 0.25f, .seed = 11, .stream = 22, .first_row = 3});
  const std::vector<float> in = x.floats(), out = y.floats();
  int kept = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const uint64_t i = static_cast<uint64_t>((3 + r) * cols + c);
      const bool keep = philox(11, 22, i / 4).word[i % 4] >= 0x40000000u;
      EXPECT_EQ(out[r * cols + c], keep ? in[r * cols + c] * (1.0f / 0.75f) : 0.0f) << r << " " << c;
      kept += keep;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, rows * cols);
}

TEST(Dropout, KeepsExpectedFractionAndMean) {
  const int64_t rows = 1000, cols = 1000;
  TestTensor x(cpu(), DType::f32, {rows, cols}), y(cpu(), DType::f32, {rows, cols});
  x.fill_value(1.0f);
  for (float probability : {0.0f, 0.1f, 0.5f, 0.9f}) {
    dropout(cpu(), {.x = x, .y = y, .probability = probability, .seed = 7, .stream = 1});
    int64_t kept = 0;
    for (float value : y.floats()) {
      EXPECT_TRUE(value == 0.0f || value == 1.0f / (1.0f - probability));
      kept += value != 0.0f;
    }
    // Five standard deviations of a binomial of 10^6 draws.
    const double n = static_cast<double>(rows * cols), p = 1.0 - static_cast<double>(probability);
    EXPECT_NEAR(static_cast<double>(kept), n * p, 5 * std::sqrt(n * p * (1 - p)));
  }
}

// Numbers of rows that wrap around, and rows without one.
TEST(Dropout, NumberedRowsHaveTheMaskOfTheirNumber) {
  for (const int64_t cols : {8, 13}) {
    TestTensor x(cpu(), DType::f32, {4, cols}), y(cpu(), DType::f32, {4, cols}),
        one(cpu(), DType::f32, {1, cols}), numbers(cpu(), DType::i32, {3, 1}), source(cpu(), DType::i32, {4});
    x.fill_normal(3);
    TestTensor columns(cpu(), DType::i32, {3, 1});
    columns.fill_ints({2, 1, 3});
    row_numbers(cpu(), {.numbers = numbers, .columns = columns, .first_row = 0x3fff'ffff, .width = 4});
    source.fill_ints({2, 0, -1, 1});
    Dropout args{.x = x, .y = y, .probability = 0.4f, .seed = 5, .stream = 6};
    args.numbers = numbers, args.source = source;
    dropout(cpu(), args);
    const std::vector<float> all = y.floats();
    const int64_t rows[] = {7, 0xffff'fffe, -1, 1};
    for (int64_t r = 0; r < 4; ++r) {
      std::vector<float> expected(static_cast<size_t>(cols), 0.0f);
      if (rows[r] >= 0) {
        dropout(cpu(), {.x = x.get().slice_rows(r, 1),
                        .y = one,
                        .probability = 0.4f,
                        .seed = 5,
                        .stream = 6,
                        .first_row = static_cast<uint64_t>(rows[r])});
        expected = one.floats();
      }
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), all.begin() + r * cols)) << r;
    }
    args.source = {}, args.x = x.get().slice_rows(1, 2), args.y = y.get().slice_rows(1, 2);
    args.numbers = numbers.get().slice_rows(1, 2);
    dropout(cpu(), args);
    dropout(cpu(), {.x = x.get().slice_rows(2, 1),
                    .y = one,
                    .probability = 0.4f,
                    .seed = 5,
                    .stream = 6,
                    .first_row = 7});
    const std::vector<float> first = one.floats(), without = y.floats();
    EXPECT_TRUE(std::equal(first.begin(), first.end(), without.begin() + 2 * cols));
  }
}

TEST(Dropout, MaskDoesNotDependOnHowRowsAreSplit) {
  for (int64_t cols : {8, 13}) {
    const int64_t rows = 20;
    TestTensor x(cpu(), DType::bf16, {rows, cols}), whole(cpu(), DType::bf16, {rows, cols});
    TestTensor parts(cpu(), DType::bf16, {rows, cols});
    x.fill_normal(3);
    Dropout args{.probability = 0.4f, .seed = 5, .stream = 6, .first_row = 100};
    args.x = x, args.y = whole;
    dropout(cpu(), args);
    int64_t begin = 0;
    for (int64_t count : {1, 12, 7}) {
      args.x = x.get().slice_rows(begin, count), args.y = parts.get().slice_rows(begin, count);
      args.first_row = static_cast<uint64_t>(100 + begin);
      dropout(cpu(), args);
      begin += count;
    }
    EXPECT_EQ(whole.raw(), parts.raw());
  }
}

TEST(Dropout, MaskDoesNotDependOnHowColumnsAreSplit) {
  const int64_t rows = 6, cols = 40;
  TestTensor x(cpu(), DType::bf16, {rows, cols}), whole(cpu(), DType::bf16, {rows, cols});
  x.fill_normal(3);
  Dropout args{.x = x, .y = whole, .probability = 0.4f, .seed = 5, .stream = 6, .first_row = 100};
  dropout(cpu(), args);
  const std::vector<float> in = x.floats(), expected = whole.floats();
  for (const auto& [first, count] : {std::pair{0, 16}, {16, 8}, {24, 16}}) {
    TestTensor part(cpu(), DType::bf16, {rows, count});
    std::vector<float> values;
    for (int64_t r = 0; r < rows; ++r)
      values.insert(values.end(), in.begin() + r * cols + first, in.begin() + r * cols + first + count);
    part.fill(values);
    args.x = args.y = part;
    args.first_col = first, args.all_cols = cols;
    dropout(cpu(), args);
    const std::vector<float> out = part.floats();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < count; ++c)
        EXPECT_EQ(out[r * count + c], expected[r * cols + first + c]) << r << " " << first + c;
  }
}

TEST(UniformNoise, FollowsTheDefinition) {
  const int64_t rows = 5, cols = 7;  // rows do not begin at groups of four
  TestTensor x(cpu(), DType::f32, {rows, cols});
  x.fill_normal(1);
  const std::vector<float> in = x.floats();
  uniform_noise(cpu(), {.x = x, .amplitude = 0.3f, .seed = 11, .stream = 22, .first_row = 3});
  const std::vector<float> out = x.floats();
  double sum = 0;
  for (int64_t at = 0; at < rows * cols; ++at) {
    const uint64_t i = static_cast<uint64_t>(3 * cols + at);
    const uint32_t word = philox(11, 22, i / 4).word[i % 4];
    const float u = static_cast<float>(word >> 8) * 0x1p-23f - 1.0f;
    EXPECT_EQ(out[at], in[at] + 0.3f * u) << at;
    EXPECT_LT(std::abs(u), 1.0f + 1e-6f);
    sum += u;
  }
  EXPECT_LT(std::abs(sum), 15.0);  // 35 draws of mean 0: 4.4 standard deviations
}

TEST(Dropout, SeedStreamAndRowChangeTheMask) {
  const auto mask = [](uint64_t seed, uint64_t stream, uint64_t first_row) {
    TestTensor x(cpu(), DType::f32, {16, 16});
    x.fill_value(1.0f);
    dropout(cpu(),
            {.x = x, .y = x, .probability = 0.5f, .seed = seed, .stream = stream, .first_row = first_row});
    return x.floats();
  };
  EXPECT_EQ(mask(1, 1, 0), mask(1, 1, 0));
  EXPECT_NE(mask(1, 1, 0), mask(2, 1, 0));
  EXPECT_NE(mask(1, 1, 0), mask(1, 2, 0));
  EXPECT_NE(mask(1, 1, 0), mask(1, 1, 16));
}

TEST(Dropout, InPlaceEqualsOutOfPlaceAndZeroProbabilityCopies) {
  TestTensor x(cpu(), DType::bf16, {9, 10}), y(cpu(), DType::bf16, {9, 10});
  x.fill_normal(4);
  dropout(cpu(), {.x = x, .y = y, .probability = 0.0f, .seed = 1});
  EXPECT_EQ(x.raw(), y.raw());
  dropout(cpu(), {.x = x, .y = y, .probability = 0.3f, .seed = 1});
  dropout(cpu(), {.x = x, .y = x, .probability = 0.3f, .seed = 1});
  EXPECT_EQ(x.raw(), y.raw());
}

TEST(Dropout, DroppedElementsAreZeroEvenWhereTheInputIsNot) {
  TestTensor x(cpu(), DType::f32, {8, 8});  // all NaN
  dropout(cpu(), {.x = x, .y = x, .probability = 0.5f, .seed = 1});
  int zeros = 0, nans = 0;
  for (float value : x.floats()) zeros += value == 0.0f, nans += std::isnan(value);
  EXPECT_EQ(zeros + nans, 64);
  EXPECT_GT(zeros, 0);
  EXPECT_GT(nans, 0);
}

TEST(Dropout, RejectsProbabilityOne) {
  TestTensor x(cpu(), DType::f32, {2, 2});
  EXPECT_THROW(dropout(cpu(), {.x = x, .y = x, .probability = 1.0f}), InternalError);
  EXPECT_THROW(dropout(cpu(), {.x = x, .y = x, .probability = -0.1f}), InternalError);
}

}  // namespace
}  // namespace te::kernels
