// Documents and windows by te-train's own kernels for Hopper, against the CPU reference, and against themselves.
#include <cmath>
#include <optional>

#include "kernels/attention/flash_attention.h"
#include "kernels/attention_documents.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using te::testing::relative_error;
using te::testing::TestTensor;

struct Case {
  int64_t batch, seq, heads, groups, dim;
  bool documents;
  int64_t window;
};

std::string text(const Case& c) {
  return fmt::format("batch {} seq {} heads {}/{} dim {}{}, window {}", c.batch, c.seq, c.heads, c.groups,
                     c.dim, c.documents ? ", documents" : "", c.window);
}

/// The tensors of both passes on one device.
struct Problem {
  Problem(const Context& on, const Case& c)
      : context(on),
        documents(some_documents(c.batch, c.seq)),
        shape(shape_of(c)),
        rows(c.batch * c.seq),
        qkv(context, DType::bf16, {rows, (c.heads + 2 * c.groups) * c.dim}),
        o(context, DType::bf16, {rows, c.heads * c.dim}),
        lse(context, DType::f32, {c.batch, c.heads, c.seq}),
        d_o(context, DType::bf16, {rows, c.heads * c.dim}),
        dqkv(context, DType::bf16, qkv.get().shape),
        workspace(context, DType::u8,
                  {std::max(cuda::flash_forward_workspace_bytes(shape),
                            cuda::flash_backward_workspace_bytes(shape))}),
        start(context, DType::i32, {rows}) {
    qkv.fill_normal(1, 1.5f);
    d_o.fill_normal(2);
    start.fill_ints(documents);
  }
  AttentionShape shape_of(const Case& c) const {
    AttentionShape of{c.batch, c.seq, c.heads, c.groups, c.dim, 1.0f / std::sqrt(static_cast<float>(c.dim))};
    if (c.documents) of.max_documents = count_documents(documents.data(), c.batch, c.seq);
    of.window = c.window;
    return of;
  }
  AttentionForward forward() const { return {shape, qkv, o, lse, workspace, 0, start}; }
  AttentionBackward backward() const { return {shape, qkv, o, lse, d_o, dqkv, workspace, 0, start}; }
  void run_reference() {
    attention_forward(context, forward());
    attention_backward(context, backward());
  }
  void run_flash() {
    cuda::flash_forward(context, forward());
    cuda::flash_backward(context, backward());
  }
  /// Columns [begin, end) of every row of dqkv.
  std::vector<float> gradients(int64_t begin, int64_t end) const {
    const std::vector<float> all = dqkv.floats();
    const int64_t cols = dqkv.get().cols();
    std::vector<float> part;
    for (int64_t row = 0; row < rows; ++row)
      part.insert(part.end(), all.begin() + row * cols + begin, all.begin() + row * cols + end);
    return part;
  }

  const Context& context;
  std::vector<int32_t> documents;
  AttentionShape shape;
  int64_t rows;
  TestTensor qkv, o, lse, d_o, dqkv, workspace, start;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t dim : {64, 128}) {
    for (const int64_t seq : {2, 64, 127, 200, 256, 330, 1024}) {
      all.push_back({2, seq, 4, 2, dim, true, 0});
      for (const int64_t window : {1, 63, 128, 129, 300})
        if (window < seq)
          for (const bool documents : {false, true}) all.push_back({2, seq, 4, 4, dim, documents, window});
    }
    all.push_back({3, 900, 6, 1, dim, true, 0});
  }
  return all;
}

// The bounds of attention_gpu_test.cpp.
TEST(FlashBoundsGpu, AgainstReference) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    Problem expected(cpu, c), actual(gpu, c);
    ASSERT_TRUE(cuda::flash_supported(actual.shape) && cuda::is_bounded(actual.shape));
    expected.run_reference();
    actual.run_flash();
    EXPECT_LT(relative_error(actual.o.floats(), expected.o.floats()), 5e-3);
    EXPECT_LT(relative_error(actual.lse.floats(), expected.lse.floats()), 1e-5);
    const int64_t q = c.heads * c.dim, kv = c.groups * c.dim, bounds[] = {0, q, q + kv, q + 2 * kv};
    // A softmax of one key has no gradient: what is left of dq and dk is the rounding of sums that cancel.
    for (int part = c.window == 1 ? 2 : 0; part < 3; ++part)
      EXPECT_LT(relative_error(actual.gradients(bounds[part], bounds[part + 1]),
                               expected.gradients(bounds[part], bounds[part + 1])),
                1.6e-2)
          << "dq, dk, dv number " << part;
  }
}

TEST(FlashBoundsGpu, Repeats) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const int64_t dim : {64, 128}) {
    Problem problem(gpu, {4, 2048, 8, 4, dim, true, 700});
    std::optional<std::vector<uint8_t>> o, gradients;
    for (int turn = 0; turn < 5; ++turn) {
      problem.run_flash();
      if (o) {
        EXPECT_EQ(problem.o.raw(), *o);
        EXPECT_EQ(problem.dqkv.raw(), *gradients);
      }
      o = problem.o.raw(), gradients = problem.dqkv.raw();
      gpu.zero(problem.o), gpu.zero(problem.dqkv);
    }
  }
}

// A document, or a window, that is the whole sequence bounds nothing: the bits are those without.
TEST(FlashBoundsGpu, BoundsThatBoundNothingChangeNoBit) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const int64_t dim : {64, 128}) {
    Problem plain(gpu, {2, 700, 4, 2, dim, false, 0}), one(gpu, {2, 700, 4, 2, dim, false, 0});
    one.shape.max_documents = 2;
    one.start.fill_ints(std::vector<int32_t>(static_cast<size_t>(one.rows)));
    const TestTensor workspace(gpu, DType::u8, {cuda::flash_backward_workspace_bytes(one.shape)});
    plain.run_flash();
    AttentionForward forward = one.forward();
    AttentionBackward backward = one.backward();
    forward.workspace = backward.workspace = workspace;
    cuda::flash_forward(gpu, forward);
    cuda::flash_backward(gpu, backward);
    EXPECT_EQ(one.o.raw(), plain.o.raw());
    EXPECT_EQ(one.lse.raw(), plain.lse.raw());
    EXPECT_EQ(one.dqkv.raw(), plain.dqkv.raw());
  }
}

}  // namespace
}  // namespace te::kernels
