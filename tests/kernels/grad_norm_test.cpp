// Gradient norm and clipping on the CPU: hand-computed values, non-finite input, independence of the number of threads.
#include "kernels/grad_norm/grad_norm.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

float sum(const std::vector<float>& values, float start = 0.0f) {
  TestTensor x(cpu(), DType::f32, {static_cast<int64_t>(values.size())}), out(cpu(), DType::f32, {1});
  TestTensor scratch(cpu(), DType::f32, {sum_of_squares_scratch_elements()});
  x.fill(values);
  out.fill({start});
  sum_of_squares(cpu(), x, out, scratch);
  return out.floats()[0];
}

struct Clip {
  float grad_norm, multiplier, skip;
};
Clip clip(float sum_of_squares, float limit, const float* loss = nullptr,
          float largest_loss = std::numeric_limits<float>::infinity()) {
  TestTensor total(cpu(), DType::f32, {1}), loss_tensor(cpu(), DType::f32, {1});
  TestTensor norm(cpu(), DType::f32, {1}), multiplier(cpu(), DType::f32, {1}), skip(cpu(), DType::i32, {1});
  total.fill({sum_of_squares});
  ClipCoefficient args{
      .sum_of_squares = total, .clip = limit, .grad_norm = norm, .multiplier = multiplier, .skip = skip};
  if (loss != nullptr) {
    loss_tensor.fill({*loss});
    args.loss = loss_tensor;
    args.largest_loss = largest_loss;
  }
  clip_coefficient(cpu(), args);
  return {norm.floats()[0], multiplier.floats()[0], skip.floats()[0]};
}

TEST(SumOfSquares, ByHandAndAccumulating) {
  EXPECT_EQ(sum({3, -4}), 25.0f);
  EXPECT_EQ(sum({3, -4}, 100.0f), 125.0f);
  EXPECT_EQ(sum({2}), 4.0f);
}

TEST(SumOfSquares, EmptyInputAddsNothing) {
  TestTensor out(cpu(), DType::f32, {1});
  out.fill({7});
  sum_of_squares(cpu(), {}, out, {});
  EXPECT_EQ(out.floats()[0], 7.0f);
}

TEST(SumOfSquares, CountsEveryElementOnce) {
  // Integers: every partial sum is exact, so a missing or repeated element is detected.
  for (int64_t n : {7, 1023, 1024, 1025, 100003}) {
    std::vector<float> values(static_cast<size_t>(n), 1.0f);
    EXPECT_EQ(sum(values), static_cast<float>(n));
    values.back() = 3.0f;
    EXPECT_EQ(sum(values), static_cast<float>(n + 8));
  }
}

TEST(SumOfSquares, MatchesDoublePrecision) {
  const std::vector<float> values = testing::normal_values(3'000'001, 5, 0.01f);
  double expected = 0;
  for (float x : values) expected += static_cast<double>(x) * static_cast<double>(x);
  EXPECT_NEAR(sum(values) / expected, 1.0, 2e-7);  // two roundings of the total to FP32
}

TEST(SumOfSquares, NonFiniteReachesTheSum) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(5000, 1.0f);
  values[4321] = -infinity;
  EXPECT_EQ(sum(values), infinity);
  values[17] = std::nanf("");
  EXPECT_TRUE(std::isnan(sum(values)));
  EXPECT_EQ(sum({1e30f}), infinity);  // the FP32 square overflows
}

TEST(SumOfSquares, DoesNotDependOnTheNumberOfThreads) {
  const std::vector<float> values = testing::normal_values(123457, 6);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const float one = sum(values);
  omp_set_num_threads(5);
  const float five = sum(values);
  omp_set_num_threads(before);
  EXPECT_EQ(one, five);
}

