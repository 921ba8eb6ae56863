// CPU reference of the embedding against hand-computed values and a double-precision scatter-add.
#include "kernels/embedding/embedding.h"

#include <omp.h>

#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

TEST(EmbeddingForward, CopiesRowsWithoutPositions) {
  TestTensor table(cpu(), DType::f32, {3, 2}), tokens(cpu(), DType::i32, {4}), out(cpu(), DType::f32, {4, 2});
  table.fill({1, 2, 3, 4, 5, 6});
  tokens.fill_ints({2, 0, 0, 1});
  embedding_forward(cpu(), {.tokens = tokens, .table = table, .out = out});
  EXPECT_EQ(out.floats(), (std::vector<float>{5, 6, 1, 2, 1, 2, 3, 4}));
}

TEST(EmbeddingForward, AddsPositionsModuloSeqAndRoundsOnce) {
  // Two samples of three tokens; the positions table is longer than seq. In BF16, 256 + 1 is a tie and rounds to the
  // even 256, 258 + 1 to 260.
  TestTensor table(cpu(), DType::bf16, {2, 2}), positions(cpu(), DType::bf16, {4, 2});
  TestTensor tokens(cpu(), DType::i32, {6}), out(cpu(), DType::bf16, {6, 2});
  table.fill({256, 258, 10, 20});
  positions.fill({1, 1, 2, 4, 0.5, -1, 100, 100});
  tokens.fill_ints({0, 1, 1, 1, 0, 0});
  embedding_forward(cpu(), {.tokens = tokens, .table = table, .positions = positions, .seq = 3, .out = out});
  EXPECT_EQ(out.floats(), (std::vector<float>{256, 260, 12, 24, 10.5, 19, 11, 21, 258, 262, 256, 256}));
}

TEST(EmbeddingForward, AddsExplicitPositions) {
  TestTensor table(cpu(), DType::f32, {2, 2}), positions(cpu(), DType::f32, {4, 2}),
      ids(cpu(), DType::i32, {3});
  TestTensor tokens(cpu(), DType::i32, {3}), out(cpu(), DType::f32, {3, 2});
  table.fill({10, 20, 30, 40});
  positions.fill({1, 1, 2, 2, 3, 3, 4, 4});
  tokens.fill_ints({0, 1, 0});
  ids.fill_ints({3, 0, 3});
  const EmbeddingForward args{
      .tokens = tokens, .table = table, .positions = positions, .seq = 1, .out = out, .position_ids = ids};
  embedding_forward(cpu(), args);
  EXPECT_EQ(out.floats(), (std::vector<float>{14, 24, 31, 41, 14, 24}));
  ids.fill_ints({3, 0, 4});
  EXPECT_THROW(embedding_forward(cpu(), args), InternalError);
}

TEST(EmbeddingForward, RejectsShortPositions) {
  TestTensor table(cpu(), DType::f32, {3, 2}), tokens(cpu(), DType::i32, {4}), out(cpu(), DType::f32, {4, 2});
  TestTensor positions(cpu(), DType::f32, {3, 2});
  EXPECT_THROW(embedding_forward(
                   cpu(), {.tokens = tokens, .table = table, .positions = positions, .seq = 4, .out = out}),
               InternalError);
}

TEST(EmbeddingBackward, ScattersAndAccumulates) {
  TestTensor tokens(cpu(), DType::i32, {4}), dout(cpu(), DType::f32, {4, 2});
  TestTensor dtable(cpu(), DType::f32, {3, 2}), dpositions(cpu(), DType::f32, {3, 2});
  tokens.fill_ints({2, 0, 2, 2});
  dout.fill({1, 2, 3, 4, 5, 6, 7, 8});
  dtable.fill({10, 10, 20, 20, 30, 30});
  dpositions.fill({100, 100, 200, 200, 300, 300});
  embedding_backward(cpu(),
                     {.tokens = tokens, .dout = dout, .seq = 2, .dtable = dtable, .dpositions = dpositions});
  EXPECT_EQ(dtable.floats(), (std::vector<float>{13, 14, 20, 20, 43, 46}));
  EXPECT_EQ(dpositions.floats(), (std::vector<float>{106, 108, 210, 212, 300, 300}));
}

TEST(EmbeddingBackward, MatchesDoublePrecisionForEachDtype) {
  const int64_t rows = 300, hidden = 131, vocab = 17, seq = 100;
  for (DType dtype : {DType::f32, DType::bf16}) {
    TestTensor tokens(cpu(), DType::i32, {rows}), dout(cpu(), dtype, {rows, hidden});
    TestTensor dtable(cpu(), DType::f32, {vocab, hidden}), dpositions(cpu(), DType::f32, {seq, hidden});
    std::vector<int32_t> ids(rows);
    for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r % 3 == 0 ? 5 : r * 7 % (vocab - 1));
    tokens.fill_ints(ids);
    dout.fill_normal(1);
    dtable.fill_normal(2);
    dpositions.fill_normal(3);
    const std::vector<float> gradient = dout.floats(), table0 = dtable.floats(),
                             positions0 = dpositions.floats();
    std::vector<double> table(table0.begin(), table0.end()), positions(positions0.begin(), positions0.end());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < hidden; ++c) {
        table[ids[r] * hidden + c] += gradient[r * hidden + c];
        positions[r % seq * hidden + c] += gradient[r * hidden + c];
      }
    }
    embedding_backward(
        cpu(), {.tokens = tokens, .dout = dout, .seq = seq, .dtable = dtable, .dpositions = dpositions});
    // At most 118 FP32 additions per element: far less than 118 roundings of 6e-8 of a sum of magnitude ~10.
    EXPECT_LT(testing::relative_error(dtable.floats(), {table.begin(), table.end()}), 1e-6);
    EXPECT_LT(testing::relative_error(dpositions.floats(), {positions.begin(), positions.end()}), 1e-6);
    // Token 16 does not occur, so its row keeps its bits.
    const std::vector<float> after = dtable.floats();
    for (int64_t c = 0; c < hidden; ++c) EXPECT_EQ(after[16 * hidden + c], table0[16 * hidden + c]);
  }
}

