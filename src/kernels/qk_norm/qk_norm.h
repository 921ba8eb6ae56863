// RMSNorm of queries and keys in the packed output of linear_qkv, before the rotary embedding, either of each head
// (Qwen3) or of all heads as one row (OLMo 2). The size of the gain determines the width of the norm: q and k of a
// token are split into segments x as wide as the gain, and
//   y = x * rstd * gain,  rstd = 1 / sqrt(mean(x^2) + eps)
// or, with zero_centered, 1 + gain instead of gain (Gemma).
// Statistics and sums are FP32; y is rounded once. The norm works in place and copies out what the backward pass needs.
//
// A norm of all heads may be sharded across tensor-parallel ranks, each with an equal part of the heads and gains
// (`ranks`). Each pass then consists of two calls with an all-reduce of one number per token and norm in between:
//   qk_norm_forward_sums   sums = sum(x^2) over this rank's columns           (then all-reduced)
//   qk_norm_forward        rstd = 1 / sqrt(sums / columns of all ranks + eps)
//   qk_norm_backward_sums  sums = sum(dy * gain * x * rstd), likewise         (then all-reduced)
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
  Tensor raw;             ///< optional output [rows, q_width() + k_width()]: q and k before the norm
  Tensor rstd;            ///< output with raw: [rows, qk_norm_segments(...)] fp32
  int64_t ranks = 1;      ///< ranks that share each norm
  Tensor sums;            ///< with ranks > 1: [rows, qk_norm_segments(...)] fp32
  bool zero_centered = false;
};
/// Writes only `sums` of this rank.
void qk_norm_forward_sums(const Context& context, const QkNormForward& args);
void qk_norm_forward(const Context& context, const QkNormForward& args);

struct QkNormBackward {
  QkShape shape;
  Tensor
      dqkv;  ///< in/out, layout of qkv: the gradient of y is replaced by that of x; v's gradient is unchanged
  Tensor q_gain, k_gain;
  Tensor raw, rstd;
  Tensor dq_gain,
      dk_gain;        ///< optional; fp32 or bf16 (rounded once), accumulated; FP32 sums in a fixed order
  Tensor scratch;     ///< fp32 [at least qk_norm_scratch_elements(q_gain, k_gain)]
  int64_t ranks = 1;  ///< ranks that share each norm; gain gradients are this rank's own
  Tensor sums;        ///< with ranks > 1: [rows, qk_norm_segments(...)] fp32
  bool zero_centered = false;
};
/// Writes only `sums` of this rank.
void qk_norm_backward_sums(const Context& context, const QkNormBackward& args);
void qk_norm_backward(const Context& context, const QkNormBackward& args);

/// Number of segments of a row: q_width() / width of q_gain, plus the same for k.
int64_t qk_norm_segments(const QkShape& shape, int64_t q_gain, int64_t k_gain);
int64_t qk_norm_scratch_elements(int64_t q_gain, int64_t k_gain);

}  // namespace te::kernels
