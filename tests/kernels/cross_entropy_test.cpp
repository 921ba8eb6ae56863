// CPU reference of cross-entropy against double precision and finite differences.
#include "kernels/cross_entropy/cross_entropy.h"

#include <cmath>
#include <limits>

#include "kernels/elementwise/elementwise.h"
#include "testing/testing.h"

namespace te::testing {
namespace {

using kernels::accumulate_sum;
using kernels::cross_entropy;
using kernels::CrossEntropy;

struct Shape2 {
  int64_t vocab, padded;
};
const Shape2 kShapes[] = {{1, 1}, {1, 8}, {7, 7}, {257, 257}, {257, 264}, {50257, 50304}};

std::vector<int32_t> spread_targets(int64_t rows, int64_t vocab) {
  std::vector<int32_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = static_cast<int32_t>((r * 7919 + vocab - 1) % vocab);
  targets[1] = -1, targets[2] = -2;
  return targets;
}

/// Logits with standard deviation 4; the padding holds NaN, which must not have any effect.
std::vector<float> padded_logits(int64_t rows, const Shape2& shape) {
  std::vector<float> logits = normal_values(rows * shape.padded, 11, 4.0f);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = shape.vocab; c < shape.padded; ++c)
      logits[r * shape.padded + c] = std::numeric_limits<float>::quiet_NaN();
  return logits;
}

/// Checks that the gradient written to the logits is that of the sum of `losses`, within 1e-3.
void expect_finite_differences(const Context& context, CrossEntropy args, TestTensor& logits,
                               const std::vector<const TestTensor*>& losses, std::vector<float> values) {
  const float step = 1e-2f, grad_scale = 0.5f;
  std::vector<float> expected(values.size());
  const auto total = [&] {
    logits.fill(values);
    cross_entropy(context, args);
    double sum = 0;
    for (const TestTensor* of : losses)
      for (const float loss : of->floats()) sum += loss;
    return sum * grad_scale;
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const float kept = values[i], up = kept + step, down = kept - step;
    values[i] = up;
    const double above = total();
    values[i] = down;
    const double below = total();
    values[i] = kept;
    expected[i] = static_cast<float>((above - below) / (double{up} - down));
  }
  logits.fill(values);
  args.grad_scale = grad_scale;
  cross_entropy(context, args);
  EXPECT_LT(relative_error(logits.floats(), expected), 1e-3);
}

TEST(CrossEntropyTest, MatchesDoublePrecision) {
  const Context context = Context::cpu();
  const int64_t rows = 5;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape2& shape : kShapes) {
      TestTensor logits(context, dtype, {rows, shape.padded}), losses(context, DType::f32, {rows});
      TestTensor targets(context, DType::i32, {rows});
      logits.fill(padded_logits(rows, shape));
      const std::vector<int32_t> target = spread_targets(rows, shape.vocab);
      targets.fill_ints(target);
      const std::vector<float> x = logits.floats();
      const std::vector<uint8_t> before = logits.raw();
      const float grad_scale = 0.125f;

      std::vector<float> expected_losses(rows), expected(x.size(), 0.0f);
      for (int64_t r = 0; r < rows; ++r) {
        if (target[r] < 0) continue;
        const float* row = x.data() + r * shape.padded;
        double sum = 0;
        for (int64_t c = 0; c < shape.vocab; ++c) sum += std::exp(double{row[c]});
        expected_losses[r] = static_cast<float>(std::log(sum) - row[target[r]]);
        for (int64_t c = 0; c < shape.vocab; ++c)
          expected[r * shape.padded + c] = static_cast<float>(
              (std::exp(double{row[c]}) / sum - (c == target[r] ? 1.0 : 0.0)) * grad_scale);
      }

      CrossEntropy args{logits, targets, losses, shape.vocab, 0.0f};
      cross_entropy(context, args);
      EXPECT_LT(max_relative_error(losses.floats(), expected_losses, 1.0), 1e-5);
      EXPECT_EQ(logits.raw(), before);

      losses.fill_value(std::numeric_limits<float>::quiet_NaN());
      args.grad_scale = grad_scale;
      cross_entropy(context, args);
      EXPECT_LT(max_relative_error(losses.floats(), expected_losses, 1.0), 1e-5);
      // One rounding to bf16 is at most 2^-8 relative.
      EXPECT_LT(max_relative_error(logits.floats(), expected, 1e-6), dtype == DType::bf16 ? 4e-3 : 2e-4);
      EXPECT_EQ(losses.floats()[1], 0.0f);
    }
  }
}

TEST(CrossEntropyTest, GradientMatchesFiniteDifferences) {
  const Context context = Context::cpu();
  const int64_t rows = 3, vocab = 13, padded = 16;
  TestTensor logits(context, DType::f32, {rows, padded}), losses(context, DType::f32, {rows});
  TestTensor targets(context, DType::i32, {rows});
  targets.fill_ints({12, -1, 0});
  std::vector<float> values = normal_values(rows * padded, 5, 1.5f);
  CrossEntropy args{logits, targets, losses, vocab, 0.0f};
  expect_finite_differences(context, args, logits, {&losses}, std::move(values));
}

