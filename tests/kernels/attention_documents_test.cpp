// Attention within the documents of packed samples on the CPU.
#include "kernels/attention_naive.h"

namespace te::kernels {
namespace {

TEST(Attention, DocumentsAgainstNaive) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t seq : {1, 2, 75, 64, 330}) {
      check_against_naive(shape_of(2, seq, 2, 2, 16), dtype, true);
      check_against_naive(shape_of(3, seq, 4, 2, 8, 0.3f), dtype, true);
    }
  }
}

TEST(Attention, DocumentsDoNotAttendToOthers) {
  const Context context = Context::cpu();
  const int64_t seq = 200, begin = 71, end = 74 + 64;  // two documents in the middle
  AttentionShape shape = shape_of(1, seq, 2, 1, 16);
  std::vector<int32_t> start = some_documents(1, seq);
  shape.max_documents = count_documents(start.data(), 1, seq);
  ASSERT_EQ(start[begin], begin);
  ASSERT_EQ(start[end], end);
  Problem one(context, shape, DType::bf16), other(context, shape, DType::bf16);
  for (Problem* problem : {&one, &other}) problem->document_start = {start.data(), DType::i32, {seq}};
  // Everything outside the two documents changes; inside, both passes keep every bit.
  const auto change = [&](TestTensor& tensor) {
    std::vector<float> values = tensor.floats();
    const int64_t cols = tensor.get().cols();
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / cols;
      if (row < begin || row >= end) values[i] = 3.0f - values[i];
    }
    tensor.fill(values);
  };
  change(other.qkv), change(other.d_o);
  for (Problem* problem : {&one, &other}) problem->forward(), problem->backward();
  for (const auto& [a, b] : {std::pair{&one.o, &other.o}, {&one.dqkv, &other.dqkv}}) {
    const std::vector<float> x = a->floats(), y = b->floats();
    const int64_t cols = a->get().cols();
    for (int64_t i = begin * cols; i < end * cols; ++i) ASSERT_EQ(x[i], y[i]) << i / cols;
    EXPECT_NE(x, y);
  }
}

TEST(Attention, OneDocumentEqualsNoMask) {
  const Context context = Context::cpu();
  AttentionShape shape = shape_of(2, 150, 4, 2, 16, 0.1f);
  Problem plain(context, shape, DType::f32);
  shape.max_documents = 2;
  Problem masked(context, shape, DType::f32);
  std::vector<int32_t> start(300, 0);
  masked.document_start = {start.data(), DType::i32, {300}};
  plain.forward(), plain.backward(), masked.forward(), masked.backward();
  EXPECT_EQ(masked.o.raw(), plain.o.raw());
  EXPECT_EQ(masked.lse.raw(), plain.lse.raw());
  EXPECT_EQ(masked.dqkv.raw(), plain.dqkv.raw());
}

TEST(Attention, RejectsWrongDocuments) {
  const Context context = Context::cpu();
  AttentionShape shape = shape_of(1, 4, 2, 2, 8);
  shape.max_documents = 2;
  Problem problem(context, shape, DType::f32);
  EXPECT_THROW(problem.forward(), InternalError);  // document_start is missing
  std::vector<int32_t> start;
  problem.document_start = {nullptr, DType::i32, {4}};
  const auto forward = [&](std::vector<int32_t> values) {
    start = std::move(values);
    problem.document_start.data = start.data();
    problem.forward();
  };
  forward({0, 0, 2, 2});
  EXPECT_THROW(forward({0, 1, 2, 2}), InternalError);  // three documents
  EXPECT_THROW(forward({0, 0, 3, 3}), InternalError);  // begins after its token
  EXPECT_THROW(forward({0, 1, 0, 0}), InternalError);  // decreases
  EXPECT_THROW(forward({0, 0, -1, 0}), InternalError);
}

}  // namespace
}  // namespace te::kernels
