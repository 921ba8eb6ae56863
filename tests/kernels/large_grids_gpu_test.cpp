// CUDA kernels whose blocks grow with the tokens, samples or rows of experts, with more blocks than the second and
// third dimension of a grid can have (65,535), against the CPU reference.
#include "attention_problem.h"
#include "kernels/embedding/embedding.h"
#include "moe_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::relative_error;
using testing::TestTensor;

constexpr int64_t kBlocks = 65536;

TEST(LargeGridsGpu, EmbeddingGradientOfFourMillionTokens) {
  TE_REQUIRE_GPU();
  const int64_t rows = kBlocks * 64 + 7, hidden = 2, vocab = 100'000;
  std::vector<int32_t> ids(static_cast<size_t>(rows));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(philox(1, 2, i).word[0] % vocab);
  const auto run = [&](const Context& context) {
    TestTensor tokens(context, DType::i32, {rows}), dout(context, DType::bf16, {rows, hidden}),
        dtable(context, DType::f32, {vocab, hidden}),
        workspace(context, DType::u8,
                  {std::max<int64_t>(1, embedding_backward_workspace_bytes(context, rows, hidden))});
    tokens.fill_ints(ids), dout.fill_normal(3), dtable.fill_value(0.0f);
    embedding_backward(context, {.tokens = tokens, .dout = dout, .dtable = dtable, .workspace = workspace});
    return dtable.floats();
  };
  EXPECT_LT(relative_error(run(Context::cuda(0)), run(cpu())), 1e-6);
}

TEST(LargeGridsGpu, AttentionOfManySamples) {
  TE_REQUIRE_GPU();
  for (const int64_t dim : {64, 128}) {
    const AttentionShape shape = attention_shape(kBlocks + 3, 2, 1, 1, dim);
    const auto run = [&](const Context& context) {
      AttentionProblem problem(context, shape,
                               std::vector<int32_t>(static_cast<size_t>(shape.batch * shape.seq)),
                               attention_workspace_bytes(context, shape, DType::bf16));
      problem.run();
      return problem.dqkv.floats();
    };
    // Probabilities, o and the results are rounded to BF16.
    EXPECT_LT(relative_error(run(Context::cuda(0)), run(cpu())), 1.2e-2) << dim;
  }
}

TEST(LargeGridsGpu, RouterStatisticsOfManySequences) {
  TE_REQUIRE_GPU();
  const RouterCase c{2 * (kBlocks + 3), 4, {.topk = 2}, kBlocks + 3};
  const auto run = [&](const Context& context) {
    RouterTensors tensors(context, c);
    tensors.forward(context, c, BalanceScope::sequence);
    return std::pair(ints_of(tensors.counts), tensors.score_sums.floats());
  };
  const auto [counts, sums] = run(Context::cuda(0));
  const auto [expected_counts, expected_sums] = run(cpu());
  EXPECT_EQ(counts, expected_counts);
  EXPECT_LT(relative_error(sums, expected_sums), 1e-6);
}

// In FP32, which plain kernels multiply.
TEST(LargeGridsGpu, RoutersAndExpertsOfFourMillionRows) {
  TE_REQUIRE_GPU();
  const int64_t rows = kBlocks * 64 + 7, experts = 2, hidden = 5, n = 3;
  const auto run = [&](const Context& context) {
    TestTensor x(context, DType::f32, {rows, hidden}), router(context, DType::f32, {experts, hidden}),
        w(context, DType::f32, {experts * n, hidden}), logits(context, DType::f32, {rows, experts}),
        y(context, DType::f32, {rows, n}), dx(context, DType::f32, {rows, hidden}),
        offsets(context, DType::i32, {experts + 1}),
        scratch(context, DType::u8, {router_gemm_scratch(rows, experts, hidden)});
    x.fill_normal(1), router.fill_normal(2), w.fill_normal(3), dx.fill_value(1.0f);
    offsets.fill_ints({0, 100, static_cast<int32_t>(rows)});
    router_gemm(context, {.x = x, .weight = router, .logits = logits});
    router_gemm_backward(
        context,
        {.d_logits = logits, .x = x, .weight = router, .dx = dx, .d_weight = {}, .scratch = scratch});
    grouped_gemm(context, {.a = {x}, .b = {w}, .offsets = offsets, .out = y, .trans_b = true});
    return std::array{logits.floats(), dx.floats(), y.floats()};
  };
  const auto actual = run(Context::cuda(0)), expected = run(cpu());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_LT(relative_error(actual[i], expected[i]), 1e-5) << i;
}

}  // namespace
}  // namespace te::kernels