// log Z of a few logits by hand, and of large logits in double precision.
TEST(ZLossTest, MatchesDoublePrecision) {
  const Context context = Context::cpu();
  const int64_t rows = 5;
  const float z_loss = 0.03f, grad_scale = 0.125f;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape2& shape : kShapes) {
      TestTensor logits(context, dtype, {rows, shape.padded}), losses(context, DType::f32, {rows});
      TestTensor z_losses(context, DType::f32, {rows}), targets(context, DType::i32, {rows});
      logits.fill(padded_logits(rows, shape));
      const std::vector<int32_t> target = spread_targets(rows, shape.vocab);
      targets.fill_ints(target);
      const std::vector<float> x = logits.floats();
      std::vector<float> expected_losses(rows), expected_z(rows), expected(x.size(), 0.0f);
      for (int64_t r = 0; r < rows; ++r) {
        if (target[r] < 0) continue;
        const float* row = x.data() + r * shape.padded;
        double sum = 0;
        for (int64_t c = 0; c < shape.vocab; ++c) sum += std::exp(double{row[c]});
        const double log_z = std::log(sum);
        expected_losses[r] = static_cast<float>(log_z - row[target[r]]);
        expected_z[r] = static_cast<float>(z_loss * log_z * log_z);
        for (int64_t c = 0; c < shape.vocab; ++c) {
          const double p = std::exp(double{row[c]}) / sum;
          expected[r * shape.padded + c] =
              static_cast<float>((p * (1 + 2 * z_loss * log_z) - (c == target[r] ? 1.0 : 0.0)) * grad_scale);
        }
      }
      cross_entropy(context, {.logits = logits,
                              .targets = targets,
                              .losses = losses,
                              .vocab = shape.vocab,
                              .grad_scale = grad_scale,
                              .z_loss = z_loss,
                              .z_losses = z_losses});
      // The loss is the cross-entropy without the z-loss.
      EXPECT_LT(max_relative_error(losses.floats(), expected_losses, 1.0), 1e-5);
      // log Z has an error of some 1e-6; its square has twice that.
      EXPECT_LT(max_relative_error(z_losses.floats(), expected_z, 0.01), 1e-5);
      // As in MatchesDoublePrecision, with the same absolute bounds where p (1 + 2 z log Z) - 1 cancels.
      EXPECT_LT(max_relative_error(logits.floats(), expected, 1e-5), dtype == DType::bf16 ? 4e-3 : 2e-4);
      EXPECT_EQ(z_losses.floats()[1], 0.0f);
    }
  }
}

TEST(ZLossTest, ByHand) {
  const Context context = Context::cpu();
  TestTensor logits(context, DType::f32, {2, 2}), losses(context, DType::f32, {2});
  TestTensor z_losses(context, DType::f32, {2}), targets(context, DType::i32, {2});
  // Z = 4 + 4 = 8 and Z = 1/2 + 1/2 = 1, whose logarithm is 0, so its z-loss is 0.
  const float log4 = std::log(4.0f), log_half = std::log(0.5f);
  logits.fill({log4, log4, log_half, log_half});
  targets.fill_ints({0, 1});
  cross_entropy(context, {.logits = logits,
                          .targets = targets,
                          .losses = losses,
                          .vocab = 2,
                          .grad_scale = 1.0f,
                          .z_loss = 0.5f,
                          .z_losses = z_losses});
  const float log8 = std::log(8.0f);
  EXPECT_NEAR(z_losses.floats()[0], 0.5f * log8 * log8, 1e-6f);
  EXPECT_NEAR(z_losses.floats()[1], 0.0f, 1e-12f);
  const std::vector<float> gradient = logits.floats();
  EXPECT_NEAR(gradient[0], 0.5f * (1 + log8) - 1, 1e-6f);
  EXPECT_NEAR(gradient[1], 0.5f * (1 + log8), 1e-6f);
  EXPECT_NEAR(gradient[2], 0.5f, 1e-6f);
  EXPECT_NEAR(gradient[3], -0.5f, 1e-6f);
}

TEST(ZLossTest, GradientMatchesFiniteDifferences) {
  const Context context = Context::cpu();
  const int64_t rows = 3, vocab = 13, padded = 16;
  TestTensor logits(context, DType::f32, {rows, padded}), losses(context, DType::f32, {rows});
  TestTensor z_losses(context, DType::f32, {rows}), targets(context, DType::i32, {rows});
  targets.fill_ints({12, -1, 0});
  std::vector<float> values = normal_values(rows * padded, 5, 1.5f);
  CrossEntropy args{.logits = logits,
                    .targets = targets,
                    .losses = losses,
                    .vocab = vocab,
                    .z_loss = 0.2f,
                    .z_losses = z_losses};
  expect_finite_differences(context, args, logits, {&losses, &z_losses}, std::move(values));
}

