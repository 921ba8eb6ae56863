// Attention of query ranges on both backends: the tokens of every sample are distributed to ranks as in context
// parallelism, each rank attends with its own queries and all keys, and the results are joined.
#pragma once

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "testing/testing.h"

namespace te::kernels {

using te::testing::TestTensor;

/// o, lse and dqkv of full samples, in FP32.
struct AttentionResults {
  std::vector<float> o, lse, dqkv;
};

struct RangeProblem {
  AttentionShape shape;  ///< of full samples, without a range
  DType dtype = DType::f32;
  std::vector<float> qkv, d_o;
  std::vector<int32_t> document_start{};  ///< may be empty
  uint64_t seed = 5;

  RangeProblem(const AttentionShape& whole, DType type) : shape(whole), dtype(type) {
    qkv = te::testing::normal_values(shape.batch * shape.seq * qkv_cols(), 1, 1.5f);
    d_o = te::testing::normal_values(shape.batch * shape.seq * o_cols(), 2);
  }
  int64_t kv_cols() const { return 2 * shape.num_query_groups * shape.head_dim; }
  int64_t o_cols() const { return shape.num_heads * shape.head_dim; }
  int64_t qkv_cols() const { return o_cols() + kv_cols(); }
};

namespace attention_ranges {

inline std::vector<float> rows(const std::vector<float>& values, int64_t cols, int64_t begin, int64_t count) {
  return {values.begin() + begin * cols, values.begin() + (begin + count) * cols};
}

/// Columns [first, cols) of all rows.
inline std::vector<float> last_columns(const std::vector<float>& values, int64_t cols, int64_t first) {
  std::vector<float> part;
  for (size_t at = 0; at < values.size(); at += static_cast<size_t>(cols))
    part.insert(part.end(), values.begin() + static_cast<int64_t>(at) + first,
                values.begin() + static_cast<int64_t>(at) + cols);
  return part;
}

/// Document starts in device memory.
class Starts {
 public:
  Starts(const Context& context, const std::vector<int32_t>& starts)
      : tensor_(context, DType::i32, {std::max<int64_t>(1, static_cast<int64_t>(starts.size()))}) {
    if (!starts.empty()) tensor_.fill_ints(starts), has_starts_ = true;
  }
  Tensor get() const { return has_starts_ ? tensor_.get() : Tensor{}; }

 private:
  TestTensor tensor_;
  bool has_starts_ = false;
};

}  // namespace attention_ranges

/// Computes everything in one call.
inline AttentionResults attend_full(const Context& context, const RangeProblem& p) {
  const AttentionShape& s = p.shape;
  const int64_t rows = s.batch * s.seq;
  TestTensor qkv(context, p.dtype, {rows, p.qkv_cols()}), o(context, p.dtype, {rows, p.o_cols()});
  TestTensor lse(context, DType::f32, {s.batch, s.num_heads, s.seq}),
      d_o(context, p.dtype, {rows, p.o_cols()});
  TestTensor dqkv(context, p.dtype, {rows, p.qkv_cols()});
  TestTensor workspace(context, DType::u8,
                       {std::max<int64_t>(1, attention_workspace_bytes(context, s, p.dtype))});
  const attention_ranges::Starts starts(context, p.document_start);
  qkv.fill(p.qkv), d_o.fill(p.d_o);
  attention_forward(context, {s, qkv, o, lse, workspace, p.seed, starts.get()});
  attention_backward(context, {s, qkv, o, lse, d_o, dqkv, workspace, p.seed, starts.get()});
  return {o.floats(), lse.floats(), dqkv.floats()};
}

/// Consecutive queries of every sample.
struct Chunk {
  int64_t position, count;
};

namespace attention_ranges {

/// Rows of the chunks in every sample.
inline std::vector<float> rows_of(const std::vector<float>& values, int64_t cols, const AttentionShape& s,
                                  const std::vector<Chunk>& chunks) {
  std::vector<float> own;
  for (int64_t b = 0; b < s.batch; ++b)
    for (const Chunk& chunk : chunks) {
      const auto part = rows(values, cols, b * s.seq + chunk.position, chunk.count);
      own.insert(own.end(), part.begin(), part.end());
    }
  return own;
}

/// Tensors of a rank, and calls for its chunks.
class Rank {
 public:
  Rank(const Context& context, const RangeProblem& p, const std::vector<Chunk>& chunks)
      : context_(context),
        p_(p),
        local_(std::accumulate(chunks.begin(), chunks.end(), int64_t{0},
                               [](int64_t sum, const Chunk& chunk) { return sum + chunk.count; })),
        rows_(p.shape.batch * local_),
        qkv_(context, p.dtype, {rows_, p.qkv_cols()}),
        d_o_(context, p.dtype, {rows_, p.o_cols()}),
        kv_(context, p.dtype, {p.shape.batch * p.shape.seq, p.kv_cols()}),
        starts_(context, p.document_start) {
    qkv_.fill(rows_of(p.qkv, p.qkv_cols(), p.shape, chunks));
    d_o_.fill(rows_of(p.d_o, p.o_cols(), p.shape, chunks));
    kv_.fill(last_columns(p.qkv, p.qkv_cols(), p.o_cols()));
  }

