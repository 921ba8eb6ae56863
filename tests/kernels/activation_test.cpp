// Activations on the CPU: values against the definitions in double precision, gradients against finite differences of
// those definitions, fused FP8 outputs bitwise against separate quantization.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "activation_cases.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double swiglu(double gate, double up) {
  return gate / (1 + std::exp(-gate)) * up;
}
/// Definition of the gated kinds.
double gated(ActivationKind kind, double gate, double up) {
  const double clamp = kActivationClamp;
  if (kind == ActivationKind::swiglu) return swiglu(gate, up);
  if (kind == ActivationKind::geglu) return gelu(gate) * up;
  return swiglu(std::min(gate, clamp), std::clamp(up, -clamp, clamp));
}
/// Definition of the kinds without a gate.
double plain(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::gelu:
      return gelu(x);
    case ActivationKind::gelu_exact:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case ActivationKind::relu:
      return std::max(x, 0.0);
    case ActivationKind::relu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    default:
      return swiglu(x, 1.0);
  }
}

std::vector<ActivationCase> cpu_cases() {
  std::vector<std::pair<int64_t, int64_t>> shapes;
  for (const int64_t rows : {1, 35, 160})
    for (const int64_t ffn : {3, 48, 72}) shapes.emplace_back(rows, ffn);
  return activation_cases({DType::f32, DType::bf16}, shapes);
}

TEST(Activation, ForwardMatchesDefinition) {
  const Context context = Context::cpu();
  for (const ActivationCase& c : cpu_cases()) {
    TestTensor x(context, c.dtype, {c.rows, c.cols()}), y(context, c.dtype, {c.rows, c.ffn});
    x.fill_normal(1, 3.0f);
    activation_forward(context, {.kind = c.kind, .x = x, .y = y, .clamp = c.clamp()});
    const auto in = x.floats(), out = y.floats();
    // BF16: half a unit in the last of 8 bits. FP32: a few units, because the cubic's rounding error grows with |x|.
    const double bound = c.dtype == DType::bf16 ? 1.0 / 256 : 3e-6;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.ffn; ++i) {
        const float* row = in.data() + r * c.cols();
        const double expected =
            is_gated(c.kind) ? gated(c.kind, row[i], row[c.ffn + i]) : plain(c.kind, row[i]);
        ASSERT_NEAR(out[r * c.ffn + i], expected, bound * std::abs(expected) + 1e-6) << row[i];
      }
    }
  }
}

TEST(Activation, ExtremeInputsGiveFiniteValuesAndGradients) {
  const Context context = Context::cpu();
  const std::vector<float> inputs = {-1e9f, -200, -89, -1e-30f, 0, 1e-30f, 89, 200, 1e9f};
  const int64_t n = static_cast<int64_t>(inputs.size());
  TestTensor x(context, DType::f32, {1, n}), y(context, DType::f32, {1, n}), dy(context, DType::f32, {1, n});
  x.fill(inputs);
  dy.fill_value(1.0f);
  activation_forward(context, {.kind = ActivationKind::gelu, .x = x, .y = y});
  const auto out = y.floats();
  activation_backward(context, {.kind = ActivationKind::gelu, .x = x, .dy = dy, .dx = y});
  const auto slope = y.floats();
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_FLOAT_EQ(out[i], std::abs(inputs[i]) < 1 ? inputs[i] / 2 : std::max(inputs[i], 0.0f)) << inputs[i];
    EXPECT_FLOAT_EQ(slope[i], std::abs(inputs[i]) < 1 ? 0.5f : inputs[i] > 0 ? 1.0f : 0.0f) << inputs[i];
  }
}

