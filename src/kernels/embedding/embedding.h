// Token embedding with optional learned positions, and its gradient: a scatter-add made deterministic by sorting the
// tokens. A tensor-parallel rank may hold a slice of the vocabulary: its table has the tokens [first_token, first_token
// + rows of the table). The sum of all ranks' outputs equals the output with the full table, and each rank computes the
// gradient of its own rows.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

struct EmbeddingForward {
  Tensor tokens;     ///< [rows] int32, 0 <= token < vocab (checked by the data loader)
  Tensor table;      ///< [vocab or a slice of it, hidden]; tokens outside the slice contribute zeros
  Tensor positions;  ///< optional [>= seq, hidden]: row r adds positions[r % seq]
  int64_t seq = 0;
  Tensor out;  ///< [rows, hidden], dtype of table; the sum is FP32, rounded once
  int64_t first_token = 0;
  Tensor
      position_ids;  ///< optional int32 [rows]: row r adds positions[position_ids[r]], not positions[r % seq]
};
void embedding_forward(const Context& context, const EmbeddingForward& args);

struct EmbeddingBackward {
  Tensor tokens;  ///< [rows] int32
  Tensor dout;    ///< [rows, hidden] fp32, bf16 or fp16
  int64_t seq = 0;
  /// fp32 or bf16 [vocab or a slice of it, hidden]; the gradient is added to it. Tokens outside the slice are skipped.
  /// In bf16, the FP32 sum of a token's rows is added and rounded once. Optional.
  Tensor dtable;
  Tensor dpositions;  ///< optional [>= seq, hidden], dtype of dtable, if given; also accumulated
  Tensor workspace;   ///< u8, embedding_backward_workspace_bytes(...)
  int64_t first_token = 0;
};
/// Deterministic: the order of additions does not depend on the scheduling of threads.
void embedding_backward(const Context& context, const EmbeddingBackward& args);
int64_t embedding_backward_workspace_bytes(const Context& context, int64_t rows, int64_t hidden);

}  // namespace te::kernels
