// Packed queries, keys and values with gains, for the tests of both backends.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "kernels/qk_norm/qk_norm.h"
#include "testing/testing.h"

namespace te::testing {

struct QkNormCase {
  int64_t rows, heads, groups, dim;
  bool whole;  ///< one norm of all heads instead of one per head
  bool zero_centered = false;
  int64_t q_gain() const { return whole ? heads * dim : dim; }
  int64_t k_gain() const { return whole ? groups * dim : dim; }
  kernels::QkShape shape() const { return {heads, groups, dim}; }
  std::string name() const {
    return fmt::format("{} rows, {}/{} heads of {}{}{}", rows, heads, groups, dim, whole ? ", whole" : "",
                       zero_centered ? ", zero-centered" : "");
  }
};

/// One element, odd widths, heads of one warp's vectors, more rows than parts of the sums.
inline std::vector<QkNormCase> qk_norm_cases() {
  return {{1, 1, 1, 1, false},   {3, 2, 1, 5, false}, {70, 4, 2, 16, false}, {130, 3, 3, 128, false},
          {33, 8, 2, 96, false}, {5, 2, 1, 7, true},  {200, 4, 2, 64, true}, {70, 4, 2, 16, false, true}};
}

struct QkNormData {
  QkNormData(const Context& context, const QkNormCase& c, DType dtype)
      : c(c),
        qkv(context, dtype, {c.rows, (c.heads + 2 * c.groups) * c.dim}),
        dqkv(context, dtype, {c.rows, (c.heads + 2 * c.groups) * c.dim}),
        raw(context, dtype, {c.rows, (c.heads + c.groups) * c.dim}),
        rstd(context, DType::f32, {c.rows, kernels::qk_norm_segments(c.shape(), c.q_gain(), c.k_gain())}),
        q_gain(context, dtype, {c.q_gain()}),
        k_gain(context, dtype, {c.k_gain()}),
        dq_gain(context, DType::f32, {c.q_gain()}),
        dk_gain(context, DType::f32, {c.k_gain()}),
        scratch(context, DType::f32, {kernels::qk_norm_scratch_elements(c.q_gain(), c.k_gain())}) {
    qkv.fill_normal(1, 2.0f), dqkv.fill_normal(2);
    const float middle = c.zero_centered ? 0.0f : 1.0f;
    q_gain.fill_normal(3, 0.2f, middle), k_gain.fill_normal(4, 0.2f, middle);
    dq_gain.fill_value(0.5f), dk_gain.fill_value(-0.5f);
  }
  kernels::QkNormForward forward() {
    kernels::QkNormForward args{c.shape(), kEps, qkv, q_gain, k_gain, raw, rstd};
    args.zero_centered = c.zero_centered;
    return args;
  }
  kernels::QkNormBackward backward() {
    kernels::QkNormBackward args{c.shape(), dqkv, q_gain, k_gain, raw, rstd, dq_gain, dk_gain, scratch};
    args.zero_centered = c.zero_centered;
    return args;
  }

  static constexpr float kEps = 1e-3f;
  QkNormCase c;
  TestTensor qkv, dqkv, raw, rstd, q_gain, k_gain, dq_gain, dk_gain, scratch;
};

/// A norm of all heads, sharded across ranks: each has its part of heads, groups and gains, and all run on one device.
class SharedQkNorm {
 public:
  SharedQkNorm(const Context& context, const QkNormData& whole, int64_t ranks) : ranks_(ranks) {
    const QkNormCase& c = whole.c;
    TE_CHECK(c.whole && c.heads % ranks == 0 && c.groups % ranks == 0, "{} ranks share {}", ranks, c.name());
    const QkNormCase part{c.rows, c.heads / ranks, c.groups / ranks, c.dim, true};
    const int64_t q = part.heads * c.dim, k = part.groups * c.dim;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      QkNormData& data = parts_.emplace_back(context, part, whole.qkv.get().dtype);
      sums_.emplace_back(context, DType::f32, Shape{c.rows, 2});
      data.qkv.fill(slice(whole.qkv, {q, k, k}, rank));
      data.dqkv.fill(slice(whole.dqkv, {q, k, k}, rank));
      data.q_gain.fill(slice(whole.q_gain, {q}, rank));
      data.k_gain.fill(slice(whole.k_gain, {k}, rank));
    }
  }

