// Activations on the GPU: close to the CPU reference; fused FP8 output bitwise equal to separate quantization on the
// GPU.
#include <cmath>
#include <initializer_list>

#include "activation_cases.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

// Aligned tiles, partial tiles of the aligned kernel, unaligned shapes, an odd half of SwiGLU.
std::vector<ActivationCase> gpu_cases(std::initializer_list<DType> dtypes = {DType::f32, DType::bf16}) {
  return activation_cases(
      dtypes, {{1, 1}, {128, 64}, {256, 1024}, {144, 88}, {131, 64}, {160, 37}, {1000, 100}, {2048, 688}});
}

// 16 bits: the backends' exponentials may round a few results to the adjacent value (at most 2^-7 relative). FP32: a
// few units in the last place. Where a gradient crosses zero the error is absolute.
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
  for (const ActivationCase& c : gpu_cases({DType::f32, DType::bf16, DType::f16})) {
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
  for (const ActivationCase& c : gpu_cases({DType::f32, DType::bf16, DType::f16})) {
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
  for (const ActivationCase& c : gpu_cases()) fused_forward_equals_forward_then_quantize(gpu, c);
}

TEST(ActivationGpu, FusedBackwardEqualsBackwardThenQuantizeAndMayWorkInPlace) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const ActivationCase& c : gpu_cases()) fused_backward_equals_backward_then_quantize(gpu, c);
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
