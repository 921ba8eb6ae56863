// Attention of query ranges on a GPU against the CPU reference of the full sequence: by te-train's own Hopper kernels
// (more tests in flash_bounds_gpu_test.cpp), by cuDNN, and by the FP32 kernels.
#include "attention_ranges.h"
#include "kernels/attention_documents.h"

namespace te::kernels {
namespace {

using te::testing::relative_error;

TEST(AttentionRangesGpu, MatchFullSequenceReference) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  // Ranges of 1,024 tokens begin at key blocks, those of 1,040 do not; te-train's Hopper kernels do not support heads
  // of 80.
  for (const int64_t dim : {64, 128, 80}) {
    for (const int64_t seq : {1024, 1040}) {
      for (const int64_t window : {0, 300}) {
        for (const bool documents : {false, true}) {
          AttentionShape shape{2, seq, 8, 2, dim, 1.0f / std::sqrt(static_cast<float>(dim)), 0.0f};
          shape.window = window;
          shape.max_documents = documents ? 2 * seq : 0;
          RangeProblem problem(shape, DType::bf16);
          if (documents) problem.document_start = some_documents(2, seq);
          const AttentionResults whole = attend_full(cpu, problem);
          for (const int ranks : {2, 4}) {
            SCOPED_TRACE(fmt::format("{} wide, {} tokens, window {}, documents {}, {} ranks", dim, seq,
                                     window, documents, ranks));
            const AttentionResults ranges = attend_in_ranges(gpu, problem, ranks);
            // As in attention_gpu_test.cpp, the probabilities are also rounded to BF16.
            EXPECT_LT(relative_error(ranges.o, whole.o), 6e-3);
            EXPECT_LT(relative_error(ranges.lse, whole.lse), 1e-4);
            EXPECT_LT(relative_error(ranges.dqkv, whole.dqkv), 1.5e-2);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace te::kernels
