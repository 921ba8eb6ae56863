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

void TransformerLayer::plan_weights(MemoryPlan& plan) {
  attention_.plan_weights(plan);
  mlp_.plan_weights(plan);
}

void TransformerLayer::plan_scratch(MemoryPlan& plan, const Context& context) {
  input_layernorm_.plan_scratch(plan, Step::input_norm_backward);
  attention_.plan_scratch(plan, context);
  pre_mlp_layernorm_.plan_scratch(plan, Step::mlp_norm_backward);
  mlp_.plan_scratch(plan);
  const auto add = [&](Tensor& slot, const char* name, Lifetime lifetime) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dims_.dtype, {dims_.stream, dims_.hidden}, lifetime);
  };
  add(d_branch_, ".d_branch",
      live(Step::fc1_backward, Step::mlp_norm_backward) |
          live(Step::qkv_backward, Step::input_norm_backward));
  if (dropout_ != 0.0f) add(d_dropped_, ".d_dropped", live(Step::fc2_backward) | live(Step::proj_backward));
}

void TransformerLayer::plan_input(MemoryPlan& plan, LayerActivations& a) {
  plan.add(a.x_in, name_ + ".x_in", MemoryKind::activations, dims_.dtype, {dims_.stream, dims_.hidden});
}

// Selective recompute rebuilds what norms and activations produced: cheap to make, and the bulk of what is saved.
void TransformerLayer::plan_activations(MemoryPlan& plan, LayerActivations& a) {
  const Shape stream{dims_.stream, dims_.hidden};
  input_layernorm_.plan_statistics(plan, a.norm1, dims_.stream,
                                   saved(recompute_, live(Step::input_norm, Step::input_norm_backward)));
  attention_.plan_activations(plan, a.attention);
  plan.add(a.x_mid, name_ + ".x_mid", MemoryKind::activations, dims_.dtype, stream,
           saved(recompute_, kHandedOn | live(Step::fc2_backward, Step::mlp_norm_backward)));
  pre_mlp_layernorm_.plan_statistics(plan, a.norm2, dims_.stream,
                                     saved(recompute_, live(Step::mlp_norm, Step::mlp_norm_backward)));
  mlp_.plan_activations(plan, a.mlp);
  plan.add(a.delta, name_ + ".delta", MemoryKind::scratch, dims_.dtype, stream, kHandedOn);
}

void TransformerLayer::plan_gradients(MemoryPlan& plan, LayerGradients& g, bool deferred) const {
  attention_.plan_gradients(plan, g.attention, deferred);
  mlp_.plan_gradients(plan, g.mlp, deferred);
}

void TransformerLayer::quantize_weights(const Context& context, bool count) {
  attention_.quantize_weights(context, count);
  mlp_.quantize_weights(context, count);
}

// --- forward -----------------------------------------------------------------------------------------------

void TransformerLayer::forward(const Context& context, const Tensor& residual, const Tensor& delta,
                               LayerActivations& a, const Pass& pass) {
  // 1. The previous layer's output joins the stream; its norm is what attention reads.
  pass.enter(context, Step::input_norm);
  input_layernorm_.forward(context, residual, delta, a.x_in, a.norm1,
                           attention_.input_target(a.attention, pass));
  // 2. Attention.
  attention_.forward(context, a.attention, a.delta, pass);
  dropout(context, a.delta, a.delta, attention_site_, pass);
  // 3. Its output joins the stream; the norm of that is what the MLP reads.
  pass.enter(context, Step::mlp_norm);
  pre_mlp_layernorm_.forward(context, a.x_in, a.delta, a.x_mid, a.norm2, mlp_.input_target(a.mlp, pass));
  // 4. MLP; its output joins the stream in the next norm.
  mlp_.forward(context, a.mlp, a.delta, pass);
  dropout(context, a.delta, a.delta, mlp_site_, pass);
}

void TransformerLayer::dropout(const Context& context, const Tensor& x, const Tensor& y, uint64_t site,
                               const Pass& pass) const {
  if (dropout_ == 0.0f || pass.evaluating()) return;
  stream_dropout(context, x, y, dropout_, site, pass, dims_, tensor_);
}

// --- backward ----------------------------------------------------------------------------------------------

void TransformerLayer::backward(const Context& context, LayerActivations& a, LayerGradients& g,
                                const LayerBelow& below, const Tensor& d_stream, const Pass& pass,
                                bool deferred) {
  RemakeInput remake_mlp, remake_attention;
  if (recompute_ == config::Recompute::selective) {
    remake_mlp = [&](Target t) { pre_mlp_layernorm_.forward(context, a.x_mid, {}, a.x_mid, a.norm2, t); };
    remake_attention = [&](Target t) { input_layernorm_.forward(context, a.x_in, {}, a.x_in, a.norm1, t); };
  }
  // 4'. MLP.
  pass.enter(context, Step::fc2_backward);
  mlp_.backward(context, through_dropout(context, d_stream, mlp_site_, pass), a.mlp, g.mlp, d_branch_, pass,
                deferred, remake_mlp);
  // 3'. Norm; its gradient joins the stream's, which is that of attention's output.
  pass.enter(context, Step::mlp_norm_backward);
  const Target d_attention = dropout_ == 0.0f ? attention_.grad_target(g.attention, pass) : Target();
  pre_mlp_layernorm_.backward(context, d_branch_, a.x_mid, a.norm2, d_stream, d_attention);
  // 2'. Attention.
  pass.enter(context, Step::proj_backward);
  attention_.backward(context, through_dropout(context, d_stream, attention_site_, pass), a.attention,
                      g.attention, d_branch_, pass, deferred, remake_attention);
  // 1'. Norm; its gradient joins the stream's, which is that of the output of the layer below.
  pass.enter(context, Step::input_norm_backward);
  input_layernorm_.backward(context, d_branch_, a.x_in, a.norm1, d_stream, below.grad_target(pass));
}

// Through a dropout the gradient is another tensor, for which the producer of the stream's gradient can do nothing.
Target TransformerLayer::grad_target(LayerGradients& g, const Pass& pass) const {
  return dropout_ == 0.0f ? mlp_.grad_target(g.mlp, pass) : Target();
}

Target LayerBelow::grad_target(const Pass& pass) const {
  return layer != nullptr ? layer->grad_target(*gradients, pass) : Target();
}

// The stream's gradient as it enters a sublayer's output: itself, or through the dropout in front of it.
Tensor TransformerLayer::through_dropout(const Context& context, const Tensor& d_stream, uint64_t site,
                                         const Pass& pass) const {
  if (dropout_ == 0.0f) return d_stream;
  dropout(context, d_stream, d_dropped_, site, pass);
  return d_dropped_;
}

void TransformerLayer::wgrad(const Context& context, const LayerActivations& a,
                             const LayerGradients& g) const {
  mlp_.wgrad(context, a.mlp, g.mlp);
  attention_.wgrad(context, a.attention, g.attention);
}

}  // namespace te::model
