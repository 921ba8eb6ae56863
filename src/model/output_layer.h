// The head and the loss. Logits are made, turned into their own gradient and used up chunk by chunk, so that
// the logits of all tokens never exist at once. The gradient of the head is therefore complete when the
// forward pass of training ends.
#pragma once

#include "core/device.h"
#include "model/parameter_store.h"
#include "model/scratch.h"

namespace te::model {

class OutputLayer {
 public:
  /// `tied`: the word embedding whose matrix is the head, or null for a head of its own.
  OutputLayer(const config::Config& config, ParameterStore& parameters, Parameter* tied);

  void plan(MemoryPlan& plan);

  /// Adds the microbatch's loss (sum over counted tokens) to loss_sum [1] fp32. With grad_scale != 0 also
  /// writes d_h = gradient of grad_scale * loss with respect to h [tokens, hidden] and adds to the head's
  /// gradient. d_h may not be h.
  void run(const Context& context, const Tensor& h, const Tensor& targets, float grad_scale,
           const Tensor& loss_sum, const Tensor& d_h) const;
  /// out = logits [rows, padded vocab] of h [rows, hidden]; for tests and generation.
  void logits(const Context& context, const Tensor& h, const Tensor& out) const;

 private:
  int64_t vocab_, padded_vocab_, tokens_, chunk_;
  DType dtype_;
  Parameter* weight_;
  Tensor logits_;  ///< [chunk, padded vocab]
  Tensor losses_;  ///< [tokens] fp32
};

}  // namespace te::model
