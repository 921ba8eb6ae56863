// Vocabulary-parallel cross-entropy against the unsharded one, on the CPU.
#include <cmath>
#include <limits>

#include "kernels/cross_entropy_slices.h"

namespace te::testing {
namespace {

using kernels::cross_entropy;

TEST(ShardedCrossEntropy, MatchesUnsharded) {
  const Context context = Context::cpu();
  const int64_t rows = 6;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const SlicedVocabulary& v : kSlicedVocabularies) {
      SCOPED_TRACE(fmt::format("{} vocab {}, {} x {}", dtype_name(dtype), v.vocab, v.slices, v.local));
      const std::vector<float> values = whole_logits(v, rows);
      const std::vector<int32_t> target = slice_targets(v, rows);
      TestTensor logits(context, dtype, {rows, v.local * v.slices}), losses(context, DType::f32, {rows});
      TestTensor targets(context, DType::i32, {rows});
      targets.fill_ints(target);
      SlicedCrossEntropy sliced(context, dtype, v, rows, values, target);
      for (const float grad_scale : {0.0f, 0.125f}) {
        logits.fill(values);
        cross_entropy(context, {logits, targets, losses, v.vocab, grad_scale});
        sliced.run(grad_scale);
        for (int64_t rank = 0; rank < v.slices; ++rank) {
          // An FP32 sum of n exponentials in another order. Without vectorization they are added one by one, and n
          // roundings of half a unit add up to about sqrt(n) of them: 1.3e-5 at 50,257. The loss, their logarithm, has
          // no larger error.
          const double bound = 1e-6 + std::sqrt(static_cast<double>(v.vocab)) * 0x1p-24;
          EXPECT_LT(max_relative_error(sliced.losses[rank].floats(), losses.floats(), 1.0), bound);
          EXPECT_EQ(sliced.losses[rank].raw(), sliced.losses[0].raw());
          EXPECT_EQ(sliced.losses[rank].floats()[1], 0.0f);
        }
        if (v.slices == 1) {
          EXPECT_EQ(sliced.losses[0].raw(), losses.raw());
        }
      }
      if (v.slices == 1) {
        EXPECT_EQ(sliced.logits[0].raw(), logits.raw());
      }
      // p - 1 cancels for a target of high probability: absolute errors of 1e-7 of grad_scale. BF16 results may be
      // rounded differently, 2^-7.
      EXPECT_LT(max_relative_error(sliced.joined(), logits.floats(), 1e-3),
                dtype == DType::bf16 ? 8e-3 : 1e-4);
      EXPECT_LT(relative_error(sliced.joined(), logits.floats()),
                dtype == DType::bf16 ? 5e-4 : 1e-5 + 2 * std::sqrt(static_cast<double>(v.vocab)) * 0x1p-24);
      const std::vector<float> gradient = sliced.joined();
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = r == 1 ? 0 : v.vocab; c < v.local * v.slices; ++c)
          ASSERT_EQ(gradient[r * v.local * v.slices + c], 0.0f);
    }
  }
}

TEST(ShardedCrossEntropy, ZLossMatchesUnsharded) {
  const Context context = Context::cpu();
  const int64_t rows = 6;
  const float grad_scale = 0.125f, z_loss = 0.02f;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const SlicedVocabulary& v : kSlicedVocabularies) {
      SCOPED_TRACE(fmt::format("{} vocab {}, {} x {}", dtype_name(dtype), v.vocab, v.slices, v.local));
      const std::vector<float> values = whole_logits(v, rows);
      const std::vector<int32_t> target = slice_targets(v, rows);
      TestTensor logits(context, dtype, {rows, v.local * v.slices}), losses(context, DType::f32, {rows});
      TestTensor z_losses(context, DType::f32, {rows});
      SlicedCrossEntropy sliced(context, dtype, v, rows, values, target);
      logits.fill(values);
      cross_entropy(context, {.logits = logits,
                              .targets = sliced.targets,
                              .losses = losses,
                              .vocab = v.vocab,
                              .grad_scale = grad_scale,
                              .z_loss = z_loss,
                              .z_losses = z_losses});
      sliced.run(grad_scale, z_loss);
      // The bound of the loss in the test above, doubled by the square.
      const double bound = 2e-6 + std::sqrt(static_cast<double>(v.vocab)) * 0x1p-23;
      for (int64_t rank = 0; rank < v.slices; ++rank) {
        EXPECT_LT(max_relative_error(sliced.z_losses[rank].floats(), z_losses.floats(), 0.1), bound);
        EXPECT_EQ(sliced.z_losses[rank].raw(), sliced.z_losses[0].raw());
        EXPECT_EQ(sliced.z_losses[rank].floats()[1], 0.0f);
      }
      if (v.slices == 1) {
        EXPECT_EQ(sliced.z_losses[0].raw(), z_losses.raw());
        EXPECT_EQ(sliced.logits[0].raw(), logits.raw());
      }
      // Bounds of the test above.
      EXPECT_LT(max_relative_error(sliced.joined(), logits.floats(), 1e-3),
                dtype == DType::bf16 ? 8e-3 : 1e-4);
      EXPECT_LT(relative_error(sliced.joined(), logits.floats()),
                dtype == DType::bf16 ? 5e-4 : 1e-5 + 2 * std::sqrt(static_cast<double>(v.vocab)) * 0x1p-24);
    }
  }
}

