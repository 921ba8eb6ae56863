// Activations on the GPU: close to the CPU reference, and fused FP8 output equal bit for bit to a separate
// quantize on the same device.
#include "kernels/activation/activation.h"

#include <cmath>
#include <initializer_list>

#include "kernels/elementwise/elementwise.h"
#include "kernels/fp8_storage.h"
#include "kernels/quantize/quantize.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

constexpr float kClamp = 1.3f;  // cuts off many; no BF16 number lies on it

struct ActivationCase {
  ActivationKind kind;
  DType dtype;
  int64_t rows, ffn;
  int64_t cols() const { return is_gated(kind) ? 2 * ffn : ffn; }
  float clamp() const { return kind == ActivationKind::swiglu_clamped ? kClamp : 0.0f; }
  std::string name() const {
    return fmt::format("kind {} {} [{}, {}]", static_cast<int>(kind), dtype_name(dtype), rows, ffn);
  }
};

// Aligned tiles, partial tiles of the aligned kernel, ragged shapes, an odd half of SwiGLU.
std::vector<ActivationCase> activation_cases(std::initializer_list<DType> dtypes = {DType::f32,
                                                                                    DType::bf16}) {
  std::vector<ActivationCase> list;
  for (const auto kind :
       {ActivationKind::swiglu, ActivationKind::swiglu_clamped, ActivationKind::gelu,
        ActivationKind::gelu_exact, ActivationKind::relu, ActivationKind::silu, ActivationKind::geglu})
    for (const DType dtype : dtypes)
      for (const auto& [rows, ffn] : {std::pair<int64_t, int64_t>{1, 1},
                                      {128, 64},
                                      {256, 1024},
                                      {144, 88},
                                      {131, 64},
                                      {160, 37},
                                      {1000, 100},
                                      {2048, 688}})
        list.push_back({kind, dtype, rows, ffn});
  return list;
}

// 16 bits: the backends' exponentials may round a result to the neighbouring value (2^-7 relative at most), and
// few do. FP32: a few units in the last place. Where a gradient crosses zero the error is absolute.
void expect_close(const TestTensor& actual, const TestTensor& expected) {
  const bool rounded = actual.get().dtype != DType::f32;
  const std::vector<float> a = actual.floats(), b = expected.floats();
  EXPECT_LT(testing::max_relative_error(a, b, rounded ? 1e-2 : 1e-1), rounded ? 1.01 / 128 : 2e-5);
  if (a.size() > 100) {
    EXPECT_LT(testing::relative_error(a, b), rounded ? 1e-3 : 1e-6);
  }
}

TEST(ActivationGpu, ForwardIsCloseToTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const ActivationCase& c : activation_cases({DType::f32, DType::bf16, DType::f16})) {
    SCOPED_TRACE(c.name());
    TestTensor x(gpu, c.dtype, {c.rows, c.cols()}), cpu_x(cpu, c.dtype, {c.rows, c.cols()});
    TestTensor y(gpu, c.dtype, {c.rows, c.ffn}), cpu_y(cpu, c.dtype, {c.rows, c.ffn});
    x.fill_normal(1, 3.0f);
    cpu_x.fill_normal(1, 3.0f);
    activation_forward(gpu, {.kind = c.kind, .x = x, .y = y, .clamp = c.clamp()});
    activation_forward(cpu, {.kind = c.kind, .x = cpu_x, .y = cpu_y, .clamp = c.clamp()});
    expect_close(y, cpu_y);
  }
}

TEST(ActivationGpu, BackwardIsCloseToTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const ActivationCase& c : activation_cases({DType::f32, DType::bf16, DType::f16})) {
    SCOPED_TRACE(c.name());
    const auto run = [&](const Context& context, TestTensor& dx) {
      TestTensor x(context, c.dtype, {c.rows, c.cols()}), dy(context, c.dtype, {c.rows, c.ffn});
      x.fill_normal(1, 2.0f);
      dy.fill_normal(2);
      activation_backward(context, {.kind = c.kind, .x = x, .dy = dy, .dx = dx, .clamp = c.clamp()});
      context.synchronize();
    };
    TestTensor dx(gpu, c.dtype, {c.rows, c.cols()}), cpu_dx(cpu, c.dtype, {c.rows, c.cols()});
    run(gpu, dx);
    run(cpu, cpu_dx);
    expect_close(dx, cpu_dx);
  }
}