TEST(SumOfSquares, AddsCountedGranulesOnly) {
  for (int64_t n : {1, 127, 128, 129, 1000, 200'003}) {
    const std::vector<float> values = testing::normal_values(n, 7);
    std::vector<uint8_t> flags(static_cast<size_t>(granules_of(n)));
    std::vector<float> kept = values;
    for (size_t i = 0; i < flags.size(); ++i)
      flags[i] = static_cast<uint8_t>(i % 3 == 0 ? kGranuleDecays : kGranuleDecays | kGranuleCounted);
    for (int64_t i = 0; i < n; ++i)
      if (i / kAdamWGranule % 3 == 0) kept[static_cast<size_t>(i)] = 0.0f;
    TestTensor x(cpu(), DType::f32, {n}), out(cpu(), DType::f32, {1});
    TestTensor scratch(cpu(), DType::f32, {sum_of_squares_scratch_elements()});
    TestTensor flag_tensor(cpu(), DType::u8, {granules_of(n)});
    std::vector<float> poisoned = values;
    poisoned[0] = std::nanf("");  // in a granule that is not counted
    x.fill(poisoned);
    flag_tensor.fill_raw(flags.data());
    out.fill({0.5f});
    sum_of_squares(cpu(), x, out, scratch, flag_tensor);
    EXPECT_EQ(out.floats()[0], sum(kept, 0.5f)) << n;
    // With all granules counted, the result is bitwise equal to a call without flags.
    std::ranges::fill(flags, kGranuleCounted);
    flag_tensor.fill_raw(flags.data());
    x.fill(values);
    out.fill({0.5f});
    sum_of_squares(cpu(), x, out, scratch, flag_tensor);
    EXPECT_EQ(out.floats()[0], sum(values, 0.5f)) << n;
  }
}

TEST(SumOfSquares, AddsUpOverSegments) {
  const std::vector<float> values = testing::normal_values(5000, 8);
  TestTensor x(cpu(), DType::f32, {5000}), out(cpu(), DType::f32, {1});
  TestTensor scratch(cpu(), DType::f32, {sum_of_squares_scratch_elements()});
  x.fill(values);
  out.fill_value(0.0f);
  double expected = 0;
  for (float value : values) expected += double{value} * value;
  int64_t begin = 0;
  for (int64_t count : {1, 127, 3000, 1, 1871}) {
    sum_of_squares(cpu(), Tensor{x.get().as<float>() + begin, DType::f32, {count}}, out, scratch);
    begin += count;
  }
  ASSERT_EQ(begin, 5000);
  EXPECT_NEAR(out.floats()[0] / expected, 1.0, 5e-7);  // one rounding of the total per segment
}

// Gradients times 8: norm and limit refer to the unscaled gradients, and the multiplier also removes the scale.
TEST(ClipCoefficient, RefersToUnscaledGradients) {
  const auto clip_scaled = [](float sum_of_squares, float limit, float scale) {
    TestTensor total(cpu(), DType::f32, {1}), norm(cpu(), DType::f32, {1}),
        multiplier(cpu(), DType::f32, {1}), skip(cpu(), DType::i32, {1});
    total.fill({sum_of_squares});
    clip_coefficient(cpu(), {.sum_of_squares = total,
                             .clip = limit,
                             .gradient_scale = scale,
                             .grad_norm = norm,
                             .multiplier = multiplier,
                             .skip = skip});
    return Clip{norm.floats()[0], multiplier.floats()[0], skip.floats()[0]};
  };
  const Clip below = clip_scaled(64.0f * 16.0f, 4.0f, 8.0f);
  EXPECT_EQ(below.grad_norm, 4.0f);
  EXPECT_EQ(below.multiplier, 0.125f);
  const Clip above = clip_scaled(64.0f * 16.0f, 1.0f, 8.0f);
  EXPECT_EQ(above.grad_norm, 4.0f);
  EXPECT_EQ(above.multiplier, 1.0f / (4.0f + 1e-6f) / 8.0f);
  const Clip overflow = clip_scaled(std::numeric_limits<float>::infinity(), 1.0f, 8.0f);
  EXPECT_EQ(overflow.multiplier, 0.0f);
  EXPECT_EQ(overflow.skip, 1.0f);
}

TEST(ClipCoefficient, ClipsAboveTheLimitOnly) {
  const Clip above = clip(16.0f, 1.0f);
  EXPECT_EQ(above.grad_norm, 4.0f);
  EXPECT_EQ(above.multiplier, 1.0f / (4.0f + 1e-6f));
  EXPECT_EQ(above.skip, 0.0f);
  EXPECT_EQ(clip(16.0f, 4.0f).multiplier, 1.0f);
  EXPECT_EQ(clip(16.0f, 5.0f).multiplier, 1.0f);
  EXPECT_EQ(clip(16.0f, 0.0f).multiplier, 1.0f);  // clipping off
  EXPECT_EQ(clip(0.0f, 1.0f).multiplier, 1.0f);
  EXPECT_EQ(clip(0.0f, 1.0f).skip, 0.0f);
}

TEST(ClipCoefficient, NonFiniteNormOrLossSkips) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const float bad_losses[] = {nan, infinity, -infinity};
  for (float bad : {nan, infinity}) {
    const Clip result = clip(bad, 1.0f);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_EQ(result.multiplier, 0.0f);
    EXPECT_EQ(result.skip, 1.0f);
  }
  for (const float& loss : bad_losses) {
    const Clip result = clip(16.0f, 1.0f, &loss);
    EXPECT_EQ(result.grad_norm, 4.0f);
    EXPECT_EQ(result.multiplier, 0.0f);
    EXPECT_EQ(result.skip, 1.0f);
  }
  const float good = 2.5f;
  EXPECT_EQ(clip(16.0f, 0.0f, &good).skip, 0.0f);
  EXPECT_EQ(clip(16.0f, 0.0f, &good).multiplier, 1.0f);
}

TEST(ClipCoefficient, ALossAboveTheLargestSkips) {
  const float loss = 2.5f;
  EXPECT_EQ(clip(16.0f, 0.0f, &loss, 2.5f).skip, 0.0f);
  const Clip above = clip(16.0f, 0.0f, &loss, 2.25f);
  EXPECT_EQ(above.skip, 1.0f);
  EXPECT_EQ(above.multiplier, 0.0f);
  EXPECT_EQ(above.grad_norm, 4.0f);
}

}  // namespace
}  // namespace te::kernels