TEST(ShardedCrossEntropy, SoftCapMatchesUnsharded) {
  const Context context = Context::cpu();
  const int64_t rows = 6;
  for (const SlicedVocabulary& v : kSlicedVocabularies) {
    SCOPED_TRACE(fmt::format("vocab {}, {} x {}", v.vocab, v.slices, v.local));
    const std::vector<float> values = whole_logits(v, rows);
    const std::vector<int32_t> target = slice_targets(v, rows);
    TestTensor logits(context, DType::f32, {rows, v.local * v.slices}), losses(context, DType::f32, {rows});
    TestTensor targets(context, DType::i32, {rows});
    targets.fill_ints(target);
    logits.fill(values);
    SlicedCrossEntropy sliced(context, DType::f32, v, rows, values, target);
    kernels::CrossEntropy args{logits, targets, losses, v.vocab, 0.125f};
    args.z_loss = 0.1f;
    args.soft_cap = 3.0f;
    cross_entropy(context, args);
    sliced.run(0.125f, 0.1f, 3.0f);
    // Bounds of MatchesUnsharded.
    const double order = std::sqrt(static_cast<double>(v.vocab)) * 0x1p-24;
    for (const TestTensor& of_rank : sliced.losses)
      EXPECT_LT(max_relative_error(of_rank.floats(), losses.floats(), 1.0), 1e-6 + order);
    EXPECT_LT(relative_error(sliced.joined(), logits.floats()), 1e-5 + 2 * order);
  }
}

TEST(ShardedCrossEntropy, StatisticsByHand) {
  const Context context = Context::cpu();
  const float inf = std::numeric_limits<float>::infinity(), lowest = std::numeric_limits<float>::lowest();
  TestTensor logits(context, DType::f32, {3, 2}), targets(context, DType::i32, {3});
  TestTensor statistics(context, DType::f32, {3, 3});
  logits.fill({1, 1, 5, -inf, -inf, -inf});
  targets.fill_ints({5, 3, -2});  // the second column; the preceding rank; ignored
  kernels::cross_entropy_statistics(
      context, {.logits = logits, .targets = targets, .first = 4, .vocab = 6, .statistics = statistics});
  const std::vector<float> s = statistics.floats();
  EXPECT_EQ((std::vector<float>{s.begin(), s.begin() + 6}), (std::vector<float>{1, 5, lowest, 2, 1, 0}));
  EXPECT_EQ(s[6], 1.0f);
  EXPECT_TRUE(std::isnan(s[7]));
  EXPECT_TRUE(std::isnan(s[8]));
}

TEST(ShardedCrossEntropy, TargetsThatEqualLogitsPrecede) {
  expect_preceded(Context::cpu());
}

TEST(ShardedCrossEntropy, ExtremeLogitsOnDifferentRanks) {
  // Rank 0 holds 1e4 twice, rank 1 only -inf, rank 2 numbers whose exponentials underflow.
  const Context context = Context::cpu();
  const float inf = std::numeric_limits<float>::infinity();
  SlicedCrossEntropy sliced(context, DType::f32, {6, 2, 3}, 2,
                            {1e4f, 1e4f, -inf, -inf, -1e4f, 3, -inf, -3e38f, -inf, -inf, -inf, -inf}, {0, 1});
  sliced.run(1.0f);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FLOAT_EQ(sliced.losses[rank].floats()[0], std::log(2.0f));
    EXPECT_EQ(sliced.losses[rank].floats()[1], 0.0f);
  }
  EXPECT_EQ(sliced.joined(), (std::vector<float>{-0.5f, 0.5f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(ShardedCrossEntropy, NaNLogitReachesTheLossOfItsRowOnEveryRank) {
  const Context context = Context::cpu();
  SlicedCrossEntropy sliced(context, DType::f32, {4, 2, 2}, 2, {1, 2, std::nanf(""), 3, 1, 2, 3, 4}, {0, 0});
  sliced.run(1.0f);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(std::isnan(sliced.losses[rank].floats()[0]));
    EXPECT_FALSE(std::isnan(sliced.losses[rank].floats()[1]));
  }
}

TEST(ShardedCrossEntropy, RejectsWrongArguments) {
  const Context context = Context::cpu();
  TestTensor logits(context, DType::f32, {2, 4}), losses(context, DType::f32, {2});
  TestTensor targets(context, DType::i32, {2}), two(context, DType::f32, {2, 2});
  logits.fill_value(0);
  targets.fill_ints({0, 8});
  TestTensor statistics(context, DType::f32, {3, 2});
  EXPECT_THROW(kernels::cross_entropy_statistics(context, {logits, targets, 4, 8, statistics}),
               InternalError);
  EXPECT_THROW(kernels::cross_entropy_statistics(context, {logits, targets, 4, 9, two}), InternalError);
  kernels::cross_entropy_statistics(context, {logits, targets, 4, 9, statistics});
  EXPECT_THROW(
      kernels::cross_entropy_from_statistics(context, {logits, targets, 4, 9, statistics, losses, 0.0f}),
      InternalError);
}

}  // namespace
}  // namespace te::testing
