// FP32 attention kernels (kernels/attention/tiled_attention.h) against the CPU reference with the same inputs: FP32 for
// all shapes, and 16-bit cases that the other kernels do not support.
#include <algorithm>
#include <cmath>
#include <string>

#include "attention_ranges.h"
#include "kernels/attention_documents.h"

namespace te::kernels {
namespace {

using te::testing::relative_error;

/// A shape that is not a multiple of any tile by default.
struct TiledCase {
  int64_t batch = 2, seq = 200, heads = 4, groups = 2, dim = 64, window = 0;
  bool documents = false;
  float dropout = 0.0f;

  AttentionShape shape() const {
    AttentionShape s{batch, seq, heads, groups, dim, 1.0f / std::sqrt(static_cast<float>(dim)), dropout};
    s.window = window;
    s.max_documents = documents ? batch * seq : 0;
    return s;
  }
  RangeProblem problem(DType dtype) const {
    RangeProblem p(shape(), dtype);
    if (documents) p.document_start = some_documents(batch, seq);
    return p;
  }
  std::string label(DType dtype) const {
    return fmt::format("{} batch {} seq {} heads {}/{} dim {} window {} documents {} dropout {}",
                       dtype_name(dtype), batch, seq, heads, groups, dim, window, documents, dropout);
  }
};

/// Both backends compute in FP32 from the inputs to the single rounding of each result, and drop the same elements. In
/// FP32 they differ by the order of sums and the last bits of exp. With 16 bits a few results are rounded differently,
/// and the backward pass reads the rounded o.
struct Bounds {
  double o, lse, dqkv;
};
Bounds bounds_of(DType dtype) {
  if (dtype == DType::f32) return {5e-6, 1e-6, 2e-5};
  return dtype == DType::bf16 ? Bounds{1e-3, 1e-6, 2e-3} : Bounds{2e-4, 1e-6, 5e-4};
}

void expect_close(const AttentionResults& actual, const AttentionResults& expected, DType dtype) {
  const Bounds bounds = bounds_of(dtype);
  EXPECT_LT(relative_error(actual.o, expected.o), bounds.o);
  EXPECT_LT(relative_error(actual.lse, expected.lse), bounds.lse);
  EXPECT_LT(relative_error(actual.dqkv, expected.dqkv), bounds.dqkv);
}

void check(const Context& gpu, const TiledCase& c, DType dtype) {
  SCOPED_TRACE(c.label(dtype));
  const RangeProblem problem = c.problem(dtype);
  expect_close(attend_full(gpu, problem), attend_full(Context::cpu(), problem), dtype);
}

TEST(AttentionTiledGpu, Fp32AgainstTheReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const int64_t seq : {1, 2, 7, 63, 64, 65, 128, 200, 385}) check(gpu, {.seq = seq}, DType::f32);
  for (const int64_t dim : {8, 16, 80, 96, 128, 136, 192, 256})
    check(gpu, {.seq = 150, .dim = dim}, DType::f32);
  for (const int64_t groups : {1, 2, 4, 8}) check(gpu, {.heads = 8, .groups = groups, .dim = 32}, DType::f32);
  check(gpu, {.batch = 4, .seq = 1024, .heads = 12, .groups = 12}, DType::f32);
}

TEST(AttentionTiledGpu, Fp32MasksAgainstTheReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const int64_t dim : {64, 128, 256})
    for (const int64_t window : {0, 1, 77, 199})
      for (const bool documents : {false, true})
        for (const float dropout : {0.0f, 0.25f})
          check(gpu, {.dim = dim, .window = window, .documents = documents, .dropout = dropout}, DType::f32);
}

// One position, and masks that neither cuDNN nor the other kernels combine, for every width of heads.
TEST(AttentionTiledGpu, SixteenBitsAgainstTheReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const int64_t dim : {136, 192, 256})
      check(gpu, {.dim = dim, .window = 50, .documents = true, .dropout = 0.1f}, dtype);
    check(gpu, {.seq = 1}, dtype);
    for (const int64_t dim : {64, 80, 128}) {
      if (dtype == DType::f16 || dim == 80) check(gpu, {.dim = dim, .window = 50, .documents = true}, dtype);
      check(gpu, {.dim = dim, .window = 50, .dropout = 0.1f}, dtype);
    }
  }
}

