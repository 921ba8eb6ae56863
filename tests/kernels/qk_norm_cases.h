// Packed queries, keys and values with gains, for the tests of both backends.
#pragma once

#include <string>
#include <vector>

#include "kernels/qk_norm/qk_norm.h"
#include "testing/testing.h"

namespace te::testing {

struct QkNormCase {
  int64_t rows, heads, groups, dim;
  bool whole;  ///< one norm of all heads instead of one in each
  int64_t q_gain() const { return whole ? heads * dim : dim; }
  int64_t k_gain() const { return whole ? groups * dim : dim; }
  kernels::QkShape shape() const { return {heads, groups, dim}; }
  std::string name() const {
    return fmt::format("{} rows, {}/{} heads of {}{}", rows, heads, groups, dim, whole ? ", whole" : "");
  }
};

/// One element, odd widths, heads of a warp's vectors, more rows than parts of the sums.
inline std::vector<QkNormCase> qk_norm_cases() {
  return {{1, 1, 1, 1, false},   {3, 2, 1, 5, false}, {70, 4, 2, 16, false}, {130, 3, 3, 128, false},
          {33, 8, 2, 96, false}, {5, 2, 1, 7, true},  {200, 4, 2, 64, true}};
}

struct QkNormData {
  QkNormData(const Context& context, const QkNormCase& c, DType dtype)
      : c(c),
        qkv(context, dtype, {c.rows, (c.heads + 2 * c.groups) * c.dim}),
        dqkv(context, dtype, {c.rows, (c.heads + 2 * c.groups) * c.dim}),
        raw(context, dtype, {c.rows, (c.heads + c.groups) * c.dim}),
        rstd(context, DType::f32, {c.rows, kernels::qk_norm_pieces(c.shape(), c.q_gain(), c.k_gain())}),
        q_gain(context, dtype, {c.q_gain()}),
        k_gain(context, dtype, {c.k_gain()}),
        dq_gain(context, DType::f32, {c.q_gain()}),
        dk_gain(context, DType::f32, {c.k_gain()}),
        scratch(context, DType::f32, {kernels::qk_norm_scratch_elements(c.q_gain(), c.k_gain())}) {
    qkv.fill_normal(1, 2.0f), dqkv.fill_normal(2);
    q_gain.fill_normal(3, 0.2f, 1.0f), k_gain.fill_normal(4, 0.2f, 1.0f);
    dq_gain.fill_value(0.5f), dk_gain.fill_value(-0.5f);
  }
  kernels::QkNormForward forward() { return {c.shape(), kEps, qkv, q_gain, k_gain, raw, rstd}; }
  kernels::QkNormBackward backward() {
    return {c.shape(), dqkv, q_gain, k_gain, raw, rstd, dq_gain, dk_gain, scratch};
  }

  static constexpr float kEps = 1e-3f;
  QkNormCase c;
  TestTensor qkv, dqkv, raw, rstd, q_gain, k_gain, dq_gain, dk_gain, scratch;
};

}  // namespace te::testing