  /// Runs both passes. Afterwards every rank has its part of the unsharded results.
  void run(const Context& context) {
    const auto forward = [&](size_t i) { return with_sums(parts_[i].forward(), i); };
    const auto backward = [&](size_t i) { return with_sums(parts_[i].backward(), i); };
    for (size_t i = 0; i < parts_.size(); ++i) kernels::qk_norm_forward_sums(context, forward(i));
    add_up();
    for (size_t i = 0; i < parts_.size(); ++i) kernels::qk_norm_forward(context, forward(i));
    for (size_t i = 0; i < parts_.size(); ++i) kernels::qk_norm_backward_sums(context, backward(i));
    add_up();
    for (size_t i = 0; i < parts_.size(); ++i) kernels::qk_norm_backward(context, backward(i));
  }
  std::deque<QkNormData>& parts() { return parts_; }

  /// One rank's part of rows that consist of blocks of columns, each sharded across ranks. `blocks`: widths within a
  /// part.
  std::vector<float> slice(const TestTensor& tensor, const std::vector<int64_t>& blocks, int64_t rank) const {
    int64_t columns = 0;
    for (const int64_t width : blocks) columns += width * ranks_;
    const std::vector<float> values = tensor.floats();
    std::vector<float> part;
    for (auto row = values.begin(); row != values.end(); row += columns) {
      auto block = row;
      for (const int64_t width : blocks) {
        part.insert(part.end(), block + rank * width, block + (rank + 1) * width);
        block += ranks_ * width;
      }
    }
    return part;
  }

 private:
  template <class Args>
  Args with_sums(Args args, size_t rank) const {
    args.ranks = ranks_;
    args.sums = sums_[rank];
    return args;
  }
  /// Simulates an all-reduce.
  void add_up() {
    std::vector<float> total(sums_[0].floats().size());
    for (const TestTensor& sums : sums_) {
      const std::vector<float> values = sums.floats();
      for (size_t i = 0; i < total.size(); ++i) total[i] += values[i];
    }
    for (TestTensor& sums : sums_) sums.fill(total);
  }

  int64_t ranks_;
  std::deque<QkNormData> parts_;
  std::deque<TestTensor> sums_;
};

/// Runs the unsharded norm on the CPU and the sharded one on `context`, and compares the parts in relative terms.
inline void expect_shared_qk_norm(const Context& context, const QkNormCase& c, int64_t ranks, DType dtype,
                                  double bound) {
  const Context cpu = Context::cpu();
  QkNormData whole(cpu, c, dtype);
  SharedQkNorm shared(context, whole, ranks);
  kernels::qk_norm_forward(cpu, whole.forward());
  kernels::qk_norm_backward(cpu, whole.backward());
  shared.run(context);
  const int64_t q = c.heads / ranks * c.dim, k = c.groups / ranks * c.dim;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    QkNormData& part = shared.parts()[static_cast<size_t>(rank)];
    const auto expect = [&](const char* what, const TestTensor& actual, const TestTensor& all,
                            const std::vector<int64_t>& blocks, double limit) {
      EXPECT_LT(max_relative_error(actual.floats(), shared.slice(all, blocks, rank), 0.1), limit)
          << what << " of rank " << rank;
    };
    expect("qkv", part.qkv, whole.qkv, {q, k, k}, bound);
    expect("dqkv", part.dqkv, whole.dqkv, {q, k, k}, bound);
    // Sums over tokens of FP32 products: only the statistics are rounded, for all dtypes of the tensors.
    expect("dq_gain", part.dq_gain, whole.dq_gain, {q}, 1e-4);
    expect("dk_gain", part.dk_gain, whole.dk_gain, {k}, 1e-4);
    EXPECT_EQ(part.raw.floats(), shared.slice(whole.raw, {q, k}, rank));
  }
}

/// Cases and numbers of ranks: an odd head_dim, vectors, four ranks.
inline std::vector<std::pair<QkNormCase, int64_t>> shared_qk_norm_cases() {
  return {{{5, 2, 2, 7, true}, 2}, {{70, 8, 4, 16, true}, 4}, {{33, 8, 2, 64, true}, 2}};
}

}  // namespace te::testing
