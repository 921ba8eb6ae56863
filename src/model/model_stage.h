// The model (of this rank): embedding, layers, final norm, head, with all memory planned before the first
// pass.
//
// Life: construct -> plan() -> [MemoryPlan::allocate] -> bind() -> initialize() or load ->
//       quantize_weights() -> passes.
#pragma once

#include <deque>
#include <memory>

#include "model/embedding.h"
#include "model/output_layer.h"
#include "model/transformer_layer.h"

namespace te::model {

class ModelStage {
 public:
  explicit ModelStage(const config::Config& config);
  ModelStage(const ModelStage&) = delete;

  /// The context tells the device whose workspace sizes are asked for; no device memory is allocated.
  void plan(MemoryPlan& plan, const Context& context);
  void bind(const Context& context);
  void initialize(const Context& context, uint64_t seed);
  /// Casts all weights of FP8 layers; after every change of the weights. `count_fp8`: add to the saturation
  /// counters.
  void quantize_weights(const Context& context, bool count_fp8 = false);

  /// One microbatch in training: loss and, with grad_scale (1 / tokens of the global batch), all gradients,
  /// added to the store's. tokens, targets: int32 [tokens of a microbatch] in device memory; loss_sum [1]
  /// fp32 += sum of the tokens' losses.
  void forward_backward(const Context& context, const Tensor& tokens, const Tensor& targets, float grad_scale,
                        const Tensor& loss_sum, const Pass& pass);
  /// Loss alone; touches no gradient and no FP8 state.
  void evaluate(const Context& context, const Tensor& tokens, const Tensor& targets, const Tensor& loss_sum);
  /// Hidden states in, logits of all tokens out, [tokens, padded vocab]: for tests.
  void forward_logits(const Context& context, const Tensor& tokens, const Tensor& logits);

  ParameterStore& parameters() { return parameters_; }
  fp8::Recipe& recipe() { return *recipe_; }
  const Dimensions& dims() const { return dims_; }

 private:
  void forward(const Context& context, const Tensor& tokens, const Pass& pass);
  void backward(const Context& context, const Tensor& tokens, const Pass& pass);

  config::Config config_;
  Dimensions dims_;
  ParameterStore parameters_;
  std::unique_ptr<fp8::Recipe> recipe_;
  RopeTables rope_;
  Embedding embedding_;
  std::deque<TransformerLayer> layers_;
  Norm final_layernorm_;
  std::unique_ptr<OutputLayer> output_layer_;

  Scratch scratch_;
  std::deque<LayerActivations> activations_;  ///< one per layer
  LayerActivations shared_[2];  ///< recompute: full; one set for BF16 layers, one for FP8 layers
  Tensor final_x_, final_h_;    ///< [tokens, hidden]: the stream's end, and its norm
  Norm::Statistics final_statistics_;
};

}  // namespace te::model
