// Documents, windows and query ranges with te-train's own Hopper kernels, against the CPU reference and against
// themselves.
#include <algorithm>
#include <optional>

#include "attention_ranges.h"
#include "kernels/attention/flash_attention.h"
#include "kernels/attention_documents.h"
#include "kernels/attention_problem.h"
#include "testing/abilities.h"

namespace te::kernels {
namespace {

using te::testing::relative_error;

struct FlashCase {
  int64_t batch, seq, heads, groups, dim;
  bool documents;
  int64_t window;
};

std::string text(const FlashCase& c) {
  return fmt::format("batch {} seq {} heads {}/{} dim {}{}, window {}", c.batch, c.seq, c.heads, c.groups,
                     c.dim, c.documents ? ", documents" : "", c.window);
}

AttentionShape shape_of(const FlashCase& c) {
  AttentionShape shape = attention_shape(c.batch, c.seq, c.heads, c.groups, c.dim);
  if (c.documents)
    shape.max_documents = count_documents(some_documents(c.batch, c.seq).data(), c.batch, c.seq);
  shape.window = c.window;
  return shape;
}

struct FlashProblem : AttentionProblem {
  FlashProblem(const Context& on, const AttentionShape& of)
      : AttentionProblem(
            on, of, some_documents(of.batch, of.seq),
            std::max(cuda::flash_forward_workspace_bytes(of), cuda::flash_backward_workspace_bytes(of))) {}
  void run_flash() {
    cuda::flash_forward(context, forward());
    cuda::flash_backward(context, backward());
  }
};

std::vector<FlashCase> flash_cases() {
  std::vector<FlashCase> all;
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

// Bounds of attention_gpu_test.cpp.
TEST(FlashBoundsGpu, AgainstReference) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const FlashCase& c : flash_cases()) {
    SCOPED_TRACE(text(c));
    FlashProblem expected(cpu, shape_of(c)), actual(gpu, shape_of(c));
    ASSERT_TRUE(cuda::flash_supported(actual.shape) && cuda::is_bounded(actual.shape));
    expected.run();
    actual.run_flash();
    EXPECT_LT(relative_error(actual.o.floats(), expected.o.floats()), 5e-3);
    EXPECT_LT(relative_error(actual.lse.floats(), expected.lse.floats()), 1e-5);
    const int64_t q = c.heads * c.dim, kv = c.groups * c.dim, bounds[] = {0, q, q + kv, q + 2 * kv};
    // A softmax of one key has no gradient: dq and dk contain only the rounding errors of sums that cancel.
    for (int part = c.window == 1 ? 2 : 0; part < 3; ++part)
      EXPECT_LT(relative_error(actual.gradients(bounds[part], bounds[part + 1]),
                               expected.gradients(bounds[part], bounds[part + 1])),
                1.6e-2)
          << "index of dq, dk, dv: " << part;
  }
}

// Outputs and workspace are filled with NaN before, which must not have any effect.
TEST(FlashBoundsGpu, IsDeterministic) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  for (const int64_t dim : {64, 128}) {
    FlashProblem problem(gpu, shape_of({4, 2048, 8, 4, dim, true, 700}));
    std::optional<std::vector<uint8_t>> o, lse, gradients;
    for (int iteration = 0; iteration < 10; ++iteration) {
      for (const auto* tensor : {&problem.o, &problem.lse, &problem.dqkv, &problem.workspace})
        gpu.fill_bytes(tensor->get(), 0xff);
      problem.run_flash();
      if (o) {
        EXPECT_EQ(problem.o.raw(), *o);
        EXPECT_EQ(problem.lse.raw(), *lse);
        EXPECT_EQ(problem.dqkv.raw(), *gradients);
      }
      o = problem.o.raw(), lse = problem.lse.raw(), gradients = problem.dqkv.raw();
    }
  }
}

