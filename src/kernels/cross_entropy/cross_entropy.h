// Softmax cross-entropy over one chunk of logits, fused with its gradient, in place: the output layer runs it
// chunk by chunk, so logits of all tokens never exist at once and FP32 logits never exist at all (statistics
// are FP32 in registers).
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

struct CrossEntropy {
  /// In: [rows, padded_vocab] fp32 or bf16; out, when grad_scale != 0: (softmax - onehot) * grad_scale.
  Tensor logits;
  Tensor targets;           ///< [rows] int32; -1 = not counted: loss 0, gradient 0
  Tensor losses;            ///< out [rows] fp32: -log softmax[target]
  int64_t vocab = 0;        ///< columns >= vocab are padding: probability 0, gradient 0
  float grad_scale = 0.0f;  ///< 1 / (tokens of the global batch) in training; 0 = loss only, logits untouched
};
void cross_entropy(const Context& context, const CrossEntropy& args);

/// *sum += sum of values, in FP32 in a fixed order. values: [n] fp32; sum: [1] fp32.
void accumulate_sum(const Context& context, const Tensor& values, const Tensor& sum);

}  // namespace te::kernels
