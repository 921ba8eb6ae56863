// All ops that accumulate into a main gradient, with fp32 and bf16 gradients. The expected bf16 result follows from the
// fp32 one: the old value plus the same FP32 sum, rounded once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/activation/activation.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "testing/testing.h"

namespace te::testing {

/// Gradients of one op after it was added to `old` (whose values repeat over the elements; zeros if empty).
using GradientRun = std::function<std::vector<float>(const Context&, DType input, DType gradient,
                                                     const std::vector<float>& old)>;

struct GradientCase {
  std::string name;
  GradientRun run;
};

inline void fill_old(TestTensor& gradient, const std::vector<float>& old) {
  std::vector<float> values(static_cast<size_t>(gradient.get().numel()), 0.0f);
  for (size_t i = 0; i < values.size() && !old.empty(); ++i) values[i] = old[i % old.size()];
  gradient.fill(values);
}

inline void append(std::vector<float>& all, const TestTensor& more) {
  const std::vector<float> values = more.floats();
  all.insert(all.end(), values.begin(), values.end());
}

inline std::vector<float> run_bias(const Context& context, DType input, DType gradient,
                                   const std::vector<float>& old, int64_t rows, int64_t cols, int op) {
  const bool gated = op == 2;
  TestTensor x(context, input, {rows, gated ? 2 * cols : cols}), dy(context, input, {rows, cols});
  const Shape wide = x.get().shape;
  TestTensor dx(context, input, wide), amax(context, DType::f32, {1});
  TestTensor dbias(context, gradient, {wide[1]});
  TestTensor scratch(context, DType::f32, {kernels::quantize_scratch_elements(rows, wide[1])});
  x.fill_normal(1), dy.fill_normal(2), amax.fill_value(0.0f);
  fill_old(dbias, old);
  if (op == 0) {
    kernels::bias_gradient(context, x, dbias, scratch);
  } else if (op == 1) {
    kernels::quantize(context,
                      {.x = x, .out = {.amax = amax.get().as<float>()}, .dbias = dbias, .scratch = scratch});
  } else {
    kernels::activation_backward(
        context, {.kind = gated ? kernels::ActivationKind::swiglu : kernels::ActivationKind::gelu,
                  .x = x,
                  .dy = dy,
                  .dx = dx,
                  .dbias = dbias,
                  .scratch = scratch});
  }
  return dbias.floats();
}

inline std::vector<float> run_norm(const Context& context, DType input, DType gradient,
                                   const std::vector<float>& old, int64_t rows, int64_t hidden,
                                   kernels::NormKind kind) {
  TestTensor x(context, input, {rows, hidden}), dy(context, input, {rows, hidden});
  TestTensor dx(context, input, {rows, hidden}), gamma(context, input, {hidden});
  TestTensor mean(context, DType::f32, {rows}), rstd(context, DType::f32, {rows});
  TestTensor dgamma(context, gradient, {hidden}), dbeta(context, gradient, {hidden});
  TestTensor dbias(context, gradient, {hidden});
  TestTensor scratch(context, DType::f32, {kernels::norm_backward_scratch_elements(hidden)});
  x.fill_normal(1), dy.fill_normal(2), gamma.fill_normal(3, 0.2f, 1.0f);
  mean.fill_normal(4, 0.1f), rstd.fill_value(1.25f);
  fill_old(dgamma, old), fill_old(dbeta, old), fill_old(dbias, old);
  kernels::norm_backward(context, {.kind = kind,
                                   .dy = dy,
                                   .x = x,
                                   .gamma = gamma,
                                   .mean = mean,
                                   .rstd = rstd,
                                   .dx = dx,
                                   .dgamma = dgamma,
                                   .dbeta = dbeta,
                                   .dbias = dbias,
                                   .scratch = scratch});
  std::vector<float> all = dgamma.floats();
  append(all, dbias);
  if (kind == kernels::NormKind::layer) append(all, dbeta);
  return all;
}

inline std::vector<float> run_embedding(const Context& context, DType input, DType gradient,
                                        const std::vector<float>& old, int64_t rows, int64_t hidden,
                                        int64_t vocab, int64_t first) {
  const int64_t seq = (rows + 3) / 4;
  TestTensor tokens(context, DType::i32, {rows}), dout(context, input, {rows, hidden});
  TestTensor dtable(context, gradient, {vocab, hidden}), dpositions(context, gradient, {seq, hidden});
  TestTensor workspace(
      context, DType::u8,
      {std::max<int64_t>(1, kernels::embedding_backward_workspace_bytes(context, rows, hidden))});
  std::vector<int32_t> ids(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r)  // half of the rows have the same token: runs over many chunks
    ids[r] = static_cast<int32_t>(r % 2 == 0 ? first + vocab / 2 : r * 7919 % (first + vocab + 3));
  tokens.fill_ints(ids);
  dout.fill_normal(1);
  fill_old(dtable, old), fill_old(dpositions, old);
  kernels::embedding_backward(context, {.tokens = tokens,
                                        .dout = dout,
                                        .seq = seq,
                                        .dtable = dtable,
                                        .dpositions = dpositions,
                                        .workspace = workspace,
                                        .first_token = first});
  std::vector<float> all = dtable.floats();
  append(all, dpositions);
  return all;
}

/// Unaligned and aligned shapes of every op.
inline std::vector<GradientCase> gradient_cases() {
  std::vector<GradientCase> cases;
  const auto add = [&](std::string name, GradientRun run) {
    cases.push_back({std::move(name), std::move(run)});
  };
  using C = const Context&;
  using V = const std::vector<float>&;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 8}, {130, 13}, {300, 64}, {257, 200}}) {
    const int64_t r = rows, c = cols;
    const std::string size = fmt::format(" {}x{}", r, c);
    const char* names[] = {"bias_gradient", "quantize", "swiglu", "gelu"};
    for (int op = 0; op < 4; ++op)
      add(names[op] + size,
          [=](C ctx, DType in, DType g, V old) { return run_bias(ctx, in, g, old, r, c, op); });
    for (const auto kind : {kernels::NormKind::rms, kernels::NormKind::layer})
      add("norm" + size,
          [=](C ctx, DType in, DType g, V old) { return run_norm(ctx, in, g, old, r, c, kind); });
    for (const int64_t first : {0, 5})
      add("embedding" + size,
          [=](C ctx, DType in, DType g, V old) { return run_embedding(ctx, in, g, old, r, c, 11, first); });
  }
  return cases;
}

/// Representable in bf16, with sizes from that of a sum to far larger ones, so that double rounding is detected.
inline const std::vector<float> kOldGradients = {0.0f, 1.0f, -2.5f, 0.0078125f, 256.0f, -1024.0f, 31.0f};

}  // namespace te::testing
