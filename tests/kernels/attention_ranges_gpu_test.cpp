// Attention of ranges of queries on a GPU (cuDNN) against the CPU reference of the whole.
#include "attention_ranges.h"

namespace te::kernels {
namespace {

using te::testing::relative_error;

TEST(AttentionRangesGpu, AreTheWholeOfTheReference) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const int64_t dim : {64, 128}) {
    for (const int64_t window : {0, 300}) {
      for (const int ranks : {2, 4}) {
        SCOPED_TRACE(::testing::Message() << dim << " wide, window " << window << ", " << ranks << " ranks");
        AttentionShape shape{2, 1024, 8, 2, dim, 1.0f / std::sqrt(static_cast<float>(dim)), 0.0f};
        shape.window = window;
        const RangeProblem problem(shape, DType::bf16);
        const AttentionResults whole = attend_whole(cpu, problem),
                               ranges = attend_in_ranges(gpu, problem, ranks);
        // As in attention_gpu_test.cpp: the probabilities are rounded to BF16, too.
        EXPECT_LT(relative_error(ranges.o, whole.o), 6e-3);
        EXPECT_LT(relative_error(ranges.lse, whole.lse), 1e-4);
        EXPECT_LT(relative_error(ranges.dqkv, whole.dqkv), 1.5e-2);
      }
    }
  }
}

}  // namespace
}  // namespace te::kernels
