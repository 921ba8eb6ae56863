// RMSNorm of queries and keys inside the packed output of linear_qkv, in front of the rotary embedding: of each head
// (Qwen3) or of all heads as one row (OLMo 2). How wide a norm is follows from its gain:
//   x = q or k of a token, cut into pieces as wide as the gain;  y = x * rstd * gain,  rstd = 1 / sqrt(mean(x^2) + eps)
// or, with zero_centered, 1 + gain in gain's place (Gemma).
// Statistics and sums are FP32, y is rounded once. Works in place; what the backward pass needs is copied out on the
// way.
//
// Norms of all heads may be shared by tensor ranks, each of which has an equal part of the heads and of the gains
// (`ranks`). Either pass is then two calls with a sum over the ranks between them, of one number per token and norm:
//   qk_norm_forward_sums   sums = sum(x^2) over this rank's columns           (all ranks add theirs up)
//   qk_norm_forward        rstd = 1 / sqrt(sums / columns of all ranks + eps)
//   qk_norm_backward_sums  sums = sum(dy * gain * x * rstd), likewise         (all ranks add theirs up)
//   qk_norm_backward
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Queries and keys in a packed buffer, [rows, (heads + 2 groups) * head_dim]: q | k | v.
struct QkShape {
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;
  int64_t head_dim = 0;
  int64_t q_width() const { return num_heads * head_dim; }
  int64_t k_width() const { return num_query_groups * head_dim; }
};

struct QkNormForward {
  QkShape shape;
  float eps = 1e-6f;
  Tensor qkv;             ///< in/out: q and k are normalized
  Tensor q_gain, k_gain;  ///< dtype of qkv; widths that divide q_width() and k_width()
  Tensor raw;             ///< optional, out [rows, q_width() + k_width()]: q and k as they were
  Tensor rstd;            ///< with raw, out [rows, qk_norm_pieces(...)] fp32
  int64_t ranks = 1;      ///< that share each norm
  Tensor sums;            ///< with ranks > 1: [rows, qk_norm_pieces(...)] fp32
  bool zero_centered = false;
};
/// Writes `sums` of this rank, and nothing else.
void qk_norm_forward_sums(const Context& context, const QkNormForward& args);
void qk_norm_forward(const Context& context, const QkNormForward& args);

struct QkNormBackward {
  QkShape shape;
  Tensor dqkv;  ///< in/out, like qkv: the gradient of y becomes that of x; that of v stays
  Tensor q_gain, k_gain;
  Tensor raw, rstd;
  Tensor dq_gain, dk_gain;  ///< fp32 or bf16 (rounded once), +=; FP32 sums in a fixed order
  Tensor scratch;           ///< fp32, at least qk_norm_scratch_elements(q_gain, k_gain)
  int64_t ranks = 1;        ///< that share each norm; the gains' gradients are this rank's own
  Tensor sums;              ///< with ranks > 1: [rows, qk_norm_pieces(...)] fp32
  bool zero_centered = false;
};
/// Writes `sums` of this rank, and nothing else.
void qk_norm_backward_sums(const Context& context, const QkNormBackward& args);
void qk_norm_backward(const Context& context, const QkNormBackward& args);

/// Pieces of a row: q_width() / width of q_gain, and likewise of k.
int64_t qk_norm_pieces(const QkShape& shape, int64_t q_gain, int64_t k_gain);
int64_t qk_norm_scratch_elements(int64_t q_gain, int64_t k_gain);

}  // namespace te::kernels
