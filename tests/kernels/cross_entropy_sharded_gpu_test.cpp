// CUDA vocabulary-parallel cross-entropy against the CPU reference, and against the unsharded one.
#include "kernels/cross_entropy_slices.h"

namespace te::testing {
namespace {

TEST(ShardedCrossEntropyGpu, MatchesCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const int64_t rows = 6;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const SlicedVocabulary& v : kSlicedVocabularies) {
      SCOPED_TRACE(fmt::format("{} vocab {}, {} x {}", dtype_name(dtype), v.vocab, v.slices, v.local));
      const std::vector<float> values = whole_logits(v, rows);
      const std::vector<int32_t> target = slice_targets(v, rows);
      SlicedCrossEntropy expected(cpu, dtype, v, rows, values, target);
      SlicedCrossEntropy actual(gpu, dtype, v, rows, values, target);
      const std::vector<uint8_t> before = actual.logits[0].raw();
      actual.run(0.0f);
      EXPECT_EQ(actual.logits[0].raw(), before);
      const std::vector<uint8_t> loss_only = actual.losses[0].raw();
      expected.run(0.25f, 0.02f), actual.run(0.25f, 0.02f);
      EXPECT_EQ(actual.losses[0].raw(), loss_only);
      for (int64_t rank = 0; rank < v.slices; ++rank) {
        EXPECT_LT(max_relative_error(actual.losses[rank].floats(), expected.losses[rank].floats(), 1.0),
                  1e-5);
        EXPECT_LT(max_relative_error(actual.z_losses[rank].floats(), expected.z_losses[rank].floats(), 0.1),
                  2e-5);
        EXPECT_EQ(actual.losses[rank].raw(), actual.losses[0].raw());
        EXPECT_EQ(actual.z_losses[rank].raw(), actual.z_losses[0].raw());
        EXPECT_EQ(actual.losses[rank].floats()[1], 0.0f);
      }
      // Bounds of cross_entropy_gpu_test.cpp.
      EXPECT_LT(max_relative_error(actual.joined(), expected.joined(), dtype == DType::bf16 ? 1e-5 : 1e-3),
                dtype == DType::bf16 ? 8e-3 : 1e-4);
      EXPECT_LT(relative_error(actual.joined(), expected.joined()), dtype == DType::bf16 ? 5e-4 : 3e-5);
      const std::vector<float> gradient = actual.joined();
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = r == 1 ? 0 : v.vocab; c < v.local * v.slices; ++c)
          ASSERT_EQ(gradient[r * v.local * v.slices + c], 0.0f) << r << ", " << c;
    }
  }
}

TEST(ShardedCrossEntropyGpu, TargetsThatEqualLogitsPrecede) {
  TE_REQUIRE_GPU();
  expect_preceded(Context::cuda(0));
}

TEST(ShardedCrossEntropyGpu, OneSliceEqualsUnshardedBitwise) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t rows = 9;
  // Rows that fit into shared memory and rows that do not; widths that are and are not multiples of 16 bytes.
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const SlicedVocabulary v :
         {SlicedVocabulary{7, 7, 1}, SlicedVocabulary{257, 264, 1}, SlicedVocabulary{50257, 50304, 1},
          SlicedVocabulary{128250, 128251, 1}}) {
      SCOPED_TRACE(fmt::format("{} vocab {} of {}", dtype_name(dtype), v.vocab, v.local));
      const std::vector<float> values = whole_logits(v, rows);
      const std::vector<int32_t> target = slice_targets(v, rows);
      TestTensor logits(gpu, dtype, {rows, v.local}), losses(gpu, DType::f32, {rows});
      SlicedCrossEntropy sliced(gpu, dtype, v, rows, values, target);
      logits.fill(values);
      kernels::cross_entropy(gpu, {logits, sliced.targets, losses, v.vocab, 0.25f});
      sliced.run(0.25f);
      EXPECT_EQ(sliced.losses[0].raw(), losses.raw());
      EXPECT_EQ(count_different(sliced.logits[0].raw(), logits.raw(), 1), 0);
    }
  }
}

}  // namespace
}  // namespace te::testing
