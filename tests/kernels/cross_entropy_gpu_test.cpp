// CUDA cross-entropy against the CPU reference with the same inputs.
#include "kernels/cross_entropy/cross_entropy.h"

#include <cmath>
#include <limits>

#include "testing/testing.h"

namespace te::testing {
namespace {

using kernels::accumulate_sum;
using kernels::cross_entropy;

struct GpuVocab {
  int64_t rows, vocab, padded;
};
/// Widths that are and are not multiples of 16 bytes; rows that fit into shared memory and rows that do not.
const GpuVocab kVocabs[] = {{3, 1, 1},           {3, 1, 8},           {3, 7, 7},
                            {5, 257, 257},       {5, 257, 264},       {9, 50257, 50257},
                            {300, 50257, 50304}, {4, 128256, 128256}, {4, 128250, 128251}};

struct CrossEntropyRun {
  std::vector<float> losses, z_losses, gradient;
  std::vector<uint8_t> logits_before, logits_after_loss_only, gradient_bits;
};

CrossEntropyRun run(const Context& context, DType dtype, const GpuVocab& shape, float z_loss = 0.0f,
                    float soft_cap = 0.0f) {
  TestTensor logits(context, dtype, {shape.rows, shape.padded}), losses(context, DType::f32, {shape.rows});
  TestTensor z_losses(context, DType::f32, {shape.rows}), targets(context, DType::i32, {shape.rows});
  std::vector<float> values = normal_values(shape.rows * shape.padded, 11, 4.0f);
  std::vector<int32_t> target(shape.rows);
  for (int64_t r = 0; r < shape.rows; ++r) {
    target[r] = static_cast<int32_t>((r * 7919 + shape.vocab - 1) % shape.vocab);
    if (shape.vocab > 7) values[r * shape.padded + 3] = -std::numeric_limits<float>::infinity();
    for (int64_t c = shape.vocab; c < shape.padded; ++c)
      values[r * shape.padded + c] = std::numeric_limits<float>::quiet_NaN();
  }
  target[1] = -1, target[2] = -2;
  logits.fill(values);
  targets.fill_ints(target);
  CrossEntropyRun out;
  out.logits_before = logits.raw();
  kernels::CrossEntropy args{logits, targets, losses, shape.vocab, 0.0f};
  args.soft_cap = soft_cap;
  cross_entropy(context, args);
  const std::vector<float> alone = losses.floats();
  out.logits_after_loss_only = logits.raw();
  losses.fill_value(std::numeric_limits<float>::quiet_NaN());
  cross_entropy(context, {.logits = logits,
                          .targets = targets,
                          .losses = losses,
                          .vocab = shape.vocab,
                          .grad_scale = 0.25f,
                          .z_loss = z_loss,
                          .soft_cap = soft_cap,
                          .z_losses = z_losses});
  out.losses = losses.floats();
  out.z_losses = z_losses.floats();
  EXPECT_EQ(out.losses, alone);
  out.gradient = logits.floats();
  out.gradient_bits = logits.raw();
  return out;
}

TEST(CrossEntropyGpuTest, MatchesCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const GpuVocab& shape : kVocabs) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(shape.vocab) + " of " +
                   std::to_string(shape.padded));
      const CrossEntropyRun expected = run(cpu, dtype, shape), actual = run(gpu, dtype, shape);
      EXPECT_EQ(count_different(actual.logits_after_loss_only, actual.logits_before, 1), 0);
      EXPECT_LT(max_relative_error(actual.losses, expected.losses, 1.0), 1e-5);
      EXPECT_EQ(actual.losses[1], 0.0f);
      // FP32: exponentials and sums differ between libraries, and p - 1 cancels. BF16: a full unit in the last place,
      // 2^-7, where rounding differs. FP16: likewise, for numbers as small as its smallest.
      EXPECT_LT(max_relative_error(actual.gradient, expected.gradient, dtype != DType::f32 ? 1e-5 : 1e-3),
                dtype != DType::f32 ? 8e-3 : 1e-4);
      // The FP32 sum of 128,256 exponentials alone changes by some 1e-5 with the summation order.
      EXPECT_LT(relative_error(actual.gradient, expected.gradient), dtype != DType::f32 ? 5e-4 : 3e-5);
      for (int64_t r = 0; r < shape.rows; ++r)
        for (int64_t c = r == 1 ? 0 : shape.vocab; c < shape.padded; ++c)
          ASSERT_EQ(actual.gradient[r * shape.padded + c], 0.0f) << r << ", " << c;
      EXPECT_EQ(count_different(run(gpu, dtype, shape).gradient_bits, actual.gradient_bits, 1), 0);
    }
  }
}

