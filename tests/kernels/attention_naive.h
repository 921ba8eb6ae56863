// Definition of attention in double precision, and the tensors of both passes, shared by the CPU tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/random.h"
#include "kernels/attention/attention.h"
#include "kernels/attention_documents.h"
#include "testing/testing.h"

namespace te::kernels {

using te::testing::count_different;
using te::testing::relative_error;
using te::testing::TestTensor;

inline constexpr uint64_t kSeed = 5;

using Values = std::vector<double>;

/// The definition, head by head.
class Naive {
 public:
  explicit Naive(const AttentionShape& shape, std::vector<int32_t> document_start = {})
      : s_(shape), start_(std::move(document_start)) {}

  int64_t qkv_cols() const { return (s_.num_heads + 2 * s_.num_query_groups) * s_.head_dim; }
  int64_t o_cols() const { return s_.num_heads * s_.head_dim; }

  /// Computes o and lse from qkv, and also dqkv if d_o is given.
  void run(const Values& qkv, Values& o, Values& lse, const Values* d_o = nullptr,
           Values* dqkv = nullptr) const {
    o.assign(static_cast<size_t>(s_.batch * s_.seq * o_cols()), 0.0);
    lse.assign(static_cast<size_t>(s_.batch * s_.num_heads * s_.seq), 0.0);
    if (dqkv != nullptr) dqkv->assign(qkv.size(), 0.0);
    for (int64_t b = 0; b < s_.batch; ++b)
      for (int64_t h = 0; h < s_.num_heads; ++h)
        for (int64_t i = 0; i < s_.seq; ++i) query(qkv, o, lse, d_o, dqkv, b, h, i);
  }

 private:
  size_t at(int64_t b, int64_t i, int64_t head) const {
    return static_cast<size_t>((b * s_.seq + i) * qkv_cols() + head * s_.head_dim);
  }
  double dot(const double* x, const double* y) const {
    double sum = 0;
    for (int64_t d = 0; d < s_.head_dim; ++d) sum += x[d] * y[d];
    return sum;
  }
  double keep(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (s_.dropout == 0.0f) return 1.0;
    const int64_t row = (b * s_.num_heads + h) * s_.seq + i;
    const Philox4 random = philox(kSeed, 0, static_cast<uint64_t>(row * ((s_.seq + 3) / 4) + j / 4));
    return random.word[j % 4] >= double{s_.dropout} * 4294967296.0 ? 1.0 / (1.0 - double{s_.dropout}) : 0.0;
  }

  void query(const Values& qkv, Values& o, Values& lse, const Values* d_o, Values* dqkv, int64_t b, int64_t h,
             int64_t i) const {
    const int64_t group = h / (s_.num_heads / s_.num_query_groups);
    const int64_t k_head = s_.num_heads + group, v_head = k_head + s_.num_query_groups;
    const size_t q = at(b, i, h), out = static_cast<size_t>((b * s_.seq + i) * o_cols() + h * s_.head_dim);
    const int64_t document = start_.empty() ? 0 : start_[static_cast<size_t>(b * s_.seq + i)];
    const int64_t first = s_.window == 0 ? document : std::max(document, i - s_.window + 1);
    Values p(static_cast<size_t>(i + 1));
    double total = 0;
    for (int64_t j = first; j <= i; ++j) {
      p[static_cast<size_t>(j)] = std::exp(double{s_.softmax_scale} * dot(&qkv[q], &qkv[at(b, j, k_head)]));
      total += p[static_cast<size_t>(j)];
    }
    lse[static_cast<size_t>((b * s_.num_heads + h) * s_.seq + i)] = std::log(total);
    double delta = 0;
    for (int64_t j = first; j <= i; ++j) {
      p[static_cast<size_t>(j)] /= total;
      const double weight = p[static_cast<size_t>(j)] * keep(b, h, i, j);
      const size_t v = at(b, j, v_head);
      for (int64_t d = 0; d < s_.head_dim; ++d) o[out + d] += weight * qkv[v + d];
      if (dqkv == nullptr) continue;
      for (int64_t d = 0; d < s_.head_dim; ++d) (*dqkv)[v + d] += weight * (*d_o)[out + d];
      delta += weight * dot(&(*d_o)[out], &qkv[v]);
    }
    if (dqkv == nullptr) return;
    for (int64_t j = first; j <= i; ++j) {
      const double dp = keep(b, h, i, j) * dot(&(*d_o)[out], &qkv[at(b, j, v_head)]);
      const double ds = double{s_.softmax_scale} * p[static_cast<size_t>(j)] * (dp - delta);
      const size_t k = at(b, j, k_head);
      for (int64_t d = 0; d < s_.head_dim; ++d) {
        (*dqkv)[q + d] += ds * qkv[k + d];
        (*dqkv)[k + d] += ds * qkv[q + d];
      }
    }
  }

