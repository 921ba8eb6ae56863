// Adam moments in BF16: rounded to an adjacent number without bias, so that small changes are not lost, and independent
// of how the parameter is sharded.
#include "kernels/adamw/moment_rounding.h"

#include <cmath>

#include "kernels/adamw/adamw.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

/// A full parameter with rows of `cols` elements.
MomentRun whole(int64_t cols) {
  return {.begin = 0, .stream = 7, .region = {.local_cols = cols, .global_cols = cols}};
}

/// Optimizer of one parameter, or of a rank's part of it.
struct Moments {
  Moments(int64_t n, std::vector<MomentRun> where, DType m = DType::bf16, DType v = DType::bf16)
      : main_param(cpu(), DType::f32, {n}),
        main_grad(cpu(), DType::f32, {n}),
        exp_avg(cpu(), m, {n}),
        exp_avg_sq(cpu(), v, {n}),
        flags(cpu(), DType::u8, {granules_of(n)}),
        runs(std::move(where)) {
    main_param.fill_value(1.0f);
    exp_avg.fill_value(0);
    exp_avg_sq.fill_value(0);
    cpu().zero(flags);
  }
  AdamW args() {
    return {.main_param = main_param,
            .main_grad = main_grad,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .flags = flags,
            .runs = {runs.data(), DType::u8, {static_cast<int64_t>(runs.size() * sizeof(MomentRun))}},
            .seed = 5,
            .lr = 1e-2f};
  }
  TestTensor main_param, main_grad, exp_avg, exp_avg_sq, flags;
  std::vector<MomentRun> runs;
};

double mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(values.size());
}

TEST(MomentRounding, RoundsToAdjacentNumbersWithoutBias) {
  for (const float x : {1.0f, 1.001f, -3.14159f, 1e-30f, 1e-40f, 0.0f}) {
    const bfloat16 toward_zero{static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16)};
    int away = 0;
    for (uint32_t random = 0; random < 65536; ++random) {
      bfloat16 rounded;
      round_moment(x, random, rounded);
      away += rounded.bits - toward_zero.bits;
      ASSERT_LE(rounded.bits - toward_zero.bits, 1);
    }
    EXPECT_EQ(away, static_cast<int>(std::bit_cast<uint32_t>(x) & 0xffff)) << x;
  }
}

TEST(MomentRounding, KeepsInfinitiesAndNan) {
  for (const uint32_t random : {0u, 1u, 0xffffu}) {
    bfloat16 rounded;
    round_moment(INFINITY, random, rounded);
    EXPECT_EQ(rounded.bits, 0x7f80);
    round_moment(-INFINITY, random, rounded);
    EXPECT_EQ(rounded.bits, 0xff80);
    for (const uint32_t nan : {0x7fffffffu, 0x7f800001u, 0xffffffffu}) {
      round_moment(std::bit_cast<float>(nan), random, rounded);
      EXPECT_TRUE(std::isnan(moment_value(rounded)));
    }
  }
}

// The first update uses the moments before rounding; the rounded moments are adjacent to those in FP32.
TEST(MomentRounding, AStepMatchesFp32) {
  const int64_t n = 20'000;
  Moments exact(n, {}, DType::f32, DType::f32), rounded(n, {whole(n)});
  exact.main_grad.fill_normal(3, 0.1f);
  rounded.main_grad.fill_normal(3, 0.1f);
  adamw(cpu(), exact.args());
  adamw(cpu(), rounded.args());
  EXPECT_EQ(rounded.main_param.raw(), exact.main_param.raw());
  const auto compare = [](const std::vector<float>& actual, const std::vector<float>& expected) {
    double error = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_LE(std::abs(actual[i] - expected[i]), std::abs(expected[i]) / 128);
      error += static_cast<double>((actual[i] - expected[i]) / expected[i]);
    }
    // A relative error of at most 2^-8 in each direction, whose mean over n elements has a deviation below 2^-8 /
    // sqrt(n).
    EXPECT_LT(std::abs(error) / static_cast<double>(actual.size()), 4.0 / 256 / std::sqrt(actual.size()));
  };
  compare(rounded.exp_avg.floats(), exact.exp_avg.floats());
  compare(rounded.exp_avg_sq.floats(), exact.exp_avg_sq.floats());
}