TEST(Activation, ClampBoundsGateAboveAndUpOnBothSidesAndKeepsNan) {
  const Context context = Context::cpu();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  struct Point {
    float gate, up, same_gate, same_up;  ///< values after clamping
    bool gate_learns, up_learns;
  };
  // A value exactly on the bound is not clamped.
  const std::vector<Point> points = {{3, 1, 2, 1, false, true},    {2, 2, 2, 2, true, true},
                                     {-5, 3, -5, 2, true, false},  {1, -2, 1, -2, true, true},
                                     {1, -3, 1, -2, true, false},  {inf, -inf, 2, -2, false, false},
                                     {-50, 1, -50, 1, true, true}, {0.5f, 0.25f, 0.5f, 0.25f, true, true}};
  TestTensor x(context, DType::f32, {1, 2}), same(context, DType::f32, {1, 2});
  TestTensor y(context, DType::f32, {1, 1}), dy(context, DType::f32, {1, 1}), dx(context, DType::f32, {1, 2});
  dy.fill_value(1.0f);
  const auto run = [&](ActivationKind kind, const TestTensor& in) {
    activation_forward(context, {.kind = kind, .x = in, .y = y, .clamp = 2.0f});
    activation_backward(context, {.kind = kind, .x = in, .dy = dy, .dx = dx, .clamp = 2.0f});
    return std::array{y.floats()[0], dx.floats()[0], dx.floats()[1]};
  };
  for (const Point& point : points) {
    x.fill(std::vector{point.gate, point.up});
    same.fill(std::vector{point.same_gate, point.same_up});
    const auto clamped = run(ActivationKind::swiglu_clamped, x), plain = run(ActivationKind::swiglu, same);
    EXPECT_EQ(clamped[0], plain[0]) << point.gate << " " << point.up;
    EXPECT_EQ(clamped[1], point.gate_learns ? plain[1] : 0.0f) << point.gate << " " << point.up;
    EXPECT_EQ(clamped[2], point.up_learns ? plain[2] : 0.0f) << point.gate << " " << point.up;
  }
  for (const auto& [gate, up] : {std::pair{nan, 1.0f}, {1.0f, nan}}) {
    x.fill(std::vector{gate, up});
    EXPECT_TRUE(std::isnan(run(ActivationKind::swiglu_clamped, x)[0]));
  }
  EXPECT_THROW(activation_forward(context, {.kind = ActivationKind::swiglu_clamped, .x = x, .y = y}),
               InternalError);
}

TEST(Activation, BackwardMatchesFiniteDifferences) {
  const Context context = Context::cpu();
  for (const ActivationCase& c : cpu_cases()) {
    TestTensor x(context, c.dtype, {c.rows, c.cols()}), dy(context, c.dtype, {c.rows, c.ffn});
    TestTensor dx(context, c.dtype, {c.rows, c.cols()});
    x.fill_normal(1, 2.0f);
    dy.fill_normal(2);
    activation_backward(context, {.kind = c.kind, .x = x, .dy = dy, .dx = dx, .clamp = c.clamp()});
    const auto in = x.floats(), slope = dy.floats(), out = dx.floats();
    const double h = 1e-5, bound = c.dtype == DType::bf16 ? 1.0 / 256 : 2e-6;
    const auto check = [&](float actual, double derivative, float upstream) {
      const double expected = derivative * upstream;
      ASSERT_NEAR(actual, expected, bound * std::abs(expected) + 2e-6 * (1 + std::abs(upstream)));
    };
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.ffn; ++i) {
        const int64_t at = r * c.cols() + i;
        const double a = in[at];
        const float up = slope[r * c.ffn + i];
        if (!is_gated(c.kind)) {
          check(out[at], (plain(c.kind, a + h) - plain(c.kind, a - h)) / (2 * h), up);
        } else {
          const double b = in[at + c.ffn];
          check(out[at], (gated(c.kind, a + h, b) - gated(c.kind, a - h, b)) / (2 * h), up);
          check(out[at + c.ffn], (gated(c.kind, a, b + h) - gated(c.kind, a, b - h)) / (2 * h), up);
        }
      }
    }
  }
}

TEST(Activation, FusedForwardEqualsForwardThenQuantize) {
  for (const ActivationCase& c : cpu_cases()) fused_forward_equals_forward_then_quantize(Context::cpu(), c);
}

TEST(Activation, FusedBackwardEqualsBackwardThenQuantizeAndMayWorkInPlace) {
  for (const ActivationCase& c : cpu_cases()) fused_backward_equals_backward_then_quantize(Context::cpu(), c);
}

}  // namespace
}  // namespace te::kernels
