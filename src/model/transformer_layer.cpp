#include "model/transformer_layer.h"

#include <cmath>

#include "core/random.h"
#include "kernels/activation/activation.h"
#include "model/embedding.h"

namespace te::model {
namespace {

// Projections back into the residual stream start smaller, by the depth of the stream (GPT-2's rule).
double output_std(const config::ModelConfig& model) {
  return model.init_method_std / std::sqrt(2.0 * static_cast<double>(model.num_layers));
}

// The blocks of rows that are cut among the tensor ranks one by one.
std::vector<int64_t> qkv_blocks(const config::ModelConfig& model) {
  const int64_t keys = model.num_query_groups * model.kv_channels;
  return {model.attention_width(), keys, keys};
}
std::vector<int64_t> fc1_blocks(const config::ModelConfig& model) {
  return std::vector<int64_t>(static_cast<size_t>(model.fc1_width() / model.ffn_hidden_size),
                              model.ffn_hidden_size);
}

}  // namespace

TransformerLayer::TransformerLayer(int index, const config::Config& config,
                                   parameters::ParameterStore& parameters, fp8::Recipe& recipe,
                                   const RopeTables& rope, parallel::TensorParallel& tensor)
    : name_("layers." + std::to_string(index)),
      tensor_(tensor),
      dims_(Dimensions::of(config, tensor)),
      recompute_(config.training.recompute),
      swiglu_(config.model.family == config::Family::llama),
      dropout_(static_cast<float>(config.model.hidden_dropout)),
      attention_stream_(stream_of(name_ + ".self_attention.hidden_dropout")),
      mlp_stream_(stream_of(name_ + ".mlp.hidden_dropout")),
      input_layernorm_(name_ + ".input_layernorm", config.model, parameters, tensor),
      linear_qkv_(name_ + ".self_attention.linear_qkv", index, qkv_blocks(config.model), dims_.hidden,
                  !swiglu_ || config.model.add_qkv_bias, config.model.init_method_std, parameters, recipe,
                  tensor),
      attention_(name_ + ".self_attention", config, rope, tensor),
      linear_proj_(name_ + ".self_attention.linear_proj", index, config.model.attention_width(), dims_.hidden,
                   !swiglu_, output_std(config.model), parameters, recipe, tensor),
      pre_mlp_layernorm_(name_ + ".pre_mlp_layernorm", config.model, parameters, tensor),
      linear_fc1_(name_ + ".mlp.linear_fc1", index, fc1_blocks(config.model), dims_.hidden, !swiglu_,
                  config.model.init_method_std, parameters, recipe, tensor),
      linear_fc2_(name_ + ".mlp.linear_fc2", index, config.model.ffn_hidden_size, dims_.hidden, !swiglu_,
                  output_std(config.model), parameters, recipe, tensor) {
  parameters.end_layer();
}

// --- memory ------------------------------------------------------------------------------------------------

void TransformerLayer::plan_weights(MemoryPlan& plan, Scratch& scratch) {
  for (Linear* linear :
       std::initializer_list<Linear*>{&linear_qkv_, &linear_proj_, &linear_fc1_, &linear_fc2_})
    linear->plan_weights(plan);
  linear_qkv_.plan_share(plan, dims_, scratch);
  linear_fc1_.plan_share(plan, dims_, scratch);
}

void TransformerLayer::plan_input(MemoryPlan& plan, LayerActivations& a) {
  plan.add(a.x_in, name_ + ".x_in", MemoryKind::activations, dims_.dtype, {dims_.stream, dims_.hidden});
}

void TransformerLayer::plan_activations(MemoryPlan& plan, LayerActivations& a, Scratch& scratch) {
  const auto own = [&](Tensor& slot, const char* what, DType dtype, Shape shape) {
    plan.add(slot, name_ + what, MemoryKind::activations, dtype, shape);
  };
  input_layernorm_.plan_statistics(plan, a.norm1, dims_.stream, name_ + ".input_layernorm");
  pre_mlp_layernorm_.plan_statistics(plan, a.norm2, dims_.stream, name_ + ".pre_mlp_layernorm");
  own(a.qkv, ".qkv", dims_.dtype, {dims_.tokens, dims_.qkv});
  own(a.lse, ".lse", DType::f32, {dims_.batch, attention_.heads(), dims_.seq});
  own(a.proj_input.hp, ".attention_out", dims_.dtype, {dims_.tokens, dims_.attention});
  own(a.x_mid, ".x_mid", dims_.dtype, {dims_.stream, dims_.hidden});
  own(a.fc1_out, ".fc1_out", dims_.dtype, {dims_.tokens, dims_.fc1});
  // Selective recompute rebuilds what norms and activations produced: cheap to make, and the bulk of what is
  // saved.
  const bool saved = recompute_ != config::Recompute::selective;
  linear_qkv_.plan_input(plan, a.qkv_input, dims_, scratch, saved);
  linear_proj_.plan_input(plan, a.proj_input, dims_, scratch, saved, true);
  // Where linear_fc1's product makes linear_fc2's input, the two exist at once. d_inner is free in the forward pass, and in the
  // backward pass between linear_fc2's dgrad and linear_proj's. (A weight gradient that is put off would still need it: schedules
  // that do so do not go with recomputation.)
  const bool apart = !saved && !fp8();
  if (apart) plan.alias(a.fc1_input.hp, scratch.d_inner, dims_.dtype, {dims_.tokens, dims_.hidden});
  linear_fc1_.plan_input(plan, a.fc1_input, dims_, scratch, saved, apart);
  linear_fc2_.plan_input(plan, a.fc2_input, dims_, scratch, saved, false);
}

void TransformerLayer::plan_gradients(MemoryPlan& plan, LayerGradients& gradients, Scratch& scratch,
                                      bool deferred) const {
  linear_qkv_.plan_grad(plan, gradients.qkv, dims_, scratch, deferred);
  linear_proj_.plan_grad(plan, gradients.proj, dims_, scratch, deferred);
  linear_fc1_.plan_grad(plan, gradients.fc1, dims_, scratch, deferred);
  linear_fc2_.plan_grad(plan, gradients.fc2, dims_, scratch, deferred);
}

void TransformerLayer::quantize_weights(const Context& context, bool count_fp8) {
  for (Linear* linear :
       std::initializer_list<Linear*>{&linear_qkv_, &linear_proj_, &linear_fc1_, &linear_fc2_})
    linear->quantize_weight(context, count_fp8);
}

// --- forward -----------------------------------------------------------------------------------------------

void TransformerLayer::forward(const Context& context, const Tensor& residual, const Tensor& delta,
                               LayerActivations& a, const Pass& pass, const Scratch& scratch) {
  // 1. The previous layer's output joins the stream; its norm is linear_qkv's operand.
  input_layernorm_.forward(context, residual, delta, a.x_in, a.norm1,
                           linear_qkv_.input_target(a.qkv_input, pass));
  forward_attention(context, a, pass, scratch);
  // 5. The attention output joins the stream; its norm is linear_fc1's operand.
  pre_mlp_layernorm_.forward(context, a.x_in, scratch.delta, a.x_mid, a.norm2,
                             linear_fc1_.input_target(a.fc1_input, pass));
  forward_mlp(context, a, pass, scratch);
}

void TransformerLayer::forward_attention(const Context& context, LayerActivations& a, const Pass& pass,
                                         const Scratch& scratch) {
  // 2. Queries, keys and values of all heads, in one product.
  linear_qkv_.forward(context, a.qkv_input, a.qkv, pass);
  // 3. Rotary embedding and attention, on the packed product.
  if (pass.cached) {
    attention_.forward_cached(context, a.qkv, a.proj_input.hp, a.cache, pass);
  } else {
    attention_.forward(context, a.qkv, a.proj_input.hp, a.lse, pass, scratch);
  }
  a.proj_input.quantized = false;
  // 4. Back to the width of the stream.
  linear_proj_.forward(context, a.proj_input, scratch.delta, pass, scratch);
  hidden_dropout(context, scratch.delta, scratch.delta, attention_stream_, pass);
}

void TransformerLayer::forward_mlp(const Context& context, LayerActivations& a, const Pass& pass,
                                   const Scratch& scratch) {
  // 6. Up (for SwiGLU: gate and up in one product). 7. The activation is linear_fc2's operand: in FP8 a pass of its own, which
  // casts it, and else part of the product's.
  if (fp8()) {
    linear_fc1_.forward(context, a.fc1_input, a.fc1_out, pass);
    run_activation(context, a, pass);
  } else {
    const Tensor out = linear_fc2_.input_target(a.fc2_input, pass).hp;
    linear_fc1_.forward(context, a.fc1_input, a.fc1_out, pass, {activation_kind(), out});
  }
  // 8. Down; the result joins the stream in the next norm.
  linear_fc2_.forward(context, a.fc2_input, scratch.delta, pass, scratch);
  hidden_dropout(context, scratch.delta, scratch.delta, mlp_stream_, pass);
}

kernels::ActivationKind TransformerLayer::activation_kind() const {
  return swiglu_ ? kernels::ActivationKind::swiglu : kernels::ActivationKind::gelu;
}

void TransformerLayer::run_activation(const Context& context, LayerActivations& a, const Pass& pass) {
  const OperandTarget target = linear_fc2_.input_target(a.fc2_input, pass);
  kernels::activation_forward(
      context, {.kind = activation_kind(), .x = a.fc1_out, .y = target.hp, .y_fp8 = target.fp8});
}

void TransformerLayer::hidden_dropout(const Context& context, const Tensor& x, const Tensor& y,
                                      uint64_t stream, const Pass& pass) const {
  if (dropout_ == 0.0f || pass.evaluating()) return;
  stream_dropout(context, x, y, dropout_, stream, pass, dims_, tensor_);
}

// --- backward ----------------------------------------------------------------------------------------------

void TransformerLayer::backward(const Context& context, LayerActivations& a, LayerGradients& g,
                                const LayerBelow& below, const Pass& pass, const Scratch& scratch,
                                bool deferred) {
  backward_mlp(context, a, g, pass, scratch, deferred);
  backward_attention(context, a, g, below, pass, scratch, deferred);
}

GradExtras LayerBelow::output_grad_extras(const Pass& pass) const {
  return layer != nullptr ? layer->output_grad_extras(*gradients, pass) : GradExtras{};
}
GradExtras TransformerLayer::output_grad_extras(LayerGradients& g, const Pass& pass) const {
  return branch_grad_extras(linear_fc2_, g.fc2, pass);
}

void TransformerLayer::wgrad(const Context& context, const LayerActivations& a,
                             const LayerGradients& g) const {
  linear_fc2_.wgrad(context, g.fc2, a.fc2_input);
  linear_fc1_.wgrad(context, g.fc1, a.fc1_input);
  linear_proj_.wgrad(context, g.proj, a.proj_input);
  linear_qkv_.wgrad(context, g.qkv, a.qkv_input);
}

// The stream's gradient as it enters a sublayer's output: itself, or through the dropout in front of it.
Tensor TransformerLayer::branch_gradient(const Context& context, uint64_t stream, const Pass& pass,
                                         const Scratch& scratch) const {
  if (dropout_ == 0.0f) return scratch.d_stream;
  hidden_dropout(context, scratch.d_stream, scratch.d_branch, stream, pass);
  return scratch.d_branch;
}

// What the norm that produces the stream's gradient can do for the linear of the sublayer that comes next: nothing
// through a dropout, because the linear's dy is then another tensor.
GradExtras TransformerLayer::branch_grad_extras(const RowParallelLinear& linear, fp8::Operand& grad,
                                                const Pass& pass) const {
  return dropout_ == 0.0f ? linear.grad_extras(grad, pass) : GradExtras{};
}

void TransformerLayer::backward_mlp(const Context& context, LayerActivations& a, LayerGradients& g,
                                    const Pass& pass, const Scratch& scratch, bool deferred) {
  const bool selective = recompute_ == config::Recompute::selective;
  const Pass again = pass.recomputed();
  const Tensor d_act{scratch.d_inner.data, dims_.dtype, {dims_.tokens, dims_.ffn}};
  // 8'. Down; 7'. the activation's gradient is linear_fc1's grad_output: in FP8 a pass of its own, which casts it, and else part
  // of linear_fc2's dgrad, where its result is made again, too, if it was not kept.
  const Tensor dbias = linear_fc1_.bias() != nullptr ? linear_fc1_.bias()->grad : Tensor{};
  const Tensor dy = branch_gradient(context, mlp_stream_, pass, scratch);
  if (fp8()) {
    if (selective) {
      run_activation(context, a, again);
      linear_fc2_.complete_input(context, a.fc2_input, again);
    }
    linear_fc2_.backward(context, dy, g.fc2, a.fc2_input, d_act, pass, scratch, deferred);
    const OperandTarget target = linear_fc1_.grad_target(g.fc1, pass);
    kernels::activation_backward(context, {.kind = activation_kind(),
                                           .x = a.fc1_out,
                                           .dy = d_act,
                                           .dx = target.hp,
                                           .dx_fp8 = target.fp8,
                                           .dbias = dbias,
                                           .scratch = scratch.column_sums});
  } else {
    const Tensor dx = linear_fc1_.grad_target(g.fc1, pass).hp,
                 y = selective ? linear_fc2_.input_target(a.fc2_input, again).hp : Tensor{};
    linear_fc2_.backward(context, dy, g.fc2, a.fc2_input, d_act, pass, scratch, deferred,
                         {activation_kind(), a.fc1_out, dx, dbias, scratch.column_sums, y});
  }
  g.fc1.bias_summed = static_cast<bool>(dbias);
  // 6'. Up.
  if (selective) {
    pre_mlp_layernorm_.forward(context, a.x_mid, {}, a.x_mid, a.norm2,
                               linear_fc1_.input_target(a.fc1_input, again));
    linear_fc1_.complete_input(context, a.fc1_input, again);
  }
  linear_fc1_.backward(context, g.fc1, a.fc1_input, scratch.d_branch, pass, scratch, deferred);
  // 5'. Norm; its gradient joins the stream's, which is linear_proj's dy.
  pre_mlp_layernorm_.backward(context, scratch.d_branch, a.x_mid, a.norm2, scratch.d_stream,
                              branch_grad_extras(linear_proj_, g.proj, pass), scratch);
}

void TransformerLayer::backward_attention(const Context& context, LayerActivations& a, LayerGradients& g,
                                          const LayerBelow& below, const Pass& pass, const Scratch& scratch,
                                          bool deferred) {
  const bool selective = recompute_ == config::Recompute::selective;
  const Pass again = pass.recomputed();
  const Tensor d_o{scratch.d_inner.data, dims_.dtype, {dims_.tokens, dims_.attention}};
  // 4'. Projection.
  if (selective) {
    a.proj_input.quantized = false;
    linear_proj_.complete_input(context, a.proj_input, again);
  }
  linear_proj_.backward(context, branch_gradient(context, attention_stream_, pass, scratch), g.proj,
                        a.proj_input, d_o, pass, scratch, deferred);
  // 3'. Attention and rotary embedding, whose result is linear_qkv's grad_output.
  g.qkv.quantized = false;
  kernels::Fp8Output cast;
  if (attention_.can_cast()) cast = linear_qkv_.grad_target(g.qkv, pass).fp8;
  const Tensor dbias = cast && linear_qkv_.bias() != nullptr ? linear_qkv_.bias()->grad : Tensor{};
  g.qkv.bias_summed = static_cast<bool>(dbias);
  attention_.backward(context, a.qkv, a.proj_input.hp, a.lse, d_o, g.qkv.hp, cast, dbias, pass, scratch);
  // 2'. Queries, keys and values.
  if (selective) {
    input_layernorm_.forward(context, a.x_in, {}, a.x_in, a.norm1,
                             linear_qkv_.input_target(a.qkv_input, again));
    linear_qkv_.complete_input(context, a.qkv_input, again);
  }
  linear_qkv_.backward(context, g.qkv, a.qkv_input, scratch.d_branch, pass, scratch, deferred);
  // 1'. Norm; its gradient joins the stream's, which is the dy of linear_fc2 below.
  input_layernorm_.backward(context, scratch.d_branch, a.x_in, a.norm1, scratch.d_stream,
                            below.output_grad_extras(pass), scratch);
}

}  // namespace te::model