TEST(CrossEntropyGpuTest, ZLossMatchesCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const GpuVocab& shape : kVocabs) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(shape.vocab) + " of " +
                   std::to_string(shape.padded));
      const CrossEntropyRun expected = run(cpu, dtype, shape, 0.02f), actual = run(gpu, dtype, shape, 0.02f);
      const CrossEntropyRun without = run(gpu, dtype, shape);
      // The cross-entropy is bitwise equal to that without z-loss; log Z has the error of the loss, and its square
      // twice that.
      EXPECT_EQ(actual.losses, without.losses);
      EXPECT_LT(max_relative_error(actual.z_losses, expected.z_losses, 0.1), 2e-5);
      EXPECT_EQ(actual.z_losses[1], 0.0f);
      EXPECT_EQ(without.z_losses, std::vector<float>(static_cast<size_t>(shape.rows), 0.0f));
      // Bounds of MatchesCpu.
      EXPECT_LT(max_relative_error(actual.gradient, expected.gradient, dtype == DType::bf16 ? 1e-5 : 1e-3),
                dtype == DType::bf16 ? 8e-3 : 1e-4);
      EXPECT_LT(relative_error(actual.gradient, expected.gradient), dtype == DType::bf16 ? 5e-4 : 3e-5);
      EXPECT_NE(actual.gradient, without.gradient);
    }
  }
}

TEST(CrossEntropyGpuTest, SoftCapMatchesCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const GpuVocab& shape : kVocabs) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(shape.vocab) + " of " +
                   std::to_string(shape.padded));
      const CrossEntropyRun expected = run(cpu, dtype, shape, 0.0f, 15.0f),
                            actual = run(gpu, dtype, shape, 0.0f, 15.0f);
      // Bounds of MatchesCpu.
      EXPECT_LT(max_relative_error(actual.losses, expected.losses, 1.0), 1e-5);
      EXPECT_LT(relative_error(actual.gradient, expected.gradient), dtype == DType::bf16 ? 5e-4 : 3e-5);
    }
  }
}

TEST(CrossEntropyGpuTest, TargetsOutsideTheVocabularyGiveNan) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  TestTensor logits(gpu, DType::bf16, {4, 16}), losses(gpu, DType::f32, {4}), targets(gpu, DType::i32, {4});
  logits.fill_normal(1);
  targets.fill_ints({0, 12, -3, -1});
  cross_entropy(gpu, {logits, targets, losses, 12, 0.0f});
  const std::vector<float> values = losses.floats();
  EXPECT_TRUE(std::isfinite(values[0]));
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_TRUE(std::isnan(values[2]));
  EXPECT_EQ(values[3], 0.0f);
}

TEST(CrossEntropyGpuTest, LargeAndInfiniteLogits) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const float inf = std::numeric_limits<float>::infinity();
  TestTensor logits(gpu, DType::f32, {2, 4}), losses(gpu, DType::f32, {2}), targets(gpu, DType::i32, {2});
  logits.fill({1e4f, 1e4f, -inf, -1e4f, -inf, -inf, -3e38f, -inf});
  targets.fill_ints({0, 2});
  cross_entropy(gpu, {logits, targets, losses, 4, 1.0f});
  EXPECT_FLOAT_EQ(losses.floats()[0], std::log(2.0f));
  EXPECT_EQ(losses.floats()[1], 0.0f);
  EXPECT_EQ(logits.floats(), (std::vector<float>{-0.5f, 0.5f, 0, 0, 0, 0, 0, 0}));
}

TEST(AccumulateSumGpuTest, MatchesCpuAndRepeats) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const int64_t count : {1, 7, 1000, 1024, 70001}) {
    float results[3];
    for (int run = 0; run < 3; ++run) {
      const Context& context = run == 0 ? cpu : gpu;
      TestTensor values(context, DType::f32, {count}), sum(context, DType::f32, {1});
      values.fill_normal(3, 1.0f, 1.0f);
      sum.fill({2.0f});
      accumulate_sum(context, values, sum);
      results[run] = sum.floats()[0];
    }
    EXPECT_NEAR(results[1], results[0], 1e-5 * std::abs(results[0]));
    EXPECT_EQ(results[1], results[2]);
  }
}

}  // namespace
}  // namespace te::testing
