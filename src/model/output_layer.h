// The output layer (LM head) and the loss. Logits are computed, replaced by their gradient and consumed chunk by chunk,
// so that the logits of all tokens never exist at the same time. The weight gradient is therefore complete at the end
// of the forward pass of training, and the hidden states are overwritten by their gradient.
//
// Each tensor-parallel rank has a shard of the vocabulary. The ranks exchange three numbers per token for the softmax,
// never logits.
//
// The three GEMMs are those of a linear layer without bias, in FP8 with precision.fp8_output_layer.
#pragma once

#include "core/device.h"
#include "model/layer_config.h"
#include "model/linear.h"

namespace te::model {

class OutputLayer : public Linear {
 public:
  /// `tied`: the word embedding if it is tied and on this rank; null for a separate weight (with tied embeddings, a
  /// copy of the weight on the first pipeline stage).
  OutputLayer(const LayerConfig& config, parameters::ParameterStore& parameters, parameters::Parameter* tied,
              fp8::Recipe& recipe, parallel::TensorParallel& tensor);

  void plan(MemoryPlan& plan, bool training);

  /// Adds the microbatch's cross entropy (sum over counted tokens) to loss_sum [1] fp32, on tensor-parallel rank 0
  /// only. With grad_scale != 0 it also overwrites h [residual_rows, hidden] with the gradient of grad_scale * (cross
  /// entropy + z-loss) with respect to h, and adds the weight gradient.
  void run(const Context& context, const Tensor& h, const Tensor& targets, float grad_scale,
           const Tensor& loss_sum, const Pass& pass);
  /// out = logits [rows, this rank's shard of the padded vocabulary] of h [rows, hidden], for any number of rows; never
  /// in FP8.
  void logits(const Context& context, const Tensor& h, const Tensor& out) const;
  /// The GEMM of logits() for decode_megakernel(); cap_logits() is to follow.
  kernels::MegakernelGemm megakernel_logits() const { return {.weight = weight_->value}; }
  /// Applies model.final_logit_softcapping.
  void cap_logits(const Context& context, const Tensor& logits) const;

 private:
  enum class Chunk : uint8_t { linear, logits, losses, z_losses, statistics, full };
  /// The operand of `values`; its quantized layouts, if any, are in `storage`.
  ReadyOperand complete(const Context& context, const fp8::Quantizer& quantizer, const Tensor& values,
                        const Operand& storage, const Pass& pass) const;
  void losses(const Context& context, const Tensor& logits, const Tensor& targets, const Tensor& losses,
              const Tensor& z_losses, float grad_scale) const;

  Dimensions dims_;
  config::Fp8KeptWeights kept_weights_;
  int64_t vocab_, chunk_;
  float z_loss_, soft_cap_;
  // Scratch of Step::output_layer:
  PlannedTensor logits_;           ///< [chunk, shard of the padded vocabulary]
  Planned<Operand> input_, grad_;  ///< memory of a chunk's quantized layouts
  PlannedTensor losses_;           ///< [tokens] fp32
  PlannedTensor z_losses_;         ///< the same, only with a z-loss
  PlannedTensor statistics_;       ///< [ranks, 3, chunk] fp32, only with several tensor-parallel ranks
  PlannedTensor full_;             ///< [tokens, hidden], only with sequence parallelism
};

}  // namespace te::model
