// Attention within documents against the CPU reference: te-train's own kernels for heads of 64 and 128 without dropout
// (more tests in flash_bounds_gpu_test.cpp), cuDNN's ragged sequences for others.
#include <cmath>

#include "kernels/attention_documents.h"
#include "kernels/attention_problem.h"

namespace te::kernels {
namespace {

using te::testing::count_different;
using te::testing::relative_error;

struct PackedProblem : AttentionProblem {
  PackedProblem(const Context& on, const AttentionShape& of, const std::vector<int32_t>& documents)
      : AttentionProblem(on, of, documents, attention_workspace_bytes(on, of, DType::bf16)) {}
};

AttentionShape packed_shape(int64_t batch, int64_t seq, int64_t heads, int64_t groups, int64_t dim,
                            int64_t max_documents, float dropout = 0.0f) {
  AttentionShape shape = attention_shape(batch, seq, heads, groups, dim, dropout);
  shape.max_documents = max_documents;
  return shape;
}

TEST(AttentionDocumentsGpu, AgainstReference) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  struct Case {
    int64_t batch, seq, heads, groups, dim, spare;
  };
  // Grouped and ungrouped heads; sequence lengths that are and are not multiples of 128; max_documents exact or larger.
  for (const Case& c : {Case{2, 256, 4, 4, 64, 0}, Case{2, 256, 4, 2, 128, 9}, Case{1, 1024, 8, 8, 128, 40},
                        Case{4, 64, 2, 2, 80, 3}, Case{2, 256, 4, 4, 32, 0}, Case{3, 200, 6, 2, 80, 1},
                        Case{1, 1024, 8, 8, 96, 40}, Case{2, 330, 4, 1, 112, 0}}) {
    SCOPED_TRACE(fmt::format("batch {} seq {} heads {}/{} dim {}", c.batch, c.seq, c.heads, c.groups, c.dim));
    const std::vector<int32_t> documents = some_documents(c.batch, c.seq);
    const int64_t count = count_documents(documents.data(), c.batch, c.seq);
    const AttentionShape shape = packed_shape(c.batch, c.seq, c.heads, c.groups, c.dim, count + c.spare);
    PackedProblem expected(cpu, shape, documents), actual(gpu, shape, documents);
    expected.run();
    actual.run();
    // Bounds of attention_gpu_test.cpp. The backward pass starts from each backend's own o, so delta differs by its
    // rounding, too.
    EXPECT_LT(relative_error(actual.o.floats(), expected.o.floats()), 5e-3);
    const int64_t q = c.heads * c.dim, kv = c.groups * c.dim, bounds[] = {0, q, q + kv, q + 2 * kv};
    for (int part = 0; part < 3; ++part)
      EXPECT_LT(relative_error(actual.gradients(bounds[part], bounds[part + 1]),
                               expected.gradients(bounds[part], bounds[part + 1])),
                1.6e-2)
          << "index of dq, dk, dv: " << part;
    // cuDNN's lse is [tokens, heads].
    const bool own = attention_kernels(gpu, shape, DType::bf16) == AttentionKernels::flash;
    const std::vector<float> gpu_lse = actual.lse.floats(), cpu_lse = expected.lse.floats();
    for (int64_t row = 0; row < actual.rows; ++row)
      for (int64_t head = 0; head < c.heads; ++head) {
        const int64_t at = ((row / c.seq) * c.heads + head) * c.seq + row % c.seq;
        const float want = cpu_lse[at];
        ASSERT_NEAR(gpu_lse[own ? at : row * c.heads + head], want, 1e-4 * (1.0 + std::abs(want)))
            << row << " " << head;
      }
  }
}

// Both passes by te-train's own kernels; cuDNN adds dq with atomics.
TEST(AttentionDocumentsGpu, OtherDocumentsDoNotChangeResults) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t seq = 512, begin = 71, end = 74 + 64;
  const std::vector<int32_t> documents = some_documents(1, seq);
  ASSERT_EQ(documents[begin], begin);
  ASSERT_EQ(documents[end], end);
  for (const int64_t dim : {64, 128, 80}) {
    SCOPED_TRACE(dim);
    const AttentionShape shape = packed_shape(1, seq, 4, 2, dim, 32);
    PackedProblem one(gpu, shape, documents), other(gpu, shape, documents);
    std::vector<float> values = other.qkv.floats();
    const int64_t cols = other.qkv.get().cols();
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i)
      if (i / cols < begin || i / cols >= end) values[i] = 3.0f - values[i];
    other.qkv.fill(values);
    one.run(), other.run();
    const auto expect_same = [&](const te::testing::TestTensor& a, const te::testing::TestTensor& b) {
      const std::vector<float> left = a.floats(), right = b.floats();
      const int64_t width = a.get().cols();
      for (int64_t i = begin * width; i < end * width; ++i) ASSERT_EQ(left[i], right[i]) << i / width;
      EXPECT_NE(left, right);
    };
    expect_same(one.o, other.o);
    if (attention_kernels(gpu, shape, DType::bf16) == AttentionKernels::flash)
      expect_same(one.dqkv, other.dqkv);
  }
}

TEST(AttentionDocumentsGpu, DropoutKeepsExpectedFractionWithinDocuments) {
  TE_REQUIRE_GPU();
  // With q = 0 and v_j the unit vector of j, o holds the mask of query i for each key, divided by the number of visible
  // keys and 1 - dropout. With d_o of query i the unit vector of i, dv is the transpose of o.
  const Context gpu = Context::cuda(0);
  constexpr double kDropout = 0.25;
  const int64_t batch = 4, seq = 128, heads = 4, dim = 128;
  const std::vector<int32_t> documents = some_documents(batch, seq);
  PackedProblem problem(gpu, packed_shape(batch, seq, heads, heads, dim, 16, kDropout), documents);
  std::vector<float> qkv(static_cast<size_t>(problem.qkv.get().numel()), 0.0f);
  std::vector<float> d_o(static_cast<size_t>(problem.d_o.get().numel()), 0.0f);
  for (int64_t row = 0; row < problem.rows; ++row)
    for (int64_t head = 0; head < heads; ++head) {
      qkv[row * 3 * heads * dim + (2 * heads + head) * dim + row % seq] = 1.0f;
      d_o[(row * heads + head) * dim + row % seq] = 1.0f;
    }
  problem.qkv.fill(qkv), problem.d_o.fill(d_o);
  problem.run();
  const std::vector<float> o = problem.o.floats();
  const std::vector<float> dv = problem.gradients(2 * heads * dim, 3 * heads * dim);
  int64_t kept = 0, total = 0;
  for (int64_t row = 0; row < problem.rows; ++row) {
    const int64_t query = row % seq, first = documents[row];
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t key = 0; key < seq; ++key) {
        const float value = o[(row * heads + head) * dim + key];
        ASSERT_NEAR(dv[((row - query + key) * heads + head) * dim + query], value, 1e-2 * value);
        if (key > query || key < first) {
          ASSERT_EQ(value, 0.0f) << "query " << query << " attends to key " << key;
          continue;
        }
        ++total;
        if (value == 0.0f) continue;
        ++kept;
        const double expected = 1.0 / (static_cast<double>(query - first + 1) * (1.0 - kDropout));
        ASSERT_NEAR(value, expected, expected * 1e-2);
      }
    }
  }
  // Some 40,000 draws: four standard deviations are below 0.01.
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(total), 1.0 - kDropout, 0.01);
}

}  // namespace
}  // namespace te::kernels