// A document or window that covers the whole sequence restricts nothing: bitwise equal results.
TEST(FlashBoundsGpu, UnrestrictiveBoundsKeepAllBits) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  for (const int64_t dim : {64, 128}) {
    AttentionShape shape = attention_shape(2, 700, 4, 2, dim);
    FlashProblem plain(gpu, shape);
    shape.max_documents = 2;
    FlashProblem one(gpu, shape);
    one.start.fill_ints(std::vector<int32_t>(static_cast<size_t>(one.rows)));
    plain.run_flash(), one.run_flash();
    EXPECT_EQ(one.o.raw(), plain.o.raw());
    EXPECT_EQ(one.lse.raw(), plain.lse.raw());
    EXPECT_EQ(one.dqkv.raw(), plain.dqkv.raw());
  }
}

RangeProblem range_problem(const FlashCase& c) {
  RangeProblem problem(shape_of(c), DType::bf16);
  if (c.documents) problem.document_start = some_documents(c.batch, c.seq);
  return problem;
}

std::vector<FlashCase> range_cases() {
  std::vector<FlashCase> all;
  for (const int64_t dim : {64, 128})
    for (const bool documents : {false, true})
      for (const int64_t window : {0, 1, 70, 300}) all.push_back({2, 1024, 4, 2, dim, documents, window});
  return all;
}

// A range begins at a key block and may end anywhere: on or off a query block, or after one query.
TEST(FlashBoundsGpu, RangesOfAnyLengthAgainstReference) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const FlashCase& c : range_cases()) {
    const RangeProblem problem = range_problem(c);
    for (const std::vector<Chunk>& chunks :
         {std::vector<Chunk>{{0, 1}, {128, 1}}, std::vector<Chunk>{{0, 200}, {512, 63}},
          std::vector<Chunk>{{896, 128}}, std::vector<Chunk>{{384, 640}, {0, 384}}}) {
      SCOPED_TRACE(
          fmt::format("{}, first range: {} queries at {}", text(c), chunks[0].count, chunks[0].position));
      const AttentionResults expected = attend_in_chunks(cpu, problem, {chunks}),
                             actual = attend_in_chunks(gpu, problem, {chunks});
      EXPECT_LT(relative_error(actual.o, expected.o), 5e-3);
      EXPECT_LT(relative_error(actual.lse, expected.lse), 1e-5);
      const auto d_values = [&](const AttentionResults& of) {
        return attention_ranges::last_columns(of.dqkv, problem.qkv_cols(),
                                              problem.o_cols() + problem.kv_cols() / 2);
      };
      EXPECT_LT(relative_error(d_values(actual), d_values(expected)), 1.6e-2);
      // A softmax of one key has no gradient: dq and dk contain only the rounding errors of sums that cancel.
      if (c.window != 1 && chunks[0].count > 1) {
        EXPECT_LT(relative_error(actual.dqkv, expected.dqkv), 1.6e-2);
      }
    }
  }
}

// A query sees the same keys as in the full sequence, in the same order: o, lse and dq are bitwise equal.
TEST(FlashBoundsGpu, QueriesOfARangeEqualFullSequenceBitwise) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  for (const FlashCase& c : range_cases()) {
    SCOPED_TRACE(text(c));
    const RangeProblem problem = range_problem(c);
    const AttentionResults whole = attend_full(gpu, problem);
    for (const int ranks : {1, 2, 4}) {
      const AttentionResults ranges = attend_in_ranges(gpu, problem, ranks);
      EXPECT_EQ(ranges.o, whole.o);
      EXPECT_EQ(ranges.lse, whole.lse);
      const auto queries = [&](const AttentionResults& of) {
        std::vector<float> dq;
        for (int64_t row = 0; row < c.batch * c.seq; ++row) {
          const auto at = of.dqkv.begin() + row * problem.qkv_cols();
          dq.insert(dq.end(), at, at + problem.o_cols());
        }
        return dq;
      };
      EXPECT_EQ(queries(ranges), queries(whole));
    }
  }
}

}  // namespace
}  // namespace te::kernels
