#include "model/mlp.h"

namespace te::model {
namespace {

/// The blocks of rows that are cut among the tensor ranks one by one.
std::vector<int64_t> fc1_blocks(const config::ModelConfig& model) {
  return std::vector<int64_t>(static_cast<size_t>(model.fc1_width() / model.ffn_hidden_size),
                              model.ffn_hidden_size);
}

}  // namespace

Mlp::Mlp(const std::string& layer_name, int index, const config::Config& config,
         parameters::ParameterStore& parameters, Recipe& recipe, parallel::TensorParallel& tensor)
    : name_(layer_name),
      dims_(Dimensions::of(config, tensor)),
      kind_(config.model.family == config::Family::llama ? kernels::ActivationKind::swiglu
                                                         : kernels::ActivationKind::gelu),
      linear_fc1_(layer_name + ".mlp.linear_fc1", index, fc1_blocks(config.model), dims_.hidden,
                  config.model.family == config::Family::gpt, config.model.init_method_std, parameters,
                  recipe, tensor),
      linear_fc2_(layer_name + ".mlp.linear_fc2", index, config.model.ffn_hidden_size, dims_.hidden,
                  config.model.family == config::Family::gpt, output_std(config.model), parameters, recipe,
                  tensor) {}

// --- memory ------------------------------------------------------------------------------------------------

void Mlp::plan_weights(MemoryPlan& plan, Scratch& scratch) {
  linear_fc1_.plan_weights(plan);
  linear_fc2_.plan_weights(plan);
  linear_fc1_.plan_share(plan, dims_, scratch);
}

void Mlp::plan_activations(MemoryPlan& plan, Activations& a, Scratch& scratch, bool saved) const {
  plan.add(a.fc1_out, name_ + ".fc1_out", MemoryKind::activations, dims_.dtype, {dims_.tokens, dims_.fc1});
  // Where linear_fc1's GEMM makes linear_fc2's input, the two exist at once. d_inner is free in the forward pass, and in the
  // backward pass between linear_fc2's dgrad and linear_proj's. (A weight gradient that is put off would still need it:
  // schedules that do so do not go with recomputation.)
  const bool apart = !saved && rides_on(linear_fc1_);
  if (apart) plan.alias(a.fc1_input.hp, scratch.d_inner, dims_.dtype, {dims_.tokens, dims_.hidden});
  linear_fc1_.plan_input(plan, a.fc1_input, dims_, scratch, saved, apart);
  linear_fc2_.plan_input(plan, a.fc2_input, dims_, scratch, saved, false);
}

void Mlp::plan_gradients(MemoryPlan& plan, Gradients& g, Scratch& scratch, bool deferred) const {
  linear_fc1_.plan_grad(plan, g.fc1, dims_, scratch, deferred);
  linear_fc2_.plan_grad(plan, g.fc2, dims_, scratch, deferred);
}

void Mlp::quantize_weights(const Context& context, bool count) {
  linear_fc1_.quantize_weight(context, count);
  linear_fc2_.quantize_weight(context, count);
}

// --- passes ------------------------------------------------------------------------------------------------

void Mlp::run_activation(const Context& context, const Activations& a, Target y) const {
  const Output output = y.cast();
  kernels::activation_forward(context, {.kind = kind_, .x = a.fc1_out, .y = output.hp, .y_fp8 = output.fp8});
}

void Mlp::forward(const Context& context, Activations& a, const Tensor& y, const Pass& pass,
                  const Scratch& scratch) {
  // 1. Up (for SwiGLU: gate and up in one GEMM). 2. The activation.
  Target activated = linear_fc2_.input_target(a.fc2_input, pass);
  if (rides_on(linear_fc1_)) {
    linear_fc1_.forward(context, a.fc1_input, a.fc1_out, pass, {.kind = kind_, .y = activated.values()});
  } else {
    linear_fc1_.forward(context, a.fc1_input, a.fc1_out, pass);
    run_activation(context, a, activated);
  }
  // 3. Down.
  linear_fc2_.forward(context, a.fc2_input, y, pass, scratch);
}

void Mlp::backward(const Context& context, const Tensor& dy, Activations& a, Gradients& g, const Tensor& dx,
                   const Pass& pass, const Scratch& scratch, bool deferred, const RemakeInput& remake_input) {
  const Pass again = pass.recomputed();
  const Tensor d_act{scratch.d_inner.data, dims_.dtype, {dims_.tokens, dims_.ffn}};
  Target d_fc1 = linear_fc1_.grad_target(g.fc1, pass, scratch);
  // 3'. Down; 2'. the activation's gradient, and its result again, if that was not kept.
  if (rides_on(linear_fc2_)) {
    EpilogueActivation activation{.kind = kind_, .x = a.fc1_out, .dx = d_fc1.values_and_sums()};
    if (remake_input) {
      activation.y = linear_fc2_.input_target(a.fc2_input, again).values();
      linear_fc2_.complete_input(context, a.fc2_input, again);
    }
    linear_fc2_.backward(context, dy, g.fc2, a.fc2_input, d_act, pass, scratch, deferred, activation);
  } else {
    if (remake_input) {
      run_activation(context, a, linear_fc2_.input_target(a.fc2_input, again));
      linear_fc2_.complete_input(context, a.fc2_input, again);
    }
    linear_fc2_.backward(context, dy, g.fc2, a.fc2_input, d_act, pass, scratch, deferred);
    const Output output = d_fc1.cast_and_sums();
    kernels::activation_backward(context, {.kind = kind_,
                                           .x = a.fc1_out,
                                           .dy = d_act,
                                           .dx = output.hp,
                                           .dx_fp8 = output.fp8,
                                           .dbias = output.sums.into,
                                           .scratch = output.sums.scratch});
  }
  // 1'. Up.
  if (remake_input) {
    remake_input(linear_fc1_.input_target(a.fc1_input, again));
    linear_fc1_.complete_input(context, a.fc1_input, again);
  }
  linear_fc1_.backward(context, g.fc1, a.fc1_input, dx, pass, scratch, deferred);
}

void Mlp::wgrad(const Context& context, const Activations& a, const Gradients& g) const {
  linear_fc2_.wgrad(context, g.fc2, a.fc2_input);
  linear_fc1_.wgrad(context, g.fc1, a.fc1_input);
}

}  // namespace te::model
