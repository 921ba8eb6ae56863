// The head and the loss. Logits are made, turned into their own gradient and used up chunk by chunk, so that the
// logits of all tokens never exist at once. The gradient of the head is therefore complete when the forward pass of
// training ends, and the hidden states are overwritten by their gradient.
//
// Tensor ranks hold a slice of the vocabulary each; three numbers per token travel for the softmax, never logits.
//
// The three GEMMs are those of a linear layer without bias, in the precision that the recipe gives it
// (precision.fp8_output_layer).
#pragma once

#include "core/device.h"
#include "model/layer_config.h"
#include "model/linear.h"

namespace te::model {

class OutputLayer : public Linear {
 public:
  /// `tied`: the word embedding whose matrix is the head, where this rank has it; null for a matrix of its own (with
  /// tied embeddings, a copy of the one on the first pipeline stage).
  OutputLayer(const LayerConfig& config, parameters::ParameterStore& parameters, parameters::Parameter* tied,
              fp8::Recipe& recipe, parallel::TensorParallel& tensor);

  void plan(MemoryPlan& plan, bool training);

  /// Adds the microbatch's cross entropy (sum over counted tokens) to loss_sum [1] fp32, on tensor rank 0 alone. With
  /// grad_scale != 0 also overwrites h [stream, hidden] with the gradient of grad_scale * (cross entropy + z-loss) with
  /// respect to it, and adds to the head's gradient.
  void run(const Context& context, const Tensor& h, const Tensor& targets, float grad_scale,
           const Tensor& loss_sum, const Pass& pass);
  /// out = logits [rows, this rank's slice of the padded vocabulary] of h [rows, hidden]; never in FP8, for any number
  /// of rows.
  void logits(const Context& context, const Tensor& h, const Tensor& out) const;
  /// The same as the last link of a chain.
  kernels::MegakernelGemm megakernel_logits() const { return {.weight = weight_->value}; }

 private:
  /// The operand of `values`, complete, quantized in `storage` if the quantizer says so.
  Operand operand(const Context& context, const fp8::Quantizer& quantizer, const Tensor& values,
                  const Operand& storage, const Pass& pass) const;
  void losses(const Context& context, const Tensor& logits, const Tensor& targets, const Tensor& losses,
              const Tensor& z_losses, float grad_scale) const;

  Dimensions dims_;
  config::Fp8KeptWeights kept_weights_;
  int64_t vocab_, chunk_;
  float z_loss_;
  // Scratch of Step::head:
  Tensor logits_;         ///< [chunk, slice of the padded vocabulary]
  Operand input_, grad_;  ///< storage of a chunk's quantized forms
  Tensor losses_;         ///< [tokens] fp32
  Tensor z_losses_;       ///< the same, only with a z-loss
  Tensor statistics_;     ///< [ranks, 3, chunk] fp32, only with several tensor ranks
  Tensor full_;           ///< [tokens, hidden], only with sequence parallelism
};

}  // namespace te::model
