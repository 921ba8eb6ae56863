// Ops that are linear in each of their inputs (GEMMs, embedding, rope, dropout, bias, residual add) against finite
// differences in FP32. A linear map has no higher-order error, so the difference quotient with a step of 1 is exact up
// to rounding: gradient . direction = L(x + direction) - L(x), with L = output . weights for random weights.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/quantize.h"
#include "kernels/rope/rope.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using te::testing::normal_values;
using te::testing::TestTensor;

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * b[i];
  return sum;
}

// `run` maps the values of `input` to the op's output; `gradient` is the backward pass's result for `weights`.
template <class Run>
void check(TestTensor& input, const std::vector<float>& weights, const std::vector<float>& gradient,
           Run&& run) {
  const std::vector<float> x = input.floats();
  const double before = dot(run(), weights);
  for (uint64_t trial = 0; trial < 3; ++trial) {
    const std::vector<float> direction = normal_values(static_cast<int64_t>(x.size()), 50 + trial);
    std::vector<float> moved = x;
    for (size_t i = 0; i < x.size(); ++i) moved[i] += direction[i];
    input.fill(moved);
    const double difference = dot(run(), weights) - before;
    input.fill(x);
    const double scale = std::sqrt(dot(gradient, gradient));
    EXPECT_GT(scale, 0.1);
    EXPECT_NEAR(difference, dot(gradient, direction), 2e-5 * scale * std::sqrt(double(x.size())) + 1e-4);
  }
}

TEST(LinearGradient, LinearLayer) {
  const Context cpu = Context::cpu();
  const int64_t tokens = 9, in = 7, out = 5;
  TestTensor x(cpu, DType::f32, {tokens, in}), w(cpu, DType::f32, {out, in}), bias(cpu, DType::f32, {out});
  TestTensor y(cpu, DType::f32, {tokens, out}), dy(cpu, DType::f32, {tokens, out});
  TestTensor dx(cpu, DType::f32, {tokens, in}), dw(cpu, DType::f32, {out, in}), dbias(cpu, DType::f32, {out});
  TestTensor scratch(cpu, DType::f32, {quantize_scratch_elements(tokens, out)});
  x.fill_normal(1), w.fill_normal(2), bias.fill_normal(3), dy.fill_normal(4);
  dw.fill_value(0), dbias.fill_value(0);
  const auto forward = [&] {
    gemm(cpu, {.a = x, .b = w, .out = y, .trans_b = true, .bias = bias});
    return y.floats();
  };
  gemm(cpu, {.a = dy, .b = w, .out = dx});
  gemm(cpu, {.a = dy, .b = x, .out = dw, .trans_a = true, .accumulate = true});
  bias_gradient(cpu, dy, dbias, scratch);
  check(x, dy.floats(), dx.floats(), forward);
  check(w, dy.floats(), dw.floats(), forward);
  check(bias, dy.floats(), dbias.floats(), forward);
}

TEST(LinearGradient, Embedding) {
  const Context cpu = Context::cpu();
  const int64_t vocab = 11, hidden = 6, seq = 4, rows = 12;
  TestTensor tokens(cpu, DType::i32, {rows}), table(cpu, DType::f32, {vocab, hidden}),
      positions(cpu, DType::f32, {seq, hidden}), out(cpu, DType::f32, {rows, hidden}),
      dout(cpu, DType::f32, {rows, hidden}), dtable(cpu, DType::f32, {vocab, hidden}),
      dpositions(cpu, DType::f32, {seq, hidden});
  tokens.fill_ints({3, 3, 0, 10, 3, 7, 7, 1, 0, 3, 9, 3});
  table.fill_normal(1), positions.fill_normal(2), dout.fill_normal(3);
  dtable.fill_value(0), dpositions.fill_value(0);
  DeviceBuffer workspace(cpu, static_cast<size_t>(embedding_backward_workspace_bytes(cpu, rows, hidden)) + 1);
  embedding_backward(cpu,
                     {.tokens = tokens,
                      .dout = dout,
                      .seq = seq,
                      .dtable = dtable,
                      .dpositions = dpositions,
                      .workspace = {workspace.data(), DType::u8, {static_cast<int64_t>(workspace.bytes())}}});
  const auto forward = [&] {
    embedding_forward(cpu,
                      {.tokens = tokens, .table = table, .positions = positions, .seq = seq, .out = out});
    return out.floats();
  };
  check(table, dout.floats(), dtable.floats(), forward);
  check(positions, dout.floats(), dpositions.floats(), forward);
}

TEST(LinearGradient, Rope) {
  const Context cpu = Context::cpu();
  const int64_t seq = 5, heads = 4, groups = 2, dim = 6, rows = 2 * seq, width = (heads + 2 * groups) * dim;
  std::vector<float> cos(seq * dim / 2), sin(cos.size());
  rope_tables(seq, dim, 100.0, cos.data(), sin.data());
  TestTensor cos_table(cpu, DType::f32, {seq, dim / 2}), sin_table(cpu, DType::f32, {seq, dim / 2}),
      qkv(cpu, DType::f32, {rows, width}), work(cpu, DType::f32, {rows, width}),
      dy(cpu, DType::f32, {rows, width});
  cos_table.fill(cos), sin_table.fill(sin);
  qkv.fill_normal(1), dy.fill_normal(2);
  const auto rotate = [&](const TestTensor& input, bool backward) {
    cpu.copy(work, input);
    rope(cpu, {.qkv = work,
               .cos = cos_table,
               .sin = sin_table,
               .seq = seq,
               .num_heads = heads,
               .num_query_groups = groups,
               .head_dim = dim,
               .backward = backward});
    return work.floats();
  };
  check(qkv, dy.floats(), rotate(dy, true), [&] { return rotate(qkv, false); });
}

TEST(LinearGradient, DropoutAndResidualAdd) {
  const Context cpu = Context::cpu();
  const Shape shape{9, 10};
  TestTensor x(cpu, DType::f32, shape), residual(cpu, DType::f32, shape), dropped(cpu, DType::f32, shape),
      out(cpu, DType::f32, shape), dy(cpu, DType::f32, shape), dx(cpu, DType::f32, shape);
  x.fill_normal(1), residual.fill_normal(2), dy.fill_normal(3);
  const auto drop = [&](const TestTensor& input, const TestTensor& output) {
    dropout(cpu, {.x = input, .y = output, .probability = 0.3f, .seed = 5, .stream = 6, .first_row = 7});
  };
  const auto forward = [&] {
    drop(x, dropped);
    add(cpu, residual, dropped, out);
    return out.floats();
  };
  drop(dy, dx);
  check(x, dy.floats(), dx.floats(), forward);
  check(residual, dy.floats(), dy.floats(), forward);
}

}  // namespace
}  // namespace te::kernels
