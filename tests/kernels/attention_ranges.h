// Attention of ranges of queries, for both backends: the tokens of every sample are dealt out to ranks as context
// parallelism does it, each rank attends with its own queries and all keys, and what comes out is put together again.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "testing/testing.h"

namespace te::kernels {

using te::testing::TestTensor;

/// o, lse and dqkv of whole samples, in FP32.
struct AttentionResults {
  std::vector<float> o, lse, dqkv;
};

struct RangeProblem {
  AttentionShape shape;  ///< of whole samples, without a range
  DType dtype = DType::f32;
  std::vector<float> qkv, d_o;
  std::vector<int32_t> document_start{};  ///< or empty
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

/// Documents live in the device's memory.
class Starts {
 public:
  Starts(const Context& context, const std::vector<int32_t>& starts)
      : tensor_(context, DType::i32, {std::max<int64_t>(1, static_cast<int64_t>(starts.size()))}) {
    if (!starts.empty()) tensor_.fill_ints(starts), there_ = true;
  }
  Tensor get() const { return there_ ? tensor_.get() : Tensor{}; }

 private:
  TestTensor tensor_;
  bool there_ = false;
};

}  // namespace attention_ranges

/// One call for everything.
inline AttentionResults attend_whole(const Context& context, const RangeProblem& p) {
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

/// Two ranges for each of `ranks` ranks: chunk r and chunk 2 ranks - 1 - r of every sample. Checks that a call writes
/// its own rows alone. Gradients of keys and values are added up here.
inline AttentionResults attend_in_ranges(const Context& context, const RangeProblem& p, int ranks) {
  const AttentionShape& s = p.shape;
  const int64_t chunk = s.seq / (2 * ranks), local = 2 * chunk, rows = s.batch * local;
  AttentionResults all;
  all.o.resize(static_cast<size_t>(s.batch * s.seq * p.o_cols()));
  all.lse.resize(static_cast<size_t>(s.batch * s.num_heads * s.seq));
  all.dqkv.assign(static_cast<size_t>(s.batch * s.seq * p.qkv_cols()), 0.0f);
  TestTensor kv(context, p.dtype, {s.batch * s.seq, p.kv_cols()});
  kv.fill(attention_ranges::last_columns(p.qkv, p.qkv_cols(), p.o_cols()));
  const attention_ranges::Starts starts(context, p.document_start);
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t positions[] = {rank * chunk, (2 * ranks - 1 - rank) * chunk};
    std::vector<float> own_qkv, own_d_o;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (const int64_t position : positions) {
        const auto q = attention_ranges::rows(p.qkv, p.qkv_cols(), b * s.seq + position, chunk);
        const auto d = attention_ranges::rows(p.d_o, p.o_cols(), b * s.seq + position, chunk);
        own_qkv.insert(own_qkv.end(), q.begin(), q.end());
        own_d_o.insert(own_d_o.end(), d.begin(), d.end());
      }
    }
    TestTensor qkv(context, p.dtype, {rows, p.qkv_cols()}), d_o(context, p.dtype, {rows, p.o_cols()});
    qkv.fill(own_qkv), d_o.fill(own_d_o);
    for (int64_t range = 0; range < 2; ++range) {
      AttentionShape shape = s;
      shape.range = {.count = chunk, .position = positions[range], .rows = local, .first = range * chunk};
      TestTensor o(context, p.dtype, {rows, p.o_cols()}), dqkv(context, p.dtype, {rows, p.qkv_cols()});
      TestTensor lse(context, DType::f32, {s.batch, s.num_heads, chunk});
      TestTensor dkv(context, p.dtype, {s.batch * s.seq, p.kv_cols()});
      o.fill_value(-7.0f), dqkv.fill_value(-7.0f), dkv.fill_value(-7.0f);
      TestTensor workspace(context, DType::u8,
                           {std::max<int64_t>(1, attention_workspace_bytes(context, shape, p.dtype))});
      attention_forward(context, {.shape = shape,
                                  .qkv = qkv,
                                  .o = o,
                                  .lse = lse,
                                  .workspace = workspace,
                                  .dropout_seed = p.seed,
                                  .document_start = starts.get(),
                                  .kv = kv});
      attention_backward(context, {.shape = shape,
                                   .qkv = qkv,
                                   .o = o,
                                   .lse = lse,
                                   .d_o = d_o,
                                   .dqkv = dqkv,
                                   .workspace = workspace,
                                   .dropout_seed = p.seed,
                                   .document_start = starts.get(),
                                   .kv = kv,
                                   .dkv = dkv});
      const std::vector<float> found_o = o.floats(), found_dq = dqkv.floats(), found_lse = lse.floats(),
                               found_dkv = dkv.floats();
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t b = row / local, in_range = row % local - range * chunk;
        const bool mine = in_range >= 0 && in_range < chunk;
        const int64_t whole = b * s.seq + positions[range] + in_range;
        for (int64_t c = 0; c < p.o_cols(); ++c) {
          const float value = found_o[static_cast<size_t>(row * p.o_cols() + c)],
                      dq = found_dq[static_cast<size_t>(row * p.qkv_cols() + c)];
          if (!mine) {
            EXPECT_EQ(value, -7.0f) << "o of another range was written";
            EXPECT_EQ(dq, -7.0f) << "dq of another range was written";
            continue;
          }
          all.o[static_cast<size_t>(whole * p.o_cols() + c)] = value;
          all.dqkv[static_cast<size_t>(whole * p.qkv_cols() + c)] = dq;
        }
      }
      for (int64_t head = 0; head < s.batch * s.num_heads; ++head)
        for (int64_t i = 0; i < chunk; ++i)
          all.lse[static_cast<size_t>(head * s.seq + positions[range] + i)] =
              found_lse[static_cast<size_t>(head * chunk + i)];
      for (int64_t row = 0; row < s.batch * s.seq; ++row) {
        for (int64_t c = 0; c < p.kv_cols(); ++c) {
          const float value = found_dkv[static_cast<size_t>(row * p.kv_cols() + c)];
          if (row % s.seq >= shape.range.keys()) {
            EXPECT_EQ(value, -7.0f) << "the gradient of a later key was written";
          } else {
            all.dqkv[static_cast<size_t>(row * p.qkv_cols() + p.o_cols() + c)] += value;
          }
        }
      }
    }
  }
  return all;
}

}  // namespace te::kernels
