// Word embedding and, for GPT, learned positions with dropout behind them. Tensor ranks hold a slice of the vocabulary
// each: a token found elsewhere counts as zeros, and the ranks' sum has it.
#pragma once

#include "core/device.h"
#include "core/memory_plan.h"
#include "model/context_parallel.h"
#include "model/layer_config.h"
#include "model/pass.h"
#include "parameters/parameter_store.h"

namespace te::model {

class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(const LayerConfig& config, parameters::ParameterStore& parameters,
                         parallel::TensorParallel& tensor, const ContextParallel& ranks);

  void plan(MemoryPlan& plan, const Context& context);
  /// x [stream, hidden] from tokens int32 [tokens].
  void forward(const Context& context, const Tensor& tokens, const Tensor& x, const Pass& pass);
  /// d_x: the gradient of x; used up.
  void backward(const Context& context, const Tensor& tokens, const Tensor& d_x, const Pass& pass);

  parameters::Parameter* words() const { return words_; }

 private:
  void dropout(const Context& context, const Tensor& x, const Pass& pass) const;

  parallel::TensorParallel& tensor_;
  const ContextParallel& ranks_;
  Dimensions dims_;
  float scale_;  ///< of the words: 1, or as model.scale_embedding has it
  float dropout_;
  parameters::Parameter* words_ = nullptr;
  parameters::Parameter* positions_ = nullptr;
  Tensor workspace_;  ///< scratch of the kernel
  Tensor full_;       ///< scratch [tokens, hidden] of sequence parallelism: all tokens
  /// Scratch [tokens of a sequence here, hidden] of context parallelism: gradients of the positions, in the tokens'
  /// order.
  Tensor d_positions_;
};

/// Hidden dropout of the stream's rows on this rank: its mask is a function of the token's place in the whole batch.
void residual_dropout(const Context& context, const Tensor& x, const Tensor& y, float probability,
                      uint64_t stream, const Pass& pass, const Dimensions& dims,
                      const parallel::TensorParallel& tensor, const ContextParallel& ranks);

}  // namespace te::model
