// CUDA embedding against the CPU reference: bitwise for the forward pass and the position gradient, within the rounding
// of another summation order for the table gradient, and deterministic.
#include "core/random.h"
#include "kernels/embedding/embedding.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

struct EmbeddingCase {
  int64_t rows, hidden, vocab, seq;
  int frequent;  ///< of ten tokens, how many are token vocab / 2
};
// One chunk of sorted pairs has 64 rows: full and partial chunks, runs over many chunks, a single token, few key bits.
const EmbeddingCase kEmbeddingCases[] = {
    {1, 8, 3, 1, 0},           {64, 128, 50, 64, 0},       {65, 136, 7, 13, 5},
    {1000, 131, 1, 250, 0},    {1024, 1032, 3001, 512, 3}, {4096, 72, 1000, 1024, 9},
    {1024, 40, 50257, 512, 3}, {3001, 1, 257, 3001, 5},    {20000, 64, 32000, 4096, 8}};

std::vector<int32_t> tokens_of(const EmbeddingCase& c) {
  std::vector<int32_t> ids(static_cast<size_t>(c.rows));
  for (size_t i = 0; i < ids.size(); ++i) {
    const Philox4 random = philox(1, 2, i);
    const bool frequent = static_cast<int>(random.word[1] % 10) < c.frequent;
    ids[i] = static_cast<int32_t>(frequent ? c.vocab / 2 : random.word[0] % c.vocab);
  }
  return ids;
}

std::vector<uint8_t> forward(const Context& context, const EmbeddingCase& c, DType dtype,
                             bool with_positions) {
  TestTensor tokens(context, DType::i32, {c.rows}), table(context, dtype, {c.vocab, c.hidden});
  TestTensor positions(context, dtype, {c.seq + 1, c.hidden}), out(context, dtype, {c.rows, c.hidden});
  tokens.fill_ints(tokens_of(c));
  table.fill_normal(1);
  positions.fill_normal(2);
  embedding_forward(context, {.tokens = tokens,
                              .table = table,
                              .positions = with_positions ? positions.get() : Tensor{},
                              .seq = c.seq,
                              .out = out});
  return out.raw();
}

struct Gradients {
  std::vector<float> table, positions;
  std::vector<uint8_t> table_bits, position_bits;
};
Gradients backward(const Context& context, const EmbeddingCase& c, DType dtype, bool with_positions = true) {
  TestTensor tokens(context, DType::i32, {c.rows}), dout(context, dtype, {c.rows, c.hidden});
  TestTensor dtable(context, DType::f32, {c.vocab, c.hidden}),
      dpositions(context, DType::f32, {c.seq + 1, c.hidden});
  // Filled with NaN, so that a partial sum that is read before it is written shows as NaN.
  TestTensor workspace(context, DType::u8,
                       {std::max<int64_t>(1, embedding_backward_workspace_bytes(context, c.rows, c.hidden))});
  tokens.fill_ints(tokens_of(c));
  dout.fill_normal(3);
  dtable.fill_normal(4);
  dpositions.fill_normal(5);
  embedding_backward(context, {.tokens = tokens,
                               .dout = dout,
                               .seq = c.seq,
                               .dtable = dtable,
                               .dpositions = with_positions ? dpositions.get() : Tensor{},
                               .workspace = workspace});
  return {dtable.floats(), dpositions.floats(), dtable.raw(), dpositions.raw()};
}

TEST(EmbeddingGpu, ForwardMatchesReferenceBitwise) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const EmbeddingCase& c : kEmbeddingCases)
    for (DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (bool with_positions : {false, true})
        EXPECT_EQ(forward(cpu, c, dtype, with_positions), forward(gpu, c, dtype, with_positions))
            << c.rows << "x" << c.hidden << " " << dtype_name(dtype) << " " << with_positions;
}

TEST(EmbeddingGpu, BackwardMatchesTheReference) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const EmbeddingCase& c : kEmbeddingCases) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Gradients expected = backward(cpu, c, dtype), actual = backward(gpu, c, dtype);
      SCOPED_TRACE(fmt::format("{}x{} vocab {} {}", c.rows, c.hidden, c.vocab, dtype_name(dtype)));
      // Sums of up to 18,000 values in another order: FP32 rounding errors add up to at most sqrt(18000) * 6e-8 = 8e-6.
      EXPECT_LT(testing::relative_error(actual.table, expected.table), 1e-5);
      // Both backends add over the batch in order and then to dpositions, so the results are bitwise equal.
      EXPECT_EQ(actual.position_bits, expected.position_bits);
      EXPECT_EQ(backward(gpu, c, dtype).table_bits, actual.table_bits) << "not deterministic";
    }
  }
}

TEST(EmbeddingGpu, BackwardWithoutPositionsKeepsTheirGradient) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  const Gradients expected = backward(cpu, kEmbeddingCases[2], DType::f32, false);
  const Gradients actual = backward(gpu, kEmbeddingCases[2], DType::f32, false);
  EXPECT_LT(testing::relative_error(actual.table, expected.table), 1e-6);
  EXPECT_EQ(actual.position_bits, expected.position_bits);
}

