// Softmax cross-entropy over one chunk of logits, fused with its gradient, in place. The output layer runs it chunk by
// chunk, so the logits of all tokens are never in memory at once, and FP32 logits are never stored (softmax statistics
// are FP32 in registers).
//
// z-loss (Chowdhery et al., "PaLM", arXiv 2204.02311; OLMo 2, arXiv 2501.00656, whose code averages over the unmasked
// tokens, as here): a token's term is z_loss (log Z)^2, where Z is the sum of exp(logit) over the vocabulary. The
// gradient is
//   (softmax (1 + 2 z_loss log Z) - onehot) grad_scale
// with the statistics that the softmax needs anyway. With z_loss 0, results are bitwise equal to those without it.
//
// Soft cap (kernels/common/soft_cap.h): the formulas use cap tanh(logit / cap) in FP32 instead of the logit, and the
// gradient is that of the logit itself. With soft_cap 0, results are bitwise equal to those without it.
#pragma once

#include "core/device.h"
#include "core/targets.h"
#include "core/tensor.h"

namespace te::kernels {

struct CrossEntropy {
  /// Input: [rows, padded_vocab] fp32, bf16 or fp16. Output if grad_scale != 0: the gradient.
  Tensor logits;
  Tensor targets;           ///< [rows] int32, columns, or without loss (core/targets.h)
  Tensor losses;            ///< output [rows] fp32: -log softmax[target]
  int64_t vocab = 0;        ///< columns >= vocab are padding: probability 0, gradient 0
  float grad_scale = 0.0f;  ///< 1 / (tokens of the global batch) in training; 0 = loss only, logits untouched
  float z_loss = 0.0f;      ///< coefficient
  float soft_cap = 0.0f;    ///< 0: none
  Tensor z_losses;          ///< optional output [rows] fp32: z_loss (log Z)^2, 0 for ignored targets
};
void cross_entropy(const Context& context, const CrossEntropy& args);

// Vocabulary-parallel cross-entropy: each rank holds a slice of the vocabulary and reduces its columns to three numbers
// per row. The caller all-gathers these, and every rank combines them in rank order, so that losses and softmax
// denominators are bitwise equal on all ranks. With one rank, the results are bitwise equal to cross_entropy's.

/// A rank's slice: column c is row first + c of the vocabulary. Columns at or after `vocab` are padding; a slice may
/// consist of padding only.
struct CrossEntropyStatistics {
  Tensor logits;      ///< [rows, local_columns] fp32, bf16 or fp16
  Tensor targets;     ///< [rows] int32, indices into the full vocabulary, or is_ignored()
  int64_t first = 0;  ///< vocabulary row of column 0
  int64_t vocab = 0;  ///< full vocabulary size over all ranks, without padding
  /// Output, fp32 [3, rows]: the largest logit (the lowest finite number if the slice is all padding), the sum of
  /// exp(logit - largest) (then 0), and the target's logit, or NaN if the slice does not hold it.
  Tensor statistics;
  float soft_cap = 0.0f;  ///< as in CrossEntropy; the statistics are those of capped logits
  /// Optional output [rows] fp32: 1 if a column of the slice before the target's has at least its logit, so that argmax
  /// returns another column than the target's; 0 otherwise, and if the slice does not hold the target.
  Tensor preceded;
};
void cross_entropy_statistics(const Context& context, const CrossEntropyStatistics& args);

struct CrossEntropyFromStatistics {
  Tensor logits;   ///< input: the same slice; output if grad_scale != 0: its gradient
  Tensor targets;  ///< as above
  int64_t first = 0;
  int64_t vocab = 0;
  Tensor statistics;        ///< fp32 [ranks, 3, rows], all ranks' statistics in rank order
  Tensor losses;            ///< output [rows] fp32: -log softmax[target]; equal on all ranks
  float grad_scale = 0.0f;  ///< this and the next three as in CrossEntropy
  float z_loss = 0.0f;
  float soft_cap = 0.0f;
  Tensor z_losses;  ///< equal on all ranks
};
void cross_entropy_from_statistics(const Context& context, const CrossEntropyFromStatistics& args);

/// *sum += sum of values, accumulated in FP32 in a fixed order. values: [n] fp32; sum: [1] fp32.
void accumulate_sum(const Context& context, const Tensor& values, const Tensor& sum);

}  // namespace te::kernels
