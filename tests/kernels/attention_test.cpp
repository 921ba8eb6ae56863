// CPU attention against the definition in double precision (full score matrix, no blocks), whose own gradient is
// checked against finite differences.
#include <omp.h>

#include <cmath>

#include "kernels/attention_naive.h"
#include "kernels/common/exp_cpu.h"

namespace te::kernels {
namespace {

TEST(AttentionReference, NaiveGradientAgainstFiniteDifferences) {
  const AttentionShape shape = shape_of(2, 5, 4, 2, 3, 0.25f);
  const Naive naive(shape);
  Values qkv = widen(te::testing::normal_values(2 * 5 * naive.qkv_cols(), 1));
  const Values d_o = widen(te::testing::normal_values(2 * 5 * naive.o_cols(), 2));
  Values o, lse, dqkv;
  naive.run(qkv, o, lse, &d_o, &dqkv);
  const auto loss = [&] {
    naive.run(qkv, o, lse);
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * d_o[i];
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < qkv.size(); ++i) {
    const double value = qkv[i];
    qkv[i] = value + kStep;
    const double above = loss();
    qkv[i] = value - kStep;
    const double below = loss();
    qkv[i] = value;
    ASSERT_NEAR((above - below) / (2 * kStep), dqkv[i], 1e-8) << "element " << i;
  }
}

TEST(Attention, Fp32GradientAgainstFiniteDifferences) {
  const Context context = Context::cpu();
  Problem problem(context, shape_of(1, 7, 4, 2, 8), DType::f32);
  problem.forward();
  problem.backward();
  const std::vector<float> gradient = problem.dqkv.floats(), d_o = problem.d_o.floats();
  std::vector<float> qkv = problem.qkv.floats();
  const auto loss = [&] {
    problem.qkv.fill(qkv);
    problem.forward();
    const std::vector<float> o = problem.o.floats();
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += double{o[i]} * d_o[i];
    return sum;
  };
  constexpr float kStep = 1e-2f;
  for (size_t i = 0; i < qkv.size(); ++i) {
    const float value = qkv[i];
    qkv[i] = value + kStep;
    const double above = loss(), x_above = qkv[i];
    qkv[i] = value - kStep;
    const double below = loss(), x_below = qkv[i];
    qkv[i] = value;
    // Error: step^2 / 6 times a third derivative of order 1 to 10, and FP32 noise (about 1e-6) over the step.
    ASSERT_NEAR((above - below) / (x_above - x_below), gradient[i], 2e-3) << "element " << i;
  }
}

TEST(Attention, AgainstNaiveInFp32AndBf16) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t seq : {1, 7, 64, 200}) {
      check_against_naive(shape_of(2, seq, 2, 2, 32), dtype);
      check_against_naive(shape_of(1, seq, 6, 2, 20), dtype);  // three heads per group
      check_against_naive(shape_of(2, seq, 4, 1, 8), dtype);
    }
  }
}

TEST(Attention, DropoutAgainstNaiveWithTheSameMask) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t seq : {1, 7, 66, 130}) check_against_naive(shape_of(2, seq, 4, 2, 16, 0.3f), dtype);
}

// Windows that end within a key block, at its border, and far after the first blocks.
TEST(Attention, SlidingWindowAgainstNaive) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [seq, window] :
         {std::pair<int64_t, int64_t>{2, 1}, {7, 3}, {200, 1}, {200, 64}, {200, 65}, {200, 199}}) {
      AttentionShape shape = shape_of(2, seq, 4, 2, 16);
      shape.window = window;
      check_against_naive(shape, dtype);
      check_against_naive(shape, dtype, true);
      if (dtype == DType::bf16) continue;  // one key per query: the gradient consists of rounding errors
      shape.dropout = 0.3f;
      check_against_naive(shape, dtype);
    }
  }
}

TEST(Attention, SliceOfHeadsDropsTheSameElements) {
  const Context context = Context::cpu();
  const int64_t batch = 2, seq = 70, heads = 6, groups = 3, dim = 8;
  Problem whole(context, shape_of(batch, seq, heads, groups, dim, 0.3f), DType::f32);
  whole.forward();
  whole.backward();
  const auto head_of = [&](const std::vector<float>& values, int64_t total, int64_t row, int64_t head) {
    const auto begin = values.begin() + (row * total + head) * dim;
    return std::vector<float>(begin, begin + dim);
  };
  const std::vector<float> qkv = whole.qkv.floats(), d_o = whole.d_o.floats();
  const std::vector<float> o = whole.o.floats(), dqkv = whole.dqkv.floats();
  for (int64_t group = 0; group < groups; ++group) {  // each rank has one query group and its two heads
    AttentionShape shape = shape_of(batch, seq, 2, 1, dim, 0.3f);
    shape.first_head = 2 * group, shape.total_heads = heads;
    Problem part(context, shape, DType::f32);
    const int64_t sources[] = {2 * group, 2 * group + 1, heads + group, heads + groups + group};
    std::vector<float> part_qkv, part_d_o;
    for (int64_t row = 0; row < batch * seq; ++row) {
      for (int64_t source : sources)
        for (float x : head_of(qkv, heads + 2 * groups, row, source)) part_qkv.push_back(x);
      for (int64_t h : {0, 1})
        for (float x : head_of(d_o, heads, row, 2 * group + h)) part_d_o.push_back(x);
    }
    part.qkv.fill(part_qkv), part.d_o.fill(part_d_o);
    part.forward();
    part.backward();
    const std::vector<float> part_o = part.o.floats(), part_dqkv = part.dqkv.floats();
    for (int64_t row = 0; row < batch * seq; ++row) {
      for (int64_t h : {0, 1}) ASSERT_EQ(head_of(part_o, 2, row, h), head_of(o, heads, row, 2 * group + h));
      for (int64_t i = 0; i < 4; ++i)
        ASSERT_EQ(head_of(part_dqkv, 4, row, i), head_of(dqkv, heads + 2 * groups, row, sources[i]));
    }
  }
}

