// Test cases of activations, and checks for every backend that fused quantization equals separate quantization.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "kernels/activation/activation.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/fp8_storage.h"
#include "kernels/quantize/quantize.h"

namespace te::kernels {

constexpr float kActivationClamp = 1.3f;  // clamps many values; no BF16 number equals it

struct ActivationCase {
  ActivationKind kind;
  DType dtype;
  int64_t rows, ffn;
  int64_t cols() const { return is_gated(kind) ? 2 * ffn : ffn; }
  float clamp() const { return kind == ActivationKind::swiglu_clamped ? kActivationClamp : 0.0f; }
  std::string name() const {
    return fmt::format("kind {} {} [{}, {}]", static_cast<int>(kind), dtype_name(dtype), rows, ffn);
  }
};

/// All combinations of kind, dtype and shape {rows, ffn}.
inline std::vector<ActivationCase> activation_cases(std::initializer_list<DType> dtypes,
                                                    const std::vector<std::pair<int64_t, int64_t>>& shapes) {
  std::vector<ActivationCase> list;
  for (const auto kind : {ActivationKind::swiglu, ActivationKind::swiglu_clamped, ActivationKind::gelu,
                          ActivationKind::gelu_exact, ActivationKind::relu, ActivationKind::relu2,
                          ActivationKind::silu, ActivationKind::geglu})
    for (const DType dtype : dtypes)
      for (const auto& [rows, ffn] : shapes) list.push_back({kind, dtype, rows, ffn});
  return list;
}

inline void expect_same_tensor(const testing::TestTensor& actual, const testing::TestTensor& expected) {
  EXPECT_EQ(testing::count_different(actual.raw(), expected.raw(), dtype_size(expected.get().dtype)), 0);
}

/// With and without y.
inline void fused_forward_equals_forward_then_quantize(const Context& context, const ActivationCase& c) {
  SCOPED_TRACE(c.name());
  using testing::TestTensor;
  TestTensor x(context, c.dtype, {c.rows, c.cols()});
  TestTensor y(context, c.dtype, {c.rows, c.ffn}), fused_y(context, c.dtype, {c.rows, c.ffn});
  x.fill_normal(3, 2.0f);
  Fp8Storage plain(context, DType::e4m3, c.rows, c.ffn, 100.0f);
  Fp8Storage fused(context, DType::e4m3, c.rows, c.ffn, 100.0f);
  Fp8Storage alone(context, DType::e4m3, c.rows, c.ffn, 100.0f);
  activation_forward(context, {.kind = c.kind, .x = x, .y = y, .clamp = c.clamp()});
  quantize(context, {.x = y, .out = plain.output()});
  activation_forward(context,
                     {.kind = c.kind, .x = x, .y = fused_y, .y_fp8 = fused.output(), .clamp = c.clamp()});
  activation_forward(context, {.kind = c.kind, .x = x, .y_fp8 = alone.output(), .clamp = c.clamp()});
  expect_same_tensor(fused_y, y);
  expect_same(fused.read(), plain.read());
  expect_same(alone.read(), plain.read());
  EXPECT_EQ(plain.read().columnwise, transposed(plain.read().rowwise, c.rows, c.ffn));
}

/// With dx in place of x, and without dx; the bias gradient in both cases.
inline void fused_backward_equals_backward_then_quantize(const Context& context, const ActivationCase& c) {
  SCOPED_TRACE(c.name());
  using testing::TestTensor;
  const Shape shape{c.rows, c.cols()};
  TestTensor x(context, c.dtype, shape), dy(context, c.dtype, {c.rows, c.ffn}), dx(context, c.dtype, shape);
  TestTensor scratch(context, DType::f32, {quantize_scratch_elements(c.rows, c.cols())});
  TestTensor bias(context, DType::f32, {c.cols()}), fused_bias(context, DType::f32, {c.cols()});
  TestTensor alone_bias(context, DType::f32, {c.cols()});
  x.fill_normal(3, 2.0f);
  dy.fill_normal(4);
  for (TestTensor* b : {&bias, &fused_bias, &alone_bias}) b->fill_value(0.5f);
  Fp8Storage plain(context, DType::e5m2, c.rows, c.cols(), 300.0f);
  Fp8Storage fused(context, DType::e5m2, c.rows, c.cols(), 300.0f);
  Fp8Storage alone(context, DType::e5m2, c.rows, c.cols(), 300.0f);
  activation_backward(context, {.kind = c.kind, .x = x, .dy = dy, .dx = dx, .clamp = c.clamp()});
  quantize(context, {.x = dx, .out = plain.output()});
  bias_gradient(context, dx, bias, scratch);
  const auto fuse = [&](const Tensor& stored, Fp8Storage& fp8, const TestTensor& dbias) {
    activation_backward(context, {.kind = c.kind,
                                  .x = x,
                                  .dy = dy,
                                  .dx = stored,
                                  .dx_fp8 = fp8.output(),
                                  .dbias = dbias,
                                  .scratch = scratch,
                                  .clamp = c.clamp()});
  };
  fuse({}, alone, alone_bias);
  fuse(x, fused, fused_bias);
  expect_same_tensor(x, dx);
  expect_same(fused.read(), plain.read());
  expect_same(alone.read(), plain.read());
  expect_same_tensor(fused_bias, bias);
  expect_same_tensor(alone_bias, bias);
}

}  // namespace te::kernels