TEST(SoftCapTest, GradientMatchesFiniteDifferences) {
  const Context context = Context::cpu();
  const int64_t rows = 3, vocab = 13, padded = 16;
  TestTensor logits(context, DType::f32, {rows, padded}), losses(context, DType::f32, {rows});
  TestTensor z_losses(context, DType::f32, {rows}), targets(context, DType::i32, {rows});
  targets.fill_ints({12, -1, 0});
  std::vector<float> values = normal_values(rows * padded, 5, 1.5f);
  CrossEntropy args{.logits = logits,
                    .targets = targets,
                    .losses = losses,
                    .vocab = vocab,
                    .z_loss = 0.2f,
                    .soft_cap = 2.0f,
                    .z_losses = z_losses};
  expect_finite_differences(context, args, logits, {&losses, &z_losses}, std::move(values));
}

// The loss is that of logits that were capped before.
TEST(SoftCapTest, LossOfCappedLogits) {
  const Context context = Context::cpu();
  TestTensor logits(context, DType::f32, {2, 40}), losses(context, DType::f32, {2});
  TestTensor expected(context, DType::f32, {2}), targets(context, DType::i32, {2});
  targets.fill_ints({39, 0});
  logits.fill(normal_values(80, 3, 20.0f));
  cross_entropy(context,
                {.logits = logits, .targets = targets, .losses = losses, .vocab = 40, .soft_cap = 15.0f});
  const std::vector<float> before = logits.floats();
  kernels::soft_cap(context, logits, 15.0f);
  const std::vector<float> after = logits.floats();
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_NEAR(after[i], 15.0 * std::tanh(double{before[i]} / 15.0), 1e-5);
  cross_entropy(context, {.logits = logits, .targets = targets, .losses = expected, .vocab = 40});
  EXPECT_EQ(losses.raw(), expected.raw());
}

TEST(ZLossTest, ZeroKeepsAllBits) {
  const Context context = Context::cpu();
  const int64_t rows = 5;
  const Shape2 shape{257, 264};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TestTensor with(context, dtype, {rows, shape.padded}), without(context, dtype, {rows, shape.padded});
    TestTensor losses_with(context, DType::f32, {rows}), losses_without(context, DType::f32, {rows});
    TestTensor z_losses(context, DType::f32, {rows}), targets(context, DType::i32, {rows});
    with.fill(padded_logits(rows, shape));
    without.fill(padded_logits(rows, shape));
    targets.fill_ints(spread_targets(rows, shape.vocab));
    cross_entropy(context, {.logits = with,
                            .targets = targets,
                            .losses = losses_with,
                            .vocab = shape.vocab,
                            .grad_scale = 0.25f,
                            .z_loss = 0.0f,
                            .z_losses = z_losses});
    cross_entropy(context, {without, targets, losses_without, shape.vocab, 0.25f});
    EXPECT_EQ(with.raw(), without.raw());
    EXPECT_EQ(losses_with.raw(), losses_without.raw());
    EXPECT_EQ(z_losses.floats(), std::vector<float>(rows, 0.0f));
  }
}

TEST(CrossEntropyTest, LargeAndInfiniteLogits) {
  const Context context = Context::cpu();
  const float inf = std::numeric_limits<float>::infinity();
  TestTensor logits(context, DType::f32, {2, 4}), losses(context, DType::f32, {2});
  TestTensor targets(context, DType::i32, {2});
  logits.fill({1e4f, 1e4f, -inf, -1e4f, -inf, -inf, -3e38f, -inf});
  targets.fill_ints({0, 2});
  cross_entropy(context, {logits, targets, losses, 4, 1.0f});
  EXPECT_FLOAT_EQ(losses.floats()[0], std::log(2.0f));
  EXPECT_EQ(losses.floats()[1], 0.0f);
  EXPECT_EQ(logits.floats(), (std::vector<float>{-0.5f, 0.5f, 0, 0, 0, 0, 0, 0}));
}

TEST(CrossEntropyTest, RejectsWrongArguments) {
  const Context context = Context::cpu();
  TestTensor logits(context, DType::f32, {2, 4}), losses(context, DType::f32, {2});
  TestTensor targets(context, DType::i32, {2});
  logits.fill_value(0);
  targets.fill_ints({0, 3});
  EXPECT_THROW(cross_entropy(context, {logits, targets, losses, 3, 0.0f}), InternalError);
  EXPECT_THROW(cross_entropy(context, {logits, targets, losses, 5, 0.0f}), InternalError);
  EXPECT_THROW(cross_entropy(context, {logits, losses, losses, 4, 0.0f}), InternalError);
}

TEST(AccumulateSumTest, AddsToTheSum) {
  const Context context = Context::cpu();
  for (const int64_t count : {1, 7, 1000, 70001}) {
    TestTensor values(context, DType::f32, {count}), sum(context, DType::f32, {1});
    values.fill_normal(3, 1.0f, 1.0f);
    sum.fill({2.0f});
    double expected = 2.0;
    for (const float value : values.floats()) expected += value;
    accumulate_sum(context, values, sum);
    EXPECT_NEAR(sum.floats()[0], expected, 1e-5 * expected);
  }
}

}  // namespace
}  // namespace te::testing