  AttentionShape s_;
  std::vector<int32_t> start_;
};

inline Values widen(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}
inline std::vector<float> narrow(const Values& values) {
  return {values.begin(), values.end()};
}

inline AttentionShape shape_of(int64_t batch, int64_t seq, int64_t heads, int64_t groups, int64_t dim,
                               float dropout = 0.0f) {
  return {batch, seq, heads, groups, dim, 1.0f / std::sqrt(static_cast<float>(dim)), dropout};
}

/// Tensors of one attention, and both passes over them.
struct Problem {
  Problem(const Context& context, const AttentionShape& shape, DType dtype)
      : context(context),
        shape(shape),
        qkv(context, dtype, {shape.batch * shape.seq, Naive(shape).qkv_cols()}),
        o(context, dtype, {shape.batch * shape.seq, Naive(shape).o_cols()}),
        lse(context, DType::f32, {shape.batch, shape.num_heads, shape.seq}),
        d_o(context, dtype, {shape.batch * shape.seq, Naive(shape).o_cols()}),
        dqkv(context, dtype, {shape.batch * shape.seq, Naive(shape).qkv_cols()}) {
    qkv.fill_normal(1, 1.5f);
    d_o.fill_normal(2);
  }
  void forward() { attention_forward(context, {shape, qkv, o, lse, {}, kSeed, document_start}); }
  void backward() { attention_backward(context, {shape, qkv, o, lse, d_o, dqkv, {}, kSeed, document_start}); }

  const Context& context;
  AttentionShape shape;
  TestTensor qkv, o, lse, d_o, dqkv;
  Tensor document_start;
};

inline void check_against_naive(AttentionShape shape, DType dtype, bool documents = false) {
  SCOPED_TRACE(fmt::format("batch {} seq {} heads {}/{} dim {} dropout {} window {} {}", shape.batch,
                           shape.seq, shape.num_heads, shape.num_query_groups, shape.head_dim, shape.dropout,
                           shape.window, dtype_name(dtype)));
  const Context context = Context::cpu();
  std::vector<int32_t> start;
  if (documents) {
    start = some_documents(shape.batch, shape.seq);
    shape.max_documents = count_documents(start.data(), shape.batch, shape.seq);
  }
  Problem problem(context, shape, dtype);
  if (documents) problem.document_start = {start.data(), DType::i32, {shape.batch * shape.seq}};
  problem.forward();
  problem.backward();
  Values o, lse, dqkv;
  const Values d_o = widen(problem.d_o.floats());
  Naive(shape, start).run(widen(problem.qkv.floats()), o, lse, &d_o, &dqkv);
  // BF16: results are rounded once (relative 2^-9 at most, rms about 2^-10), and delta is computed from the rounded o.
  EXPECT_LT(relative_error(problem.o.floats(), narrow(o)), dtype == DType::f32 ? 1e-6 : 2.5e-3);
  EXPECT_LT(relative_error(problem.lse.floats(), narrow(lse)), 1e-6);
  EXPECT_LT(relative_error(problem.dqkv.floats(), narrow(dqkv)), dtype == DType::f32 ? 4e-6 : 8e-3);
  // Every element is close to its own value, in units of the typical one.
  const std::vector<float> actual = problem.dqkv.floats();
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], dqkv[i], (dtype == DType::f32 ? 1e-5 : 5e-2) * (1.0 + std::abs(dqkv[i]))) << i;
}

}  // namespace te::kernels