// Probabilities of 1 and 0: scores of several hundred.
TEST(AttentionTiledGpu, LargeScores) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const TiledCase c{.seq = 300, .dim = 128};
  RangeProblem problem = c.problem(DType::f32);
  for (float& value : problem.qkv) value *= 6.0f;
  const AttentionResults actual = attend_full(gpu, problem), expected = attend_full(Context::cpu(), problem);
  // A score of 500 is accurate to 3e-5, and so is the logarithm of its probability.
  EXPECT_LT(relative_error(actual.o, expected.o), 1e-4);
  EXPECT_LT(relative_error(actual.lse, expected.lse), 1e-6);
  EXPECT_LT(relative_error(actual.dqkv, expected.dqkv), 3e-4);
}

TEST(AttentionTiledGpu, RangesMatchFullSequenceReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const TiledCase& c :
       {TiledCase{.seq = 512}, TiledCase{.seq = 512, .dim = 256, .window = 100},
        TiledCase{.seq = 512, .documents = true, .dropout = 0.2f},
        TiledCase{.seq = 520, .groups = 1, .dim = 128, .window = 70, .documents = true}}) {
    SCOPED_TRACE(c.label(DType::f32));
    const RangeProblem problem = c.problem(DType::f32);
    const AttentionResults whole = attend_full(Context::cpu(), problem);
    for (const int ranks : {2, 4}) expect_close(attend_in_ranges(gpu, problem, ranks), whole, DType::f32);
  }
}

TEST(AttentionTiledGpu, IsDeterministic) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const int64_t dim : {64, 256}) {
    const TiledCase c{
        .batch = 4, .seq = 1000, .heads = 8, .dim = dim, .window = 300, .documents = true, .dropout = 0.1f};
    const RangeProblem problem = c.problem(DType::f32);
    const AttentionResults first = attend_full(gpu, problem);
    for (int i = 0; i < 5; ++i) {
      const AttentionResults again = attend_full(gpu, problem);
      EXPECT_EQ(again.o, first.o);
      EXPECT_EQ(again.lse, first.lse);
      EXPECT_EQ(again.dqkv, first.dqkv);
    }
  }
}

// d (o . w) along a random direction of q, k and v, by central differences of the GPU's forward pass. Sums of 10^5
// products of size one are accurate to about 1e-4; a step of 1e-2 causes an error of the order of its square.
TEST(AttentionTiledGpu, GradientsAgreeWithFiniteDifferences) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const TiledCase& c :
       {TiledCase{}, TiledCase{.dim = 256, .window = 33}, TiledCase{.documents = true, .dropout = 0.3f}}) {
    SCOPED_TRACE(c.label(DType::f32));
    const RangeProblem problem = c.problem(DType::f32);
    const AttentionResults at = attend_full(gpu, problem);
    const std::vector<float> direction =
        te::testing::normal_values(static_cast<int64_t>(problem.qkv.size()), 11);
    const auto objective = [&](double step) {
      RangeProblem moved = problem;
      for (size_t i = 0; i < direction.size(); ++i) moved.qkv[i] += static_cast<float>(step) * direction[i];
      const AttentionResults result = attend_full(gpu, moved);
      double sum = 0;
      for (size_t i = 0; i < result.o.size(); ++i) sum += double{result.o[i]} * problem.d_o[i];
      return sum;
    };
    constexpr double kStep = 1e-2;
    const double slope = (objective(kStep) - objective(-kStep)) / (2 * kStep);
    double expected = 0, size = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      expected += double{at.dqkv[i]} * direction[i];
      size += double{at.dqkv[i]} * at.dqkv[i];
    }
    EXPECT_NEAR(slope, expected, 5e-3 * std::sqrt(size));
  }
}

}  // namespace
}  // namespace te::kernels
