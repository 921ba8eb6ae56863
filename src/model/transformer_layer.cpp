#include "model/transformer_layer.h"

#include "core/random.h"
#include "model/embedding.h"

namespace te::model {

TransformerLayer::TransformerLayer(int index, const config::Config& config,
                                   parameters::ParameterStore& parameters, Recipe& recipe,
                                   const RopeTables& rope, parallel::TensorParallel& tensor)
    : name_("layers." + std::to_string(index)),
      tensor_(tensor),
      dims_(Dimensions::of(config, tensor)),
      recompute_(config.training.recompute),
      dropout_(static_cast<float>(config.model.hidden_dropout)),
      attention_site_(stream_of(name_ + ".self_attention.hidden_dropout")),
      mlp_site_(stream_of(name_ + ".mlp.hidden_dropout")),
      input_layernorm_(name_ + ".input_layernorm", config.model, parameters, tensor),
      attention_(name_, index, config, parameters, recipe, rope, tensor),
      pre_mlp_layernorm_(name_ + ".pre_mlp_layernorm", config.model, parameters, tensor),
      mlp_(name_, index, config, parameters, recipe, tensor) {
  parameters.end_layer();
}

// --- memory ------------------------------------------------------------------------------------------------

void TransformerLayer::plan_weights(MemoryPlan& plan, Scratch& scratch) {
  attention_.plan_weights(plan, scratch);
  mlp_.plan_weights(plan, scratch);
}

void TransformerLayer::plan_input(MemoryPlan& plan, LayerActivations& a) {
  plan.add(a.x_in, name_ + ".x_in", MemoryKind::activations, dims_.dtype, {dims_.stream, dims_.hidden});
}

// Selective recompute rebuilds what norms and activations produced: cheap to make, and the bulk of what is saved.
void TransformerLayer::plan_activations(MemoryPlan& plan, LayerActivations& a, Scratch& scratch) {
  const bool saved = recompute_ != config::Recompute::selective;
  input_layernorm_.plan_statistics(plan, a.norm1, dims_.stream, name_ + ".input_layernorm");
  attention_.plan_activations(plan, a.attention, scratch, saved);
  plan.add(a.x_mid, name_ + ".x_mid", MemoryKind::activations, dims_.dtype, {dims_.stream, dims_.hidden});
  pre_mlp_layernorm_.plan_statistics(plan, a.norm2, dims_.stream, name_ + ".pre_mlp_layernorm");
  mlp_.plan_activations(plan, a.mlp, scratch, saved);
}

void TransformerLayer::plan_gradients(MemoryPlan& plan, LayerGradients& g, Scratch& scratch,
                                      bool deferred) const {
  attention_.plan_gradients(plan, g.attention, scratch, deferred);
  mlp_.plan_gradients(plan, g.mlp, scratch, deferred);
}

void TransformerLayer::quantize_weights(const Context& context, bool count) {
  attention_.quantize_weights(context, count);
  mlp_.quantize_weights(context, count);
}

// --- forward -----------------------------------------------------------------------------------------------

void TransformerLayer::forward(const Context& context, const Tensor& residual, const Tensor& delta,
                               LayerActivations& a, const Pass& pass, const Scratch& scratch) {
  // 1. The previous layer's output joins the stream; its norm is what attention reads.
  input_layernorm_.forward(context, residual, delta, a.x_in, a.norm1,
                           attention_.input_target(a.attention, pass));
  // 2. Attention.
  attention_.forward(context, a.attention, scratch.delta, pass, scratch);
  dropout(context, scratch.delta, scratch.delta, attention_site_, pass);
  // 3. Its output joins the stream; the norm of that is what the MLP reads.
  pre_mlp_layernorm_.forward(context, a.x_in, scratch.delta, a.x_mid, a.norm2,
                             mlp_.input_target(a.mlp, pass));
  // 4. MLP; its output joins the stream in the next norm.
  mlp_.forward(context, a.mlp, scratch.delta, pass, scratch);
  dropout(context, scratch.delta, scratch.delta, mlp_site_, pass);
}

void TransformerLayer::dropout(const Context& context, const Tensor& x, const Tensor& y, uint64_t site,
                               const Pass& pass) const {
  if (dropout_ == 0.0f || pass.evaluating()) return;
  stream_dropout(context, x, y, dropout_, site, pass, dims_, tensor_);
}

// --- backward ----------------------------------------------------------------------------------------------

void TransformerLayer::backward(const Context& context, LayerActivations& a, LayerGradients& g,
                                const LayerBelow& below, const Pass& pass, const Scratch& scratch,
                                bool deferred) {
  RemakeInput remake_mlp, remake_attention;
  if (recompute_ == config::Recompute::selective) {
    remake_mlp = [&](Target t) { pre_mlp_layernorm_.forward(context, a.x_mid, {}, a.x_mid, a.norm2, t); };
    remake_attention = [&](Target t) { input_layernorm_.forward(context, a.x_in, {}, a.x_in, a.norm1, t); };
  }
  // 4'. MLP.
  mlp_.backward(context, through_dropout(context, mlp_site_, pass, scratch), a.mlp, g.mlp, scratch.d_branch,
                pass, scratch, deferred, remake_mlp);
  // 3'. Norm; its gradient joins the stream's, which is that of attention's output.
  const Target d_attention = dropout_ == 0.0f ? attention_.grad_target(g.attention, pass, scratch) : Target();
  pre_mlp_layernorm_.backward(context, scratch.d_branch, a.x_mid, a.norm2, scratch.d_stream, d_attention,
                              scratch);
  // 2'. Attention.
  attention_.backward(context, through_dropout(context, attention_site_, pass, scratch), a.attention,
                      g.attention, scratch.d_branch, pass, scratch, deferred, remake_attention);
  // 1'. Norm; its gradient joins the stream's, which is that of the output of the layer below.
  input_layernorm_.backward(context, scratch.d_branch, a.x_in, a.norm1, scratch.d_stream,
                            below.grad_target(pass, scratch), scratch);
}

// Through a dropout the gradient is another tensor, for which the producer of the stream's gradient can do nothing.
Target TransformerLayer::grad_target(LayerGradients& g, const Pass& pass, const Scratch& scratch) const {
  return dropout_ == 0.0f ? mlp_.grad_target(g.mlp, pass, scratch) : Target();
}

Target LayerBelow::grad_target(const Pass& pass, const Scratch& scratch) const {
  return layer != nullptr ? layer->grad_target(*gradients, pass, scratch) : Target();
}

// The stream's gradient as it enters a sublayer's output: itself, or through the dropout in front of it.
Tensor TransformerLayer::through_dropout(const Context& context, uint64_t site, const Pass& pass,
                                         const Scratch& scratch) const {
  if (dropout_ == 0.0f) return scratch.d_stream;
  dropout(context, scratch.d_stream, scratch.d_branch, site, pass);
  return scratch.d_branch;
}

void TransformerLayer::wgrad(const Context& context, const LayerActivations& a,
                             const LayerGradients& g) const {
  mlp_.wgrad(context, a.mlp, g.mlp);
  attention_.wgrad(context, a.attention, g.attention);
}

}  // namespace te::model
