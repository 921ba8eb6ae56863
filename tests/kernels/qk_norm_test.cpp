// CPU reference of the RMSNorm of queries and keys against its definition in double precision, and the gradients
// against finite differences of that definition.
#include "kernels/qk_norm/qk_norm.h"

#include <cmath>

#include "kernels/qk_norm_cases.h"

namespace te::testing {
namespace {

using kernels::qk_norm_backward;
using kernels::qk_norm_forward;
using Values = std::vector<double>;

/// The definition: normalizes q and k in all rows and leaves v unchanged.
Values normalized(const QkNormCase& c, const Values& qkv, const Values& q_gain, const Values& k_gain) {
  Values out = qkv;
  const int64_t columns = (c.heads + 2 * c.groups) * c.dim;
  const auto segment = [&](int64_t at, const Values& gain) {
    double squares = 0;
    for (size_t i = 0; i < gain.size(); ++i)
      squares += qkv[static_cast<size_t>(at) + i] * qkv[static_cast<size_t>(at) + i];
    const double rstd =
        1.0 / std::sqrt(squares / static_cast<double>(gain.size()) + double{QkNormData::kEps});
    for (size_t i = 0; i < gain.size(); ++i)
      out[static_cast<size_t>(at) + i] *= rstd * (gain[i] + (c.zero_centered ? 1.0 : 0.0));
  };
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t at = 0; at < c.heads * c.dim; at += c.q_gain()) segment(r * columns + at, q_gain);
    for (int64_t at = 0; at < c.groups * c.dim; at += c.k_gain())
      segment(r * columns + c.heads * c.dim + at, k_gain);
  }
  return out;
}

Values widen(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

TEST(QkNorm, ForwardMatchesDefinition) {
  const Context context = Context::cpu();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const QkNormCase& c : qk_norm_cases()) {
      SCOPED_TRACE(c.name());
      QkNormData data(context, c, dtype);
      const std::vector<float> before = data.qkv.floats();
      const Values expected =
          normalized(c, widen(before), widen(data.q_gain.floats()), widen(data.k_gain.floats()));
      qk_norm_forward(context, data.forward());
      EXPECT_LT(max_relative_error(data.qkv.floats(), {expected.begin(), expected.end()}, 0.1),
                dtype == DType::f32 ? 1e-6 : 4e-3);
      const int64_t kept = (c.heads + c.groups) * c.dim, columns = kept + c.groups * c.dim;
      std::vector<float> raw;
      for (int64_t r = 0; r < c.rows; ++r)
        raw.insert(raw.end(), before.begin() + r * columns, before.begin() + r * columns + kept);
      EXPECT_EQ(data.raw.floats(), raw);
    }
  }
}

TEST(QkNorm, StoresNothingWithoutABackwardPass) {
  const Context context = Context::cpu();
  const QkNormCase c{9, 4, 2, 8, false};
  QkNormData kept(context, c, DType::f32), plain(context, c, DType::f32);
  qk_norm_forward(context, kept.forward());
  kernels::QkNormForward args = plain.forward();
  args.raw = args.rstd = {};
  qk_norm_forward(context, args);
  EXPECT_EQ(plain.qkv.raw(), kept.qkv.raw());
}

// Central differences of sum(dy y) in double precision: an error of the order of step^2, 1e-9.
TEST(QkNorm, BackwardMatchesFiniteDifferences) {
  const Context context = Context::cpu();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const QkNormCase& c : {QkNormCase{3, 2, 1, 5, false},
                                {5, 2, 1, 7, true},
                                {70, 2, 2, 2, false},
                                {3, 2, 1, 5, false, true}}) {
      SCOPED_TRACE(c.name());
      QkNormData data(context, c, dtype);
      Values x = widen(data.qkv.floats()), q = widen(data.q_gain.floats()), k = widen(data.k_gain.floats());
      const Values dy = widen(data.dqkv.floats());
      qk_norm_forward(context, data.forward());
      qk_norm_backward(context, data.backward());
      const auto slope = [&](double& value) {
        constexpr double kStep = 1e-5;
        const double middle = value;
        double sides[2];
        for (int side = 0; side < 2; ++side) {
          value = middle + (side == 0 ? kStep : -kStep);
          const Values y = normalized(c, x, q, k);
          sides[side] = 0;
          for (size_t i = 0; i < y.size(); ++i) sides[side] += dy[i] * y[i];
        }
        value = middle;
        return (sides[0] - sides[1]) / (2 * kStep);
      };
      const double bound = dtype == DType::f32 ? 2e-5 : 1e-2;
      const std::vector<float> dx = data.dqkv.floats(), dq = data.dq_gain.floats(),
                               dk = data.dk_gain.floats();
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = slope(x[i]);
        ASSERT_NEAR(dx[i], expected, bound * (1 + std::abs(expected))) << i;
      }
      // The results are accumulated. Sums of up to 140 products.
      for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(dq[i] - 0.5, slope(q[i]), 10 * bound) << i;
      for (size_t i = 0; i < k.size(); ++i) EXPECT_NEAR(dk[i] + 0.5, slope(k[i]), 10 * bound) << i;
    }
  }
}

// Adding two sums of half the columns each is another order of one sum: an error of a few 2^-24 in FP32, or of a unit
// of BF16 where rounding differs.
TEST(QkNorm, ShardedNormMatchesUnsharded) {
  const Context context = Context::cpu();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [c, ranks] : shared_qk_norm_cases()) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", c.name(), ranks));
      expect_shared_qk_norm(context, c, ranks, dtype, dtype == DType::f32 ? 5e-6 : 1e-2);
    }
}

TEST(QkNorm, RejectsWrongArguments) {
  const Context context = Context::cpu();
  const QkNormCase c{4, 2, 1, 6, false};
  QkNormData data(context, c, DType::f32);
  kernels::QkNormForward args = data.forward();
  args.shape.num_heads = 3;
  EXPECT_THROW(qk_norm_forward(context, args), InternalError);
  args = data.forward();
  const TestTensor odd(context, DType::f32, {5});
  args.q_gain = odd;
  EXPECT_THROW(qk_norm_forward(context, args), InternalError);
  kernels::QkNormBackward back = data.backward();
  back.raw = {};
  EXPECT_THROW(qk_norm_backward(context, back), InternalError);
  args = data.forward();
  EXPECT_THROW(qk_norm_forward_sums(context, args), InternalError);  // one rank
  args.ranks = 2;
  const TestTensor sums(context, DType::f32, {c.rows, kernels::qk_norm_segments(c.shape(), 6, 6)});
  args.sums = sums;
  EXPECT_THROW(qk_norm_forward_sums(context, args), InternalError);  // norms per head, which are not sharded
  back = data.backward();
  back.ranks = 2;
  EXPECT_THROW(qk_norm_backward(context, back), InternalError);  // without sums
  back = data.backward();
  back.scratch = odd;
  EXPECT_THROW(qk_norm_backward(context, back), InternalError);
}

}  // namespace
}  // namespace te::testing