TEST(ActivationGpu, FusedForwardEqualsForwardThenQuantize) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const ActivationCase& c : activation_cases()) {
    SCOPED_TRACE(c.name());
    TestTensor x(gpu, c.dtype, {c.rows, c.cols()});
    TestTensor y(gpu, c.dtype, {c.rows, c.ffn}), fused_y(gpu, c.dtype, {c.rows, c.ffn});
    x.fill_normal(3, 2.0f);
    Fp8Storage plain(gpu, DType::e4m3, c.rows, c.ffn, 100.0f);
    Fp8Storage fused(gpu, DType::e4m3, c.rows, c.ffn, 100.0f);
    Fp8Storage alone(gpu, DType::e4m3, c.rows, c.ffn, 100.0f);
    activation_forward(gpu, {.kind = c.kind, .x = x, .y = y, .clamp = c.clamp()});
    quantize(gpu, {.x = y, .out = plain.output()});
    activation_forward(gpu,
                       {.kind = c.kind, .x = x, .y = fused_y, .y_fp8 = fused.output(), .clamp = c.clamp()});
    activation_forward(gpu, {.kind = c.kind, .x = x, .y_fp8 = alone.output(), .clamp = c.clamp()});
    EXPECT_EQ(testing::count_different(fused_y.raw(), y.raw(), dtype_size(c.dtype)), 0);
    expect_same(fused.read(), plain.read());
    expect_same(alone.read(), plain.read());
  }
}

TEST(ActivationGpu, FusedBackwardEqualsBackwardThenQuantizeAndMayWorkInPlace) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const ActivationCase& c : activation_cases()) {
    SCOPED_TRACE(c.name());
    const Shape shape{c.rows, c.cols()};
    TestTensor x(gpu, c.dtype, shape), dy(gpu, c.dtype, {c.rows, c.ffn}), dx(gpu, c.dtype, shape);
    TestTensor scratch(gpu, DType::f32, {quantize_scratch_elements(c.rows, c.cols())});
    TestTensor bias(gpu, DType::f32, {c.cols()}), fused_bias(gpu, DType::f32, {c.cols()});
    x.fill_normal(3, 2.0f);
    dy.fill_normal(4);
    bias.fill_value(0.5f);
    fused_bias.fill_value(0.5f);
    Fp8Storage plain(gpu, DType::e5m2, c.rows, c.cols(), 300.0f);
    Fp8Storage fused(gpu, DType::e5m2, c.rows, c.cols(), 300.0f);
    Fp8Storage alone(gpu, DType::e5m2, c.rows, c.cols(), 300.0f);
    activation_backward(gpu, {.kind = c.kind, .x = x, .dy = dy, .dx = dx, .clamp = c.clamp()});
    quantize(gpu, {.x = dx, .out = plain.output()});
    bias_gradient(gpu, dx, bias, scratch);
    activation_backward(gpu,
                        {.kind = c.kind, .x = x, .dy = dy, .dx_fp8 = alone.output(), .clamp = c.clamp()});
    activation_backward(gpu, {.kind = c.kind,
                              .x = x,
                              .dy = dy,
                              .dx = x,  // in place
                              .dx_fp8 = fused.output(),
                              .dbias = fused_bias,
                              .scratch = scratch,
                              .clamp = c.clamp()});
    EXPECT_EQ(testing::count_different(x.raw(), dx.raw(), dtype_size(c.dtype)), 0);
    expect_same(fused.read(), plain.read());
    expect_same(alone.read(), plain.read());
    EXPECT_EQ(testing::count_different(fused_bias.raw(), bias.raw(), 4), 0);
  }
}

TEST(ActivationGpu, ExtremeInputsStayFinite) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const DType type : {DType::f32, DType::bf16}) {
    const std::vector<float> inputs = {-1e9f, -200, -89, -1e-30f, 0, 1e-30f, 89, 1e9f};
    TestTensor x(gpu, type, {1, 8}), y(gpu, type, {1, 8}), dy(gpu, type, {1, 8});
    x.fill(inputs);
    dy.fill_value(1.0f);
    activation_forward(gpu, {.kind = ActivationKind::gelu, .x = x, .y = y});
    for (int i = 0; i < 8; ++i)
      EXPECT_NEAR(y.floats()[i], std::max(inputs[i], 0.0f), 0.01 * std::max(inputs[i], 1e-28f));
    activation_backward(gpu, {.kind = ActivationKind::gelu, .x = x, .dy = dy, .dx = y});
    for (int i = 0; i < 8; ++i)
      EXPECT_NEAR(y.floats()[i], std::abs(inputs[i]) < 1 ? 0.5f : inputs[i] > 0 ? 1.0f : 0.0f, 1e-6);
  }
}

}  // namespace
}  // namespace te::kernels