TEST(EmbeddingGpu, EveryRowIsAddedOnce) {
  TE_REQUIRE_GPU();
  // Ones are added exactly, so each row of the gradient is exactly the count of its token.
  const Context gpu = Context::cuda(0);
  for (const EmbeddingCase& c : kEmbeddingCases) {
    TestTensor tokens(gpu, DType::i32, {c.rows}), dout(gpu, DType::bf16, {c.rows, c.hidden});
    TestTensor dtable(gpu, DType::f32, {c.vocab, c.hidden});
    TestTensor workspace(gpu, DType::u8, {embedding_backward_workspace_bytes(gpu, c.rows, c.hidden)});
    const std::vector<int32_t> ids = tokens_of(c);
    tokens.fill_ints(ids);
    dout.fill_value(1.0f);
    dtable.fill_value(0.0f);
    embedding_backward(gpu, {.tokens = tokens, .dout = dout, .dtable = dtable, .workspace = workspace});
    std::vector<float> expected(static_cast<size_t>(c.vocab * c.hidden), 0.0f);
    for (int32_t id : ids)
      for (int64_t k = 0; k < c.hidden; ++k) expected[static_cast<size_t>(id * c.hidden + k)] += 1.0f;
    EXPECT_EQ(dtable.floats(), expected) << c.rows << "x" << c.hidden;
  }
}

TEST(EmbeddingGpu, SlicesOfTheVocabularyMatchTheReference) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  struct Result {
    std::vector<std::vector<uint8_t>> out;
    std::vector<float> dtable;
    std::vector<uint8_t> dtable_bits;
  };
  const auto run = [](const Context& context, const EmbeddingCase& c, DType dtype) {
    Result result;
    TestTensor tokens(context, DType::i32, {c.rows}), table(context, dtype, {c.vocab, c.hidden});
    TestTensor dout(context, dtype, {c.rows, c.hidden}), dtable(context, DType::f32, {c.vocab, c.hidden});
    TestTensor workspace(
        context, DType::u8,
        {std::max<int64_t>(1, embedding_backward_workspace_bytes(context, c.rows, c.hidden))});
    tokens.fill_ints(tokens_of(c));
    table.fill_normal(1), dout.fill_normal(3), dtable.fill_normal(4);
    const int64_t half = c.vocab / 2, borders[] = {0, half, half, std::min(half + 1, c.vocab), c.vocab};
    for (int slice = 0; slice < 4; ++slice) {
      const int64_t first = borders[slice], count = borders[slice + 1] - first;
      TestTensor out(context, dtype, {c.rows, c.hidden});
      embedding_forward(context, {.tokens = tokens,
                                  .table = table.get().slice_rows(first, count),
                                  .out = out,
                                  .first_token = first});
      embedding_backward(context, {.tokens = tokens,
                                   .dout = dout,
                                   .dtable = dtable.get().slice_rows(first, count),
                                   .workspace = workspace,
                                   .first_token = first});
      result.out.push_back(out.raw());
    }
    result.dtable = dtable.floats();
    result.dtable_bits = dtable.raw();
    return result;
  };
  for (const EmbeddingCase& c : kEmbeddingCases) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{}x{} vocab {} {}", c.rows, c.hidden, c.vocab, dtype_name(dtype)));
      const Result expected = run(cpu, c, dtype), actual = run(gpu, c, dtype);
      EXPECT_EQ(actual.out, expected.out);
      EXPECT_LT(testing::relative_error(actual.dtable, expected.dtable), 1e-5);
      EXPECT_EQ(run(gpu, c, dtype).dtable_bits, actual.dtable_bits) << "not deterministic";
    }
  }
}

TEST(EmbeddingGpu, ExplicitPositions) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t hidden : {64, 7}) {
      std::vector<uint8_t> bits[2];
      for (const bool on_gpu : {false, true}) {
        const Context& context = on_gpu ? gpu : cpu;
        TestTensor table(context, dtype, {9, hidden}), positions(context, dtype, {20, hidden});
        TestTensor tokens(context, DType::i32, {4}), ids(context, DType::i32, {4}),
            out(context, dtype, {4, hidden});
        table.fill_normal(1), positions.fill_normal(2);
        tokens.fill_ints({8, 0, 3, 3}), ids.fill_ints({19, 0, 5, 4});
        embedding_forward(context, {.tokens = tokens,
                                    .table = table,
                                    .positions = positions,
                                    .seq = 1,
                                    .out = out,
                                    .position_ids = ids});
        bits[on_gpu ? 1 : 0] = out.raw();
      }
      EXPECT_EQ(testing::count_different(bits[1], bits[0], dtype_size(dtype)), 0) << dtype_name(dtype);
    }
  }
}

}  // namespace
}  // namespace te::kernels