TEST(EmbeddingBackward, DoesNotDependOnTheNumberOfThreads) {
  const int64_t rows = 200, hidden = 200;
  const int before = omp_get_max_threads();
  std::vector<std::vector<uint8_t>> results;
  for (int threads : {1, 3}) {
    omp_set_num_threads(threads);
    TestTensor tokens(cpu(), DType::i32, {rows}), dout(cpu(), DType::f32, {rows, hidden});
    TestTensor dtable(cpu(), DType::f32, {4, hidden});
    std::vector<int32_t> ids(rows);
    for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r * r % 4);
    tokens.fill_ints(ids);
    dout.fill_normal(1);
    dtable.fill_normal(2);
    embedding_backward(cpu(), {.tokens = tokens, .dout = dout, .dtable = dtable});
    results.push_back(dtable.raw());
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
}

/// Slices of a vocabulary of 17: one row, none, odd ones.
const int64_t kFirstTokens[] = {0, 1, 1, 8, 17};

TEST(EmbeddingForward, SlicesOfTheVocabularyAddUp) {
  const int64_t rows = 40, hidden = 5, vocab = 17, seq = 10;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (bool with_positions : {false, true}) {
      TestTensor table(cpu(), dtype, {vocab, hidden}), positions(cpu(), dtype, {seq, hidden});
      TestTensor tokens(cpu(), DType::i32, {rows}), whole(cpu(), dtype, {rows, hidden});
      table.fill_normal(1);
      positions.fill_normal(2);
      std::vector<int32_t> ids(rows);
      for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r * 5 % vocab);
      tokens.fill_ints(ids);
      EmbeddingForward args{.tokens = tokens, .table = table, .seq = seq, .out = whole};
      embedding_forward(cpu(), args);
      // Only the first rank adds the positions.
      std::vector<float> sum(rows * hidden, 0.0f), expected = whole.floats();
      const std::vector<float> shift = positions.floats();
      for (size_t slice = 0; slice + 1 < std::size(kFirstTokens); ++slice) {
        TestTensor out(cpu(), dtype, {rows, hidden});
        const int64_t first = kFirstTokens[slice], end = kFirstTokens[slice + 1];
        args.table = table.get().slice_rows(first, end - first);
        args.first_token = first;
        args.positions = with_positions && slice == 0 ? positions.get() : Tensor{};
        args.out = out;
        embedding_forward(cpu(), args);
        const std::vector<float> part = out.floats();
        for (int64_t i = 0; i < rows * hidden; ++i) {
          const int64_t r = i / hidden;
          const bool held = ids[r] >= first && ids[r] < end;
          const float position = shift[r % seq * hidden + i % hidden];
          float value = held ? expected[i] : 0.0f;
          if (args.positions) value += position;
          ASSERT_EQ(part[i], dtype == DType::bf16 ? to_float(to_bf16(value)) : value) << slice << " " << i;
        }
      }
    }
  }
}

TEST(EmbeddingBackward, SliceGetsOnlyItsRows) {
  const int64_t rows = 90, hidden = 70, vocab = 17, seq = 30;
  TestTensor tokens(cpu(), DType::i32, {rows}), dout(cpu(), DType::bf16, {rows, hidden});
  TestTensor whole(cpu(), DType::f32, {vocab, hidden}), sliced(cpu(), DType::f32, {vocab, hidden});
  TestTensor dpositions(cpu(), DType::f32, {seq, hidden}), again(cpu(), DType::f32, {seq, hidden});
  std::vector<int32_t> ids(rows);
  for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r * r % vocab);
  tokens.fill_ints(ids);
  dout.fill_normal(1);
  whole.fill_normal(2), sliced.fill_normal(2);
  dpositions.fill_normal(3), again.fill_normal(3);
  EmbeddingBackward args{.tokens = tokens, .dout = dout, .seq = seq, .dtable = whole};
  args.dpositions = dpositions;
  embedding_backward(cpu(), args);
  for (size_t slice = 0; slice + 1 < std::size(kFirstTokens); ++slice) {
    const int64_t first = kFirstTokens[slice];
    args.dtable = sliced.get().slice_rows(first, kFirstTokens[slice + 1] - first);
    args.first_token = first;
    args.dpositions = slice == 0 ? again.get() : Tensor{};
    embedding_backward(cpu(), args);
  }
  EXPECT_EQ(sliced.raw(), whole.raw());
  EXPECT_EQ(again.raw(), dpositions.raw());
}

}  // namespace
}  // namespace te::kernels
