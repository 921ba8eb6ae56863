// Tensors of a norm test and double-precision references, shared by the CPU and GPU tests.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/norm/norm.h"
#include "testing/testing.h"

namespace te::testing {

using kernels::Fp8Counters;
using kernels::NormBackward;
using kernels::NormForward;
using kernels::NormKind;

constexpr NormKind kNormKinds[] = {NormKind::rms, NormKind::layer, NormKind::rms_zero_centered};
inline const char* norm_kind_name(NormKind kind) {
  return kind == NormKind::layer ? "layer" : kind == NormKind::rms ? "rms" : "rms zero-centered";
}

/// All tensors of a forward and a backward pass; inputs are filled from fixed seeds, outputs with NaN.
struct NormCase {
  const Context& context;
  NormKind kind;
  DType dtype;
  int64_t rows, hidden;
  TestTensor x{context, dtype, {rows, hidden}}, delta{context, dtype, {rows, hidden}};
  TestTensor sum{context, dtype, {rows, hidden}}, y{context, dtype, {rows, hidden}};
  TestTensor gamma{context, dtype, {hidden}}, beta{context, dtype, {hidden}};
  TestTensor mean{context, DType::f32, {rows}}, rstd{context, DType::f32, {rows}};
  TestTensor dy{context, dtype, {rows, hidden}}, dresidual{context, dtype, {rows, hidden}};
  TestTensor dx{context, dtype, {rows, hidden}};
  TestTensor dgamma{context, DType::f32, {hidden}}, dbeta{context, DType::f32, {hidden}};
  TestTensor dbias{context, DType::f32, {hidden}};
  TestTensor scratch{context, DType::f32, {kernels::norm_backward_scratch_elements(hidden)}};

  NormCase(const Context& c, NormKind k, DType type, int64_t r, int64_t h)
      : context(c), kind(k), dtype(type), rows(r), hidden(h) {
    x.fill_normal(1, 1.5f, 0.25f);
    delta.fill_normal(2);
    gamma.fill_normal(3, 0.2f, kind == NormKind::rms_zero_centered ? 0.0f : 1.0f);
    beta.fill_normal(4, 0.2f);
    dy.fill_normal(5);
    dresidual.fill_normal(6);
    dgamma.fill_normal(7);  // initial values of the sums
    dbeta.fill_normal(8);
    dbias.fill_normal(9);
  }

  NormForward forward() {
    NormForward args;
    args.kind = kind;
    args.x = x;
    args.gamma = gamma;
    args.rstd = rstd;
    if (kind == NormKind::layer) {
      args.beta = beta;
      args.mean = mean;
    }
    args.y = y;
    return args;
  }
  NormForward forward_with_delta() {
    NormForward args = forward();
    args.delta = delta;
    args.sum = sum;
    return args;
  }
  NormBackward backward() {
    NormBackward args;
    args.kind = kind;
    args.dy = dy;
    args.x = x;
    args.gamma = gamma;
    args.rstd = rstd;
    args.dx = dx;
    args.dgamma = dgamma;
    args.scratch = scratch;
    if (kind == NormKind::layer) {
      args.mean = mean;
      args.dbeta = dbeta;
    }
    return args;
  }
  NormBackward backward_with_residual() {
    NormBackward args = backward();
    args.dresidual = dresidual;
    return args;
  }
};

/// One FP8 output with all its parts in device memory; scale 8, amax 0, counters 0.
struct Fp8Case {
  TestTensor rowwise, columnwise, numbers, counters;

  Fp8Case(const Context& context, DType type, int64_t rows, int64_t cols, float scale = 8.0f)
      : rowwise(context, type, {rows, cols}),
        columnwise(context, type, {cols, rows}),
        numbers(context, DType::f32, {3}),
        counters(context, DType::u8, {static_cast<int64_t>(sizeof(Fp8Counters))}) {
    numbers.fill({scale, 0.0f, 0.0f});
    const Fp8Counters zero{};
    counters.fill_raw(&zero);
  }
  kernels::Fp8Output output(bool want_rowwise, bool want_columnwise) {
    kernels::Fp8Output out;
    if (want_rowwise) out.rowwise = rowwise;
    if (want_columnwise) out.columnwise = columnwise;
    float* p = numbers.get().as<float>();
    out.scale = p;
    out.scale_inv = p + 1;
    out.amax = p + 2;
    out.counters = counters.get().as<Fp8Counters>();
    return out;
  }
};

struct NormReference {
  std::vector<float> y, mean, rstd, dx, dgamma, dbeta;
};

/// The formulas in double precision, from the values as stored. Pass empty vectors for results that are not needed.
inline NormReference norm_reference(NormKind kind, int64_t rows, int64_t hidden, double eps,
                                    const std::vector<float>& x, const std::vector<float>& gamma,
                                    const std::vector<float>& beta, const std::vector<float>& dy,
                                    const std::vector<float>& dresidual, std::vector<float> dgamma,
                                    std::vector<float> dbeta) {
  NormReference out;
  std::vector<double> sum_gamma(hidden), sum_beta(hidden), gain(gamma.begin(), gamma.end());
  if (kind == NormKind::rms_zero_centered)
    for (double& value : gain) value += 1.0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x.data() + r * hidden;
    double mean = 0, variance = 0;
    if (kind == NormKind::layer) {
      for (int64_t c = 0; c < hidden; ++c) mean += row[c];
      mean /= static_cast<double>(hidden);
    }
    for (int64_t c = 0; c < hidden; ++c) variance += (row[c] - mean) * (row[c] - mean);
    const double rstd = 1 / std::sqrt(variance / static_cast<double>(hidden) + eps);
    out.mean.push_back(static_cast<float>(mean));
    out.rstd.push_back(static_cast<float>(rstd));
    double mean_g = 0, mean_gx = 0;
    for (int64_t c = 0; c < hidden; ++c) {
      const double x_hat = (row[c] - mean) * rstd;
      out.y.push_back(
          static_cast<float>(x_hat * gain[c] + (kind == NormKind::layer ? double{beta[c]} : 0.0)));
      if (dy.empty()) continue;
      const double upstream = dy[r * hidden + c];
      mean_g += upstream * gain[c] / static_cast<double>(hidden);
      mean_gx += upstream * gain[c] * x_hat / static_cast<double>(hidden);
      sum_gamma[c] += upstream * x_hat;
      sum_beta[c] += upstream;
    }
    if (kind != NormKind::layer) mean_g = 0;
    for (int64_t c = 0; c < hidden && !dy.empty(); ++c) {
      const double x_hat = (row[c] - mean) * rstd;
      const double residual = dresidual.empty() ? 0.0 : dresidual[r * hidden + c];
      out.dx.push_back(
          static_cast<float>(rstd * (dy[r * hidden + c] * gain[c] - mean_g - x_hat * mean_gx) + residual));
    }
  }
  for (int64_t c = 0; c < hidden && !dy.empty(); ++c) {
    out.dgamma.push_back(static_cast<float>(dgamma[c] + sum_gamma[c]));
    out.dbeta.push_back(static_cast<float>(dbeta[c] + sum_beta[c]));
  }
  return out;
}

}  // namespace te::testing
