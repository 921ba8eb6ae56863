#include "model/model_stage.h"

namespace te::model {
namespace {

bool full_recompute(const config::Config& config) {
  return config.training.recompute == config::Recompute::full;
}

}  // namespace

ModelStage::ModelStage(const config::Config& config)
    : config_(config),
      dims_(Dimensions::of(config)),
      recipe_(fp8::make_recipe(config.precision, static_cast<int>(config.model.num_layers))),
      embedding_(config, parameters_),
      final_layernorm_("final_layernorm", config.model, parameters_) {
  for (int layer = 0; layer < config.model.num_layers; ++layer) {
    layers_.emplace_back(layer, config_, parameters_, *recipe_, rope_);
  }
  Parameter* tied = config.model.tie_word_embeddings ? embedding_.words() : nullptr;
  output_layer_ = std::make_unique<OutputLayer>(config, parameters_, tied);
}

// --- life --------------------------------------------------------------------------------------------------

void ModelStage::plan(MemoryPlan& plan, const Context& context) {
  const bool fp8 = recipe_->quantizes();
  const bool selective = config_.training.recompute == config::Recompute::selective;
  parameters_.plan(plan, {.dtype = dims_.dtype});
  recipe_->plan(plan);
  rope_.plan(plan, config_.model);
  embedding_.plan(plan, context);
  scratch_.plan(plan, dims_, fp8, selective, DotProductAttention::workspace_bytes(context, config_));
  bool shared_planned[2] = {false, false};
  activations_.resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    TransformerLayer& layer = layers_[i];
    layer.plan_weights(plan);
    layer.plan_input(plan, activations_[i]);
    if (!full_recompute(config_)) {
      layer.plan_activations(plan, activations_[i], scratch_);
    } else if (!shared_planned[layer.fp8()]) {
      layer.plan_activations(plan, shared_[layer.fp8()], scratch_);
      shared_planned[layer.fp8()] = true;
    }
  }
  plan.add(final_x_, "final_layernorm.x", MemoryKind::activations, dims_.dtype, {dims_.tokens, dims_.hidden});
  plan.add(final_h_, "final_layernorm.out", MemoryKind::activations, dims_.dtype,
           {dims_.tokens, dims_.hidden});
  final_layernorm_.plan_statistics(plan, final_statistics_, dims_.tokens, "final_layernorm");
  output_layer_->plan(plan);
}

void ModelStage::bind(const Context& context) {
  parameters_.bind(context);
  rope_.fill(context, config_.model);
  recipe_->reset(context);
  if (!full_recompute(config_)) return;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Tensor x_in = activations_[i].x_in;
    activations_[i] = shared_[layers_[i].fp8()];
    activations_[i].x_in = x_in;
  }
}

void ModelStage::initialize(const Context& context, uint64_t seed) {
  parameters_.initialize(context, seed);
}

void ModelStage::quantize_weights(const Context& context, bool count_fp8) {
  for (TransformerLayer& layer : layers_) layer.quantize_weights(context, count_fp8);
}

// --- passes ------------------------------------------------------------------------------------------------

void ModelStage::forward(const Context& context, const Tensor& tokens, const Pass& pass) {
  // 1. Tokens become the residual stream.
  embedding_.forward(context, tokens, activations_[0].x_in, pass);
  // 2. Layers; the stream travels as (residual, delta), see transformer_layer.h.
  Tensor residual = activations_[0].x_in, delta;
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].forward(context, residual, delta, activations_[i], pass, scratch_);
    residual = activations_[i].x_mid;
    delta = scratch_.delta;
  }
  // 3. Final norm.
  final_layernorm_.forward(context, residual, delta, final_x_, final_statistics_, {.hp = final_h_});
}

void ModelStage::backward(const Context& context, const Tensor& tokens, const Pass& pass) {
  // 3'. Final norm: scratch.d_branch holds the gradient of its output; the stream's gradient starts here.
  final_layernorm_.backward_no_residual(context, scratch_.d_branch, final_x_, final_statistics_,
                                        scratch_.d_stream, scratch_);
  // 2'. Layers, last first.
  for (size_t i = layers_.size(); i-- > 0;) {
    if (full_recompute(config_)) {
      layers_[i].forward(context, activations_[i].x_in, {}, activations_[i], pass.recomputed(), scratch_);
    }
    layers_[i].backward(context, activations_[i], pass, scratch_);
  }
  // 1'. Embedding.
  embedding_.backward(context, tokens, scratch_.d_stream, pass);
}

void ModelStage::forward_backward(const Context& context, const Tensor& tokens, const Tensor& targets,
                                  float grad_scale, const Tensor& loss_sum, const Pass& pass) {
  forward(context, tokens, pass);
  output_layer_->run(context, final_h_, targets, grad_scale, loss_sum, scratch_.d_branch);
  backward(context, tokens, pass);
}

void ModelStage::evaluate(const Context& context, const Tensor& tokens, const Tensor& targets,
                          const Tensor& loss_sum) {
  forward(context, tokens, {.kind = PassKind::evaluate});
  output_layer_->run(context, final_h_, targets, 0.0f, loss_sum, {});
}

void ModelStage::forward_logits(const Context& context, const Tensor& tokens, const Tensor& logits) {
  forward(context, tokens, {.kind = PassKind::evaluate});
  output_layer_->logits(context, final_h_, logits);
}

}  // namespace te::model