TEST(Attention, DropoutKeepsExpectedFraction) {
  // With q = 0 all probabilities of query i are 1 / (i + 1); with v = 1, o is the kept fraction / (1 - dropout).
  const Context context = Context::cpu();
  constexpr float kDropout = 0.2f;
  Problem problem(context, shape_of(2, 256, 4, 4, 8, kDropout), DType::f32);
  problem.qkv.fill_value(0.0f);
  std::vector<float> qkv(static_cast<size_t>(problem.qkv.get().numel()), 0.0f);
  const int64_t cols = problem.qkv.get().cols();
  for (size_t i = 0; i < qkv.size(); ++i)
    qkv[i] = static_cast<int64_t>(i) % cols >= cols * 2 / 3 ? 1.0f : 0.0f;
  problem.qkv.fill(qkv);
  problem.forward();
  const std::vector<float> o = problem.o.floats();
  double kept = 0, total = 0;
  for (int64_t row = 0; row < 512; ++row) {
    const double visible = static_cast<double>(row % 256 + 1);
    for (int64_t head = 0; head < 4; ++head) {
      kept += o[static_cast<size_t>(row * 32 + head * 8)] * visible * (1.0 - kDropout);
      total += visible;
    }
  }
  // 263,168 draws: three standard deviations are 0.0023.
  EXPECT_NEAR(kept / total, 1.0 - kDropout, 0.0024);
}

TEST(Attention, DoesNotDependOnTheNumberOfThreads) {
  const Context context = Context::cpu();
  const AttentionShape shape = shape_of(2, 130, 4, 2, 32, 0.1f);
  Problem one(context, shape, DType::bf16), many(context, shape, DType::bf16);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  one.forward(), one.backward();
  omp_set_num_threads(4);
  many.forward(), many.backward();
  omp_set_num_threads(threads);
  EXPECT_EQ(count_different(one.o.raw(), many.o.raw(), 2), 0);
  EXPECT_EQ(count_different(one.dqkv.raw(), many.dqkv.raw(), 2), 0);
}

TEST(Attention, LargeScoresStayFinite) {
  const Context context = Context::cpu();
  Problem problem(context, shape_of(1, 100, 2, 2, 16), DType::f32);
  problem.qkv.fill_normal(
      3, 60.0f);  // scores of some thousands: exp() without subtracting the maximum overflows
  problem.forward();
  problem.backward();
  for (float x : problem.o.floats()) ASSERT_TRUE(std::isfinite(x));
  for (float x : problem.dqkv.floats()) ASSERT_TRUE(std::isfinite(x));
}

TEST(Attention, ReportsUnsupportedShapes) {
  const AttentionShape good = shape_of(1, 16, 4, 2, 64);
  EXPECT_STREQ(attention_unsupported(DeviceKind::cpu, good, DType::f32), "");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_STREQ(attention_unsupported(DeviceKind::cuda, good, dtype), "");
    EXPECT_STREQ(attention_unsupported(DeviceKind::cuda, shape_of(1, 1, 4, 2, 256), dtype), "");
    EXPECT_STRNE(attention_unsupported(DeviceKind::cuda, shape_of(1, 16, 4, 2, 264), dtype), "");
    EXPECT_STRNE(attention_unsupported(DeviceKind::cuda, shape_of(1, 16, 4, 2, 20), dtype), "");
    EXPECT_STRNE(attention_unsupported(DeviceKind::cuda, shape_of(1, 5'000'000, 4, 2, 64), dtype), "");
  }
  EXPECT_STRNE(attention_unsupported(DeviceKind::cpu, good, DType::e4m3), "");
  EXPECT_STREQ(attention_unsupported(DeviceKind::cpu, shape_of(1, 16, 4, 2, 20), DType::bf16), "");
  EXPECT_STRNE(attention_unsupported(DeviceKind::cpu, shape_of(1, 16, 4, 3, 64), DType::bf16), "");
  EXPECT_STRNE(attention_unsupported(DeviceKind::cpu, shape_of(1, 16, 4, 2, 64, 1.0f), DType::bf16), "");
  AttentionShape slice = good;
  slice.first_head = 4, slice.total_heads = 8;
  EXPECT_STREQ(attention_unsupported(DeviceKind::cpu, slice, DType::bf16), "");
  slice.first_head = 5;
  EXPECT_STRNE(attention_unsupported(DeviceKind::cpu, slice, DType::bf16), "");
  EXPECT_EQ(attention_workspace_bytes(Context::cpu(), good, DType::bf16), 0);
}

TEST(ExpCpu, AgainstTheLibrary) {
  for (float x = 0.0f; x > -87.0f; x = x * 1.0003f - 1e-4f) {
    const double expected = std::exp(double{x});
    ASSERT_NEAR(exp_nonpositive(x) / expected, 1.0, 3e-7) << x;
  }
  EXPECT_EQ(exp_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(exp_nonpositive(-88.0f), 0.0f);
  EXPECT_EQ(exp_nonpositive(-INFINITY), 0.0f);
  EXPECT_TRUE(std::isnan(exp_nonpositive(NAN)));
}

}  // namespace
}  // namespace te::kernels