  /// Adds the results to `all`; checks that the call writes only its own rows. `first`: index of the chunk's first
  /// token among the rank's tokens.
  void attend(const Chunk& chunk, int64_t first, AttentionResults& all) {
    const AttentionShape& s = p_.shape;
    AttentionShape shape = s;
    shape.range = {.count = chunk.count, .position = chunk.position, .rows = local_, .first = first};
    TestTensor o(context_, p_.dtype, {rows_, p_.o_cols()}), dqkv(context_, p_.dtype, {rows_, p_.qkv_cols()});
    TestTensor lse(context_, DType::f32, {s.batch, s.num_heads, chunk.count});
    TestTensor dkv(context_, p_.dtype, {s.batch * s.seq, p_.kv_cols()});
    o.fill_value(-7.0f), dqkv.fill_value(-7.0f), dkv.fill_value(-7.0f);
    TestTensor workspace(context_, DType::u8,
                         {std::max<int64_t>(1, attention_workspace_bytes(context_, shape, p_.dtype))});
    attention_forward(context_, {.shape = shape,
                                 .qkv = qkv_,
                                 .o = o,
                                 .lse = lse,
                                 .workspace = workspace,
                                 .dropout_seed = p_.seed,
                                 .document_start = starts_.get(),
                                 .kv = kv_});
    attention_backward(context_, {.shape = shape,
                                  .qkv = qkv_,
                                  .o = o,
                                  .lse = lse,
                                  .d_o = d_o_,
                                  .dqkv = dqkv,
                                  .workspace = workspace,
                                  .dropout_seed = p_.seed,
                                  .document_start = starts_.get(),
                                  .kv = kv_,
                                  .dkv = dkv});
    collect_queries(shape.range, o.floats(), dqkv.floats(), lse.floats(), all);
    collect_keys(shape.range, dkv.floats(), all);
  }

 private:
  void collect_queries(const QueryRange& range, const std::vector<float>& o, const std::vector<float>& dq,
                       const std::vector<float>& lse, AttentionResults& all) const {
    const AttentionShape& s = p_.shape;
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t b = row / local_, in_range = row % local_ - range.first;
      const int64_t whole = b * s.seq + range.position + in_range;
      for (int64_t c = 0; c < p_.o_cols(); ++c) {
        const float value = o[static_cast<size_t>(row * p_.o_cols() + c)],
                    gradient = dq[static_cast<size_t>(row * p_.qkv_cols() + c)];
        if (in_range < 0 || in_range >= range.count) {
          EXPECT_EQ(value, -7.0f) << "o of another range was written";
          EXPECT_EQ(gradient, -7.0f) << "dq of another range was written";
          continue;
        }
        all.o[static_cast<size_t>(whole * p_.o_cols() + c)] = value;
        all.dqkv[static_cast<size_t>(whole * p_.qkv_cols() + c)] = gradient;
      }
    }
    for (int64_t head = 0; head < s.batch * s.num_heads; ++head)
      for (int64_t i = 0; i < range.count; ++i)
        all.lse[static_cast<size_t>(head * s.seq + range.position + i)] =
            lse[static_cast<size_t>(head * range.count + i)];
  }
  void collect_keys(const QueryRange& range, const std::vector<float>& dkv, AttentionResults& all) const {
    for (int64_t row = 0; row < p_.shape.batch * p_.shape.seq; ++row)
      for (int64_t c = 0; c < p_.kv_cols(); ++c) {
        const float value = dkv[static_cast<size_t>(row * p_.kv_cols() + c)];
        if (row % p_.shape.seq >= range.keys()) {
          EXPECT_EQ(value, -7.0f) << "the gradient of a later key was written";
        } else {
          all.dqkv[static_cast<size_t>(row * p_.qkv_cols() + p_.o_cols() + c)] += value;
        }
      }
  }

  const Context& context_;
  const RangeProblem& p_;
  int64_t local_, rows_;
  TestTensor qkv_, d_o_, kv_;
  Starts starts_;
};

}  // namespace attention_ranges

/// Each rank has some chunks; results for tokens of no rank stay 0. Gradients of keys and values are summed over the
/// calls.
inline AttentionResults attend_in_chunks(const Context& context, const RangeProblem& p,
                                         const std::vector<std::vector<Chunk>>& ranks) {
  const AttentionShape& s = p.shape;
  AttentionResults all;
  all.o.resize(static_cast<size_t>(s.batch * s.seq * p.o_cols()));
  all.lse.resize(static_cast<size_t>(s.batch * s.num_heads * s.seq));
  all.dqkv.resize(static_cast<size_t>(s.batch * s.seq * p.qkv_cols()));
  for (const std::vector<Chunk>& chunks : ranks) {
    attention_ranges::Rank rank(context, p, chunks);
    int64_t first = 0;
    for (const Chunk& chunk : chunks) {
      rank.attend(chunk, first, all);
      first += chunk.count;
    }
  }
  return all;
}

/// Two ranges for each of `ranks` ranks: chunks r and 2 ranks - 1 - r of every sample.
inline AttentionResults attend_in_ranges(const Context& context, const RangeProblem& p, int ranks) {
  const int64_t count = p.shape.seq / (2 * ranks);
  std::vector<std::vector<Chunk>> all;
  for (int rank = 0; rank < ranks; ++rank)
    all.push_back({{rank * count, count}, {(2 * ranks - 1 - rank) * count, count}});
  return attend_in_chunks(context, p, all);
}

}  // namespace te::kernels
