// Attention of query ranges against attention of the full sequence: every query sees the same keys with the same
// dropout.
#include "attention_ranges.h"

namespace te::kernels {
namespace {

using te::testing::relative_error;

AttentionShape shape_of_ranges(int64_t batch, int64_t seq, int64_t heads, int64_t groups, int64_t dim) {
  return {batch, seq, heads, groups, dim, 1.0f / std::sqrt(static_cast<float>(dim)), 0.0f};
}

void check(const RangeProblem& problem, int ranks) {
  SCOPED_TRACE(::testing::Message() << problem.shape.seq << " tokens, " << ranks << " ranks, window "
                                    << problem.shape.window << ", dropout " << problem.shape.dropout << ", "
                                    << dtype_name(problem.dtype));
  const Context cpu = Context::cpu();
  const AttentionResults whole = attend_full(cpu, problem), ranges = attend_in_ranges(cpu, problem, ranks);
  // Blocks of keys and queries begin elsewhere, so sums have another order. BF16 gradients of keys are rounded once per
  // range.
  const bool fp32 = problem.dtype == DType::f32;
  EXPECT_LT(relative_error(ranges.o, whole.o), fp32 ? 1e-6 : 1e-3);
  EXPECT_LT(relative_error(ranges.lse, whole.lse), 1e-6);
  EXPECT_LT(relative_error(ranges.dqkv, whole.dqkv), fp32 ? 2e-6 : 5e-3);
}

TEST(AttentionRanges, MatchFullSequence) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int ranks : {1, 2, 4}) {
      check(RangeProblem(shape_of_ranges(2, 16, 4, 1, 8), dtype), ranks);
      check(RangeProblem(shape_of_ranges(2, 200, 6, 2, 12), dtype), ranks);
      check(RangeProblem(shape_of_ranges(1, 512, 2, 2, 16), dtype), ranks);
    }
  }
}

TEST(AttentionRanges, ApplyWindowDocumentsAndDropout) {
  for (const int64_t window : {0, 1, 40, 130}) {
    for (const float dropout : {0.0f, 0.3f}) {
      AttentionShape shape = shape_of_ranges(2, 200, 4, 2, 8);
      shape.window = window, shape.dropout = dropout;
      check(RangeProblem(shape, DType::f32), 2);
      // Documents of 1, 2, 3, ... tokens.
      shape.max_documents = 2 * shape.seq;
      RangeProblem problem(shape, DType::f32);
      for (int64_t b = 0; b < shape.batch; ++b) {
        for (int64_t i = 0, begin = 0, size = 1 + b; i < shape.seq; ++i) {
          if (i == begin + size) begin = i, ++size;
          problem.document_start.push_back(static_cast<int32_t>(begin));
        }
      }
      check(problem, 4);
    }
  }
}

TEST(AttentionRanges, RejectsInvalidRanges) {
  AttentionShape shape = shape_of_ranges(1, 16, 2, 2, 8);
  const auto refused = [&](QueryRange range) {
    shape.range = range;
    return attention_unsupported(DeviceKind::cpu, shape, DType::f32)[0] != '\0';
  };
  EXPECT_FALSE(refused({.count = 4, .position = 12, .rows = 8, .first = 4}));
  EXPECT_TRUE(refused({.count = 4, .position = 13, .rows = 8, .first = 4}));
  EXPECT_TRUE(refused({.count = 4, .position = 12, .rows = 8, .first = 5}));
  EXPECT_TRUE(refused({.count = 4, .position = -1, .rows = 8, .first = 4}));
  shape.dropout = 0.1f, shape.max_documents = 3, shape.window = 5;
  shape.range = {.count = 4, .position = 12, .rows = 8, .first = 4};
  EXPECT_STREQ(attention_unsupported(DeviceKind::cuda, shape, DType::bf16), "");
}

}  // namespace
}  // namespace te::kernels
