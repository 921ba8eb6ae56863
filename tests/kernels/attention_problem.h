// Tensors of both passes of attention on one device, with or without documents, for the tests of both backends.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "testing/testing.h"

namespace te::kernels {

struct AttentionProblem {
  using TestTensor = te::testing::TestTensor;

  /// `documents` is read only if the shape has any.
  AttentionProblem(const Context& on, const AttentionShape& of, const std::vector<int32_t>& documents,
                   int64_t workspace_bytes)
      : context(on),
        shape(of),
        rows(shape.batch * shape.seq),
        qkv(context, DType::bf16, {rows, (shape.num_heads + 2 * shape.num_query_groups) * shape.head_dim}),
        o(context, DType::bf16, {rows, shape.num_heads * shape.head_dim}),
        lse(context, DType::f32, {shape.batch, shape.num_heads, shape.seq}),
        d_o(context, DType::bf16, {rows, shape.num_heads * shape.head_dim}),
        dqkv(context, DType::bf16, qkv.get().shape),
        workspace(context, DType::u8, {std::max<int64_t>(1, workspace_bytes)}),
        start(context, DType::i32, {rows}) {
    qkv.fill_normal(1, 1.5f);
    d_o.fill_normal(2);
    start.fill_ints(documents);
  }

  AttentionForward forward() const { return {shape, qkv, o, lse, workspace, 77, document_start()}; }
  AttentionBackward backward() const {
    return {shape, qkv, o, lse, d_o, dqkv, workspace, 77, document_start()};
  }
  void run() {
    attention_forward(context, forward());
    attention_backward(context, backward());
  }
  Tensor document_start() const { return shape.max_documents > 0 ? start.get() : Tensor{}; }
  /// Columns [begin, end) of every row of dqkv.
  std::vector<float> gradients(int64_t begin, int64_t end) const {
    const std::vector<float> all = dqkv.floats();
    const int64_t cols = dqkv.get().cols();
    std::vector<float> part;
    for (int64_t row = 0; row < rows; ++row)
      part.insert(part.end(), all.begin() + row * cols + begin, all.begin() + row * cols + end);
    return part;
  }

  const Context& context;
  AttentionShape shape;
  int64_t rows;
  TestTensor qkv, o, lse, d_o, dqkv, workspace, start;
};

inline AttentionShape attention_shape(int64_t batch, int64_t seq, int64_t heads, int64_t groups, int64_t dim,
                                      float dropout = 0.0f) {
  return {batch, seq, heads, groups, dim, 1.0f / std::sqrt(static_cast<float>(dim)), dropout};
}

}  // namespace te::kernels