// Without gradients exp_avg_sq decreases by a thousandth per step, which is at most a quarter of the distance to the
// next number. Round to nearest would leave it at 1 forever.
TEST(MomentRounding, SmallChangesAreNotLost) {
  const int64_t n = 4096;
  Moments b(n, {whole(n)});
  b.main_grad.fill_value(0);
  b.exp_avg_sq.fill_value(1);
  AdamW args = b.args();
  args.beta2 = 0.999f;
  for (args.step = 1; args.step <= 700; ++args.step) adamw(cpu(), args);
  EXPECT_NEAR(mean(b.exp_avg_sq.floats()), std::pow(0.999, 700), 0.01);
  EXPECT_EQ(mean(b.exp_avg.floats()), 0.0);
}

TEST(MomentRounding, DependsOnlyOnSeedStepAndParameter) {
  const int64_t n = 1000;
  const auto once = [&](uint64_t seed, int64_t step, uint64_t stream) {
    Moments b(n, {whole(n)});
    b.main_grad.fill_normal(3);
    b.runs[0].stream = stream;
    AdamW args = b.args();
    args.seed = seed, args.step = step;
    adamw(cpu(), args);
    return b.exp_avg.raw();
  };
  const auto first = once(5, 1, 7);
  EXPECT_EQ(once(5, 1, 7), first);
  EXPECT_NE(once(6, 1, 7), first);
  EXPECT_NE(once(5, 2, 7), first);
  EXPECT_NE(once(5, 1, 9), first);
}

// A parameter [24, 31], partitioned into blocks of odd numbers of rows and columns, with gaps between the runs.
TEST(MomentRounding, DoesNotDependOnSharding) {
  const int64_t rows = 24, cols = 31, n = rows * cols;
  const std::vector<float> gradient = testing::normal_values(n, 3);
  Moments reference(n, {whole(cols)});
  reference.main_grad.fill(gradient);
  adamw(cpu(), reference.args());
  const std::vector<float> m = reference.exp_avg.floats(), v = reference.exp_avg_sq.floats();

  const int64_t first_col = 3, width = 13;
  struct Rows {
    int64_t first, count;
  };
  std::vector<MomentRun> runs;
  std::vector<int64_t> index;  // index of every element of the part; -1 in gaps
  for (const Rows block : {Rows{0, 5}, Rows{11, 1}, Rows{12, 7}}) {
    for (int64_t gap = 0; gap < block.count % 4; ++gap) index.push_back(-1);
    runs.push_back({static_cast<int64_t>(index.size()),
                    7,
                    {.local_cols = width,
                     .first_local = 0,
                     .global_row = block.first,
                     .global_col = first_col,
                     .global_cols = cols}});
    for (int64_t i = 0; i < block.count * width; ++i)
      index.push_back((block.first + i / width) * cols + first_col + i % width);
  }
  std::vector<float> part;
  for (const int64_t i : index) part.push_back(i < 0 ? 0.0f : gradient[i]);
  Moments cut(static_cast<int64_t>(index.size()), runs);
  cut.main_grad.fill(part);
  adamw(cpu(), cut.args());
  const std::vector<float> cut_m = cut.exp_avg.floats(), cut_v = cut.exp_avg_sq.floats();
  for (size_t i = 0; i < index.size(); ++i) {
    EXPECT_EQ(cut_m[i], index[i] < 0 ? 0.0f : m[index[i]]) << i;
    EXPECT_EQ(cut_v[i], index[i] < 0 ? 0.0f : v[index[i]]) << i;
  }
}

TEST(MomentRounding, OneMomentMayStayInFp32) {
  const int64_t n = 300;
  Moments both(n, {whole(n)}), first(n, {whole(n)}, DType::bf16, DType::f32),
      second(n, {whole(n)}, DType::f32, DType::bf16);
  for (Moments* b : {&both, &first, &second}) {
    b->main_grad.fill_normal(3);
    adamw(cpu(), b->args());
  }
  EXPECT_EQ(first.exp_avg.raw(), both.exp_avg.raw());
  EXPECT_EQ(second.exp_avg_sq.raw(), both.exp_avg_sq.raw());
}

TEST(MomentRounding, RejectsATruncatedTable) {
  Moments b(8, {whole(8)});
  b.main_grad.fill_value(0);
  AdamW args = b.args();
  args.runs.shape = {static_cast<int64_t>(sizeof(MomentRun)) - 1};
  EXPECT_THROW(adamw(cpu(), args), InternalError);
}

}  // namespace
}  // namespace te::kernels
