// CPU reference of the norms against double precision and finite differences.
#include <cstring>
#include <tuple>

#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "norm_cases.h"

namespace te::testing {
namespace {

using kernels::norm_backward;
using kernels::norm_forward;

class NormTest : public ::testing::TestWithParam<std::tuple<NormKind, DType, int64_t>> {
 protected:
  Context context = Context::cpu();
  NormKind kind = std::get<0>(GetParam());
  DType dtype = std::get<1>(GetParam());
  int64_t hidden = std::get<2>(GetParam());
  bool layer = kind == NormKind::layer;
  /// One rounding to bf16 is at most 2^-8 relative; errors of FP32 sums of a few thousand terms stay below 1e-5.
  double tolerance = dtype == DType::bf16 ? 5e-3 : 1e-5;
};

TEST_P(NormTest, ForwardMatchesDoublePrecision) {
  NormCase t(context, kind, dtype, 9, hidden);
  norm_forward(context, t.forward());
  const NormReference expected =
      norm_reference(kind, 9, hidden, 1e-5, t.x.floats(), t.gamma.floats(), t.beta.floats(), {}, {}, {}, {});
  EXPECT_LT(max_relative_error(t.y.floats(), expected.y, 0.05), tolerance);
  EXPECT_LT(max_relative_error(t.rstd.floats(), expected.rstd), 1e-5);
  if (layer) {
    EXPECT_LT(max_relative_error(t.mean.floats(), expected.mean, 0.1), 1e-5);
  }
}

TEST_P(NormTest, DeltaIsAddedRoundedAndNormalized) {
  NormCase t(context, kind, dtype, 5, hidden);
  const std::vector<float> x = t.x.floats(), delta = t.delta.floats();
  norm_forward(context, t.forward_with_delta());
  TestTensor rounded(context, dtype, {5, hidden});
  std::vector<float> sums(x.size());
  for (size_t i = 0; i < x.size(); ++i) sums[i] = x[i] + delta[i];
  rounded.fill(sums);
  EXPECT_EQ(t.sum.raw(), rounded.raw());
  EXPECT_EQ(t.x.floats(), x);

  // The sum may replace x, and y is the norm of the sum.
  const std::vector<uint8_t> y = t.y.raw();
  NormForward in_place = t.forward_with_delta();
  in_place.sum = t.x;
  norm_forward(context, in_place);
  EXPECT_EQ(t.x.raw(), rounded.raw());
  EXPECT_EQ(t.y.raw(), y);
  NormForward alone = t.forward();
  norm_forward(context, alone);
  EXPECT_EQ(t.y.raw(), y);
}

TEST_P(NormTest, FusedFp8EqualsNormThenQuantize) {
  const int64_t rows = 6;
  for (const DType fp8 : {DType::e4m3, DType::e5m2}) {
    NormCase t(context, kind, dtype, rows, hidden);
    norm_forward(context, t.forward());
    const std::vector<float> y = t.y.floats();
    const float scale = 300.0f;  // saturates E4M3 beyond 1.49
    Fp8Case expected(context, fp8, rows, hidden, scale);
    float amax = 0.0f;
    Fp8Counters counters{};
    std::vector<float> scaled(y.size()), transposed(y.size());
    for (size_t i = 0; i < y.size(); ++i) {
      amax = std::max(amax, std::abs(y[i]));
      scaled[i] = y[i] * scale;
      transposed[(i % hidden) * rows + i / hidden] = scaled[i];
      counters.saturated += std::abs(scaled[i]) > fp8_max(fp8) ? 1 : 0;
    }
    expected.rowwise.fill(scaled);
    expected.columnwise.fill(transposed);
    const std::vector<float> codes = expected.rowwise.floats();
    for (size_t i = 0; i < y.size(); ++i) counters.flushed += y[i] != 0 && codes[i] == 0 ? 1 : 0;
    counters.total = y.size();

    for (const bool keep_y : {true, false}) {
      Fp8Case out(context, fp8, rows, hidden, scale);
      NormForward args = t.forward();
      if (!keep_y) args.y = {};
      args.y_fp8 = out.output(true, true);
      norm_forward(context, args);
      EXPECT_EQ(out.rowwise.raw(), expected.rowwise.raw());
      EXPECT_EQ(out.columnwise.raw(), expected.columnwise.raw());
      EXPECT_EQ(out.numbers.floats(), (std::vector<float>{scale, 1.0f / scale, amax}));
      EXPECT_EQ(std::memcmp(out.counters.raw().data(), &counters, sizeof counters), 0);
    }
  }
}

TEST_P(NormTest, BackwardMatchesDoublePrecision) {
  const int64_t rows = 150;  // more than two groups of rows
  for (const bool residual : {false, true}) {
    NormCase t(context, kind, dtype, rows, hidden);
    norm_forward(context, t.forward());
    const NormReference expected = norm_reference(
        kind, rows, hidden, 1e-5, t.x.floats(), t.gamma.floats(), t.beta.floats(), t.dy.floats(),
        residual ? t.dresidual.floats() : std::vector<float>{}, t.dgamma.floats(), t.dbeta.floats());
    const std::vector<float> dbeta_before = t.dbeta.floats();
    NormBackward args = t.backward();
    if (residual) args.dresidual = t.dresidual;
    norm_backward(context, args);
    // With one column the terms of dx cancel almost completely, so the error is relative to the terms.
    EXPECT_LT(max_relative_error(t.dx.floats(), expected.dx, hidden == 1 ? 1.0 : 0.1), tolerance);
    EXPECT_LT(max_relative_error(t.dgamma.floats(), expected.dgamma, 1.0), 1e-5);
    if (layer) {
      EXPECT_LT(max_relative_error(t.dbeta.floats(), expected.dbeta, 1.0), 1e-5);
    }
    if (!layer) {
      EXPECT_EQ(t.dbeta.floats(), dbeta_before);
    }
  }
}

TEST_P(NormTest, BackwardMayOverwriteItsInputs) {
  NormCase t(context, kind, dtype, 7, hidden);
  norm_forward(context, t.forward());
  const std::vector<float> dgamma = t.dgamma.floats(), dbeta = t.dbeta.floats();
  const std::vector<uint8_t> dy = t.dy.raw();
  NormBackward args = t.backward();
  args.dresidual = t.dresidual;
  norm_backward(context, args);
  const std::vector<uint8_t> dx = t.dx.raw(), expected_dgamma = t.dgamma.raw();

  t.dgamma.fill(dgamma), t.dbeta.fill(dbeta);
  args.dx = t.dy;
  norm_backward(context, args);
  EXPECT_EQ(t.dy.raw(), dx);
  EXPECT_EQ(t.dgamma.raw(), expected_dgamma);

  t.dy.fill_raw(dy.data()), t.dgamma.fill(dgamma), t.dbeta.fill(dbeta);
  args.dx = t.dresidual;
  norm_backward(context, args);
  EXPECT_EQ(t.dresidual.raw(), dx);
  EXPECT_EQ(t.dgamma.raw(), expected_dgamma);
}

TEST_P(NormTest, ColumnSumsOfDxMatchASeparatePass) {
  const int64_t rows = 150;  // more than one block of the separate pass
  NormCase plain(context, kind, dtype, rows, hidden);
  norm_forward(context, plain.forward());
  norm_backward(context, plain.backward_with_residual());
  TestTensor scratch(context, DType::f32, {kernels::quantize_scratch_elements(rows, hidden)});
  kernels::bias_gradient(context, plain.dx, plain.dbias, scratch);

  NormCase fused(context, kind, dtype, rows, hidden);
  norm_forward(context, fused.forward());
  NormBackward args = fused.backward_with_residual();
  args.dx = fused.dresidual;
  args.dbias = fused.dbias;
  norm_backward(context, args);
  EXPECT_EQ(fused.dbias.raw(), plain.dbias.raw());
  EXPECT_EQ(fused.dresidual.raw(), plain.dx.raw());
  EXPECT_EQ(fused.dgamma.raw(), plain.dgamma.raw());
  EXPECT_EQ(fused.dbeta.raw(), plain.dbeta.raw());
}

TEST_P(NormTest, BackwardInFp8EqualsBackwardThenQuantize) {
  const int64_t rows = 6;
  const float scale = 300.0f;
  for (const DType fp8 : {DType::e4m3, DType::e5m2}) {
    NormCase t(context, kind, dtype, rows, hidden);
    norm_forward(context, t.forward());
    Fp8Case fused(context, fp8, rows, hidden, scale), separate(context, fp8, rows, hidden, scale);
    NormBackward args = t.backward_with_residual();
    args.dx_fp8 = fused.output(true, true);
    norm_backward(context, args);
    kernels::quantize(context, {.x = t.dx, .out = separate.output(true, true)});
    EXPECT_EQ(fused.rowwise.raw(), separate.rowwise.raw());
    EXPECT_EQ(fused.columnwise.raw(), separate.columnwise.raw());
    EXPECT_EQ(fused.numbers.raw(), separate.numbers.raw());
    EXPECT_EQ(fused.counters.raw(), separate.counters.raw());
    EXPECT_GT(fused.numbers.floats()[2], 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, NormTest,
                         ::testing::Combine(::testing::ValuesIn(kNormKinds),
                                            ::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values<int64_t>(1, 7, 130, 768, 4096)));

/// Sum over y * w, the scalar whose gradient is checked.
double objective(const Context& context, NormCase& t, const std::vector<float>& w) {
  kernels::norm_forward(context, t.forward());
  const std::vector<float> y = t.y.floats();
  double total = 0;
  for (size_t i = 0; i < y.size(); ++i) total += double{y[i]} * w[i];
  return total;
}

std::vector<float> finite_differences(const Context& context, NormCase& t, TestTensor& parameter,
                                      const std::vector<float>& w) {
  std::vector<float> values = parameter.floats(), gradient(values.size());
  const float step = 1e-2f;
  for (size_t i = 0; i < values.size(); ++i) {
    const float kept = values[i], up = kept + step, down = kept - step;
    values[i] = up;
    parameter.fill(values);
    const double above = objective(context, t, w);
    values[i] = down;
    parameter.fill(values);
    const double below = objective(context, t, w);
    values[i] = kept;
    gradient[i] = static_cast<float>((above - below) / (double{up} - down));
  }
  parameter.fill(values);
  return gradient;
}

TEST(NormGradientTest, MatchesFiniteDifferences) {
  const Context context = Context::cpu();
  for (const NormKind kind : kNormKinds) {
    for (const int64_t hidden : {2, 7, 33}) {
      NormCase t(context, kind, DType::f32, 4, hidden);
      t.dgamma.fill_value(0), t.dbeta.fill_value(0);
      const std::vector<float> w = t.dy.floats();
      const std::vector<float> dx = finite_differences(context, t, t.x, w);
      const std::vector<float> dgamma = finite_differences(context, t, t.gamma, w);
      norm_forward(context, t.forward());
      norm_backward(context, t.backward());
      // The error of a central difference is of the order of step^2 times the third derivative.
      if (hidden > 2) {
        EXPECT_LT(relative_error(t.dx.floats(), dx), 2e-3);
      }
      EXPECT_LT(relative_error(t.dgamma.floats(), dgamma), 1e-3);
      if (kind == NormKind::layer) {
        const std::vector<float> dbeta = finite_differences(context, t, t.beta, w);
        EXPECT_LT(relative_error(t.dbeta.floats(), dbeta), 1e-3);
      }
    }
  }
}

// 1 + gain is computed in FP32, so a small BF16 gain keeps bits that a BF16 gain near 1 does not have.
TEST(NormZeroCentered, KeepsTheBitsOfSmallGains) {
  const Context context = Context::cpu();
  NormCase t(context, NormKind::rms_zero_centered, DType::bf16, 4, 64);
  NormCase whole(context, NormKind::rms, DType::bf16, 4, 64);
  t.gamma.fill_value(0x1p-7f);
  whole.gamma.fill_value(1.0f + 0x1p-7f);  // a BF16 number
  norm_forward(context, t.forward());
  norm_forward(context, whole.forward());
  EXPECT_EQ(t.y.raw(), whole.y.raw());
  t.gamma.fill_value(0x1.8p-8f);  // its sum with 1 is not a BF16 number
  norm_forward(context, t.forward());
  EXPECT_NE(t.y.raw(), whole.y.raw());
  t.gamma.fill_value(0.0f), whole.gamma.fill_value(1.0f);
  norm_forward(context, t.forward());
  norm_forward(context, whole.forward());
  EXPECT_EQ(t.y.raw(), whole.y.raw());
}

TEST(NormCheckTest, RejectsWrongArguments) {
  const Context context = Context::cpu();
  NormCase t(context, NormKind::rms, DType::bf16, 3, 16);
  NormForward args = t.forward();
  args.gamma = t.rstd;
  EXPECT_THROW(norm_forward(context, args), InternalError);
  args = t.forward();
  args.delta = t.delta;  // without sum
  EXPECT_THROW(norm_forward(context, args), InternalError);
  args = t.forward();
  args.y = {};
  EXPECT_THROW(norm_forward(context, args), InternalError);
  NormBackward backward = t.backward();
  backward.scratch = t.rstd;
  EXPECT_THROW(norm_backward(context, backward), InternalError);
  backward = t.backward();
  backward.dbias = t.rstd;
  EXPECT_THROW(norm_backward(context, backward), InternalError);
  backward = t.backward();
  Fp8Case turned(context, DType::e5m2, 16, 3);
  backward.dx_fp8 = turned.output(true, false);
  EXPECT_THROW(norm_backward(context, backward), InternalError);
}

}  // namespace
}  // namespace te::testing
