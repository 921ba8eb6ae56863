// Softmax cross-entropy over one chunk of logits, fused with its gradient, in place: the output layer runs it
// chunk by chunk, so logits of all tokens never exist at once and FP32 logits never exist at all (statistics
// are FP32 in registers).
//
// With the z-loss (Chowdhery et al., "PaLM", arXiv 2204.02311; OLMo 2, arXiv 2501.00656, whose code takes the mean over
// the tokens that are not masked, as here), whose term of a token is z_loss (log Z)^2 with Z = sum of exp(logit) over
// the vocabulary, the gradient is
//   (softmax (1 + 2 z_loss log Z) - onehot) grad_scale
// from the statistics that the softmax needs anyway. Terms and gradients of z_loss 0 have the bits of none.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

struct CrossEntropy {
  /// In: [rows, padded_vocab] fp32, bf16 or fp16; out, when grad_scale != 0: the gradient.
  Tensor logits;
  Tensor targets;           ///< [rows] int32; -1 = not counted: loss 0, gradient 0
  Tensor losses;            ///< out [rows] fp32: -log softmax[target]
  int64_t vocab = 0;        ///< columns >= vocab are padding: probability 0, gradient 0
  float grad_scale = 0.0f;  ///< 1 / (tokens of the global batch) in training; 0 = loss only, logits untouched
  float z_loss = 0.0f;      ///< coefficient
  Tensor z_losses;          ///< optional out [rows] fp32: z_loss (log Z)^2, 0 where the target is not counted
};
void cross_entropy(const Context& context, const CrossEntropy& args);

// The same over a vocabulary that several ranks hold in slices: every rank reduces its columns to three
// numbers a row, the caller all-gathers those, and every rank combines them in rank order, so that losses and
// softmax denominators have the same bits on all ranks. With one rank the results are those of cross_entropy,
// bit for bit.

/// A rank's slice: column c is row first + c of the vocabulary. Columns at or beyond `vocab` are padding; a
/// slice may hold nothing else.
struct CrossEntropyStatistics {
  Tensor logits;      ///< [rows, local_columns] fp32, bf16 or fp16
  Tensor targets;     ///< [rows] int32, of the whole vocabulary; -1 = not counted
  int64_t first = 0;  ///< vocabulary row of column 0
  int64_t vocab = 0;  ///< of all ranks together, without padding
  /// Out, fp32 [3, rows]: the largest logit (the lowest finite number where there is none), the sum of
  /// exp(logit - largest) (0 where there is none), and the target's logit, NaN when the slice does not hold
  /// it.
  Tensor statistics;
};
void cross_entropy_statistics(const Context& context, const CrossEntropyStatistics& args);

struct CrossEntropyFromStatistics {
  Tensor logits;   ///< in: the same slice; out, when grad_scale != 0: its gradient
  Tensor targets;  ///< as above
  int64_t first = 0;
  int64_t vocab = 0;
  Tensor statistics;        ///< fp32 [ranks, 3, rows], the ranks' statistics in rank order
  Tensor losses;            ///< out [rows] fp32: -log softmax[target]; the same on every rank
  float grad_scale = 0.0f;  ///< as in CrossEntropy, and the next two
  float z_loss = 0.0f;
  Tensor z_losses;  ///< the same on every rank
};
void cross_entropy_from_statistics(const Context& context, const CrossEntropyFromStatistics& args);

/// *sum += sum of values, in FP32 in a fixed order. values: [n] fp32; sum: [1] fp32.
void accumulate_sum(const Context& context, const Tensor& values, const Tensor& sum);

}  // namespace te::kernels
