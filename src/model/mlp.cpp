#include "model/mlp.h"

namespace te::model {

ActivationKind activation_kind(const config::ModelConfig& model) {
  TE_CHECK(model.activation != ActivationKind::automatic, "model.activation has not been resolved");
  return model.swiglu_clamp > 0.0 ? ActivationKind::swiglu_clamped : model.activation;
}

Mlp::Mlp(const std::string& layer_name, int index, const LayerConfig& config,
         parameters::ParameterStore& parameters, Recipe& recipe, parallel::TensorParallel& tensor)
    : name_(layer_name),
      dims_(config.dims),
      recompute_(config.recompute),
      kept_weights_(config.kept_weights),
      kind_(activation_kind(config.model)),
      clamp_(static_cast<float>(config.model.swiglu_clamp)),
      linear_fc1_({index, LinearKind::fc1}, config, dims_.hidden, config.model.mlp_bias(),
                  config.model.init_method_std, parameters, recipe, tensor),
      linear_fc2_({index, LinearKind::fc2}, config, config.model.ffn_hidden_size, dims_.hidden,
                  config.model.mlp_bias(), output_std(config.model, LinearKind::fc2), parameters, recipe,
                  tensor) {}

// --- memory ------------------------------------------------------------------------------------------------

LinearUse Mlp::fc1_use() const {
  const Step d_out =
      linear_fc2_.can_fuse_backward_activation() ? Step::fc2_backward : Step::activation_backward;
  return {.dims = dims_,
          .tag = Buffer::linear_fc1,
          .recompute = recompute_,
          .input = Step::mlp_norm,
          .forward = Step::fc1,
          .grad = live(d_out, Step::fc1_backward),
          .backward = Step::fc1_backward,
          .weights = kept_weights_};
}

LinearUse Mlp::fc2_use() const {
  return {.dims = dims_,
          .tag = Buffer::linear_fc2,
          .recompute = recompute_,
          .input = linear_fc1_.can_fuse_forward_activation() ? Step::fc1 : Step::activation,
          .forward = Step::fc2,
          .grad = kUpstreamGradient,
          .backward = Step::fc2_backward,
          .weights = kept_weights_};
}

void Mlp::plan_weights(MemoryPlan& plan, bool training) {
  linear_fc1_.plan_weights(plan, fc1_use(), training);
  linear_fc2_.plan_weights(plan, fc2_use(), training);
}

void Mlp::plan_scratch(MemoryPlan& plan) {
  linear_fc1_.plan_scratch(plan, fc1_use());
  linear_fc2_.plan_scratch(plan, fc2_use());
  plan.add(d_act_, name_ + ".d_act", MemoryKind::scratch, dims_.dtype, {dims_.tokens, dims_.ffn},
           {Buffer::d_act, live(Step::fc2_backward, Step::activation_backward)});
}

void Mlp::plan_activations(MemoryPlan& plan, FeedForward::Activations& activations) const {
  Activations& a = own(activations);
  const Step last =
      linear_fc2_.can_fuse_backward_activation() ? Step::activation_backward : Step::fc1_backward;
  plan.add(a.fc1_out, name_ + ".fc1_out", MemoryKind::activations, dims_.dtype, {dims_.tokens, dims_.fc1},
           {Buffer::fc1_out, saved(recompute_, live(Step::fc1, last))});
  linear_fc1_.plan_input(plan, a.fc1_input, fc1_use());
  linear_fc2_.plan_input(plan, a.fc2_input, fc2_use());
}

void Mlp::plan_gradients(MemoryPlan& plan, FeedForward::Gradients& gradients, bool deferred) const {
  Gradients& g = own(gradients);
  linear_fc1_.plan_grad(plan, g.fc1, fc1_use(), deferred, linear_fc2_.can_fuse_backward_activation());
  g.fc1_in_place = !g.fc1.high_precision.is_planned();
  linear_fc2_.plan_grad(plan, g.fc2, fc2_use(), deferred);
}

void Mlp::quantize_weights(const Context& context, bool count) {
  linear_fc1_.quantize_weight(context, count);
  linear_fc2_.quantize_weight(context, count);
}

void Mlp::plan_inference(MemoryPlan& plan, FeedForward::Activations& activations, int64_t rows) const {
  Activations& a = own(activations);
  const auto add = [&](PlanSlot slot, const char* name, int64_t width) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dims_.dtype, {rows, width});
  };
  add(a.fc1_out, ".fc1_out", dims_.fc1);
  add({a.fc2_input, a.fc2_input.high_precision}, ".fc2_input", dims_.ffn);
}

std::unique_ptr<FeedForward::Activations> Mlp::first_rows(const FeedForward::Activations& activations,
                                                          const Tensor& input, int64_t rows) const {
  const Activations& all = own(activations);
  auto first = std::make_unique<Activations>();
  first->fc1_input.high_precision = input;
  first->fc1_out = all.fc1_out.slice_rows(0, rows);
  first->fc2_input.high_precision = all.fc2_input.high_precision.slice_rows(0, rows);
  return first;
}

void Mlp::share_input_layouts(FeedForward::Activations& activations, const Tensor& values,
                              const Tensor& scales) const {
  Activations& a = own(activations);
  a.fc1_input.rowwise = linear_fc1_.input_layout(values, scales, a.fc1_input.high_precision.rows());
  a.fc2_input.rowwise = linear_fc2_.input_layout(values, scales, a.fc2_input.high_precision.rows());
  a.inputs_share_memory = true;
}

// --- passes ------------------------------------------------------------------------------------------------

ProducedOperand Mlp::run_activation(const Context& context, const Activations& a,
                                    const OperandRequest& request) const {
  ProducedOperand y = request.quantized_or_values(false);
  kernels::activation_forward(
      context, {.kind = kind_, .x = a.fc1_out, .y = y.high_precision, .y_fp8 = y.fp8, .clamp = clamp_});
  return y;
}

void Mlp::forward(const Context& context, FeedForward::Activations& activations, const ProducedOperand& x,
                  const Tensor& y, const Pass& pass) {
  Activations& a = own(activations);
  // 1. Up projection (for SwiGLU: gate and up in one GEMM). 2. Activation.
  pass.begin_step(context, Step::fc1);
  const OperandRequest request = linear_fc2_.input_request(a.fc2_input, pass);
  ProducedOperand activated;
  const bool quantized = linear_fc1_.runs_quantized();
  if (linear_fc1_.fuses_forward_activation() && !(quantized && a.inputs_share_memory)) {
    activated.high_precision = request.high_precision;
    if (quantized) activated = request.quantized_or_values(false);
    a.fc1_ready = linear_fc1_.forward(context, a.fc1_input, x, a.fc1_out, pass,
                                      {.kind = kind_, .y = activated, .clamp = clamp_});
  } else {
    a.fc1_ready = linear_fc1_.forward(context, a.fc1_input, x, a.fc1_out, pass);
    pass.begin_step(context, Step::activation);
    activated = run_activation(context, a, request);
  }
  // 3. Down projection.
  pass.begin_step(context, Step::fc2);
  a.fc2_ready = linear_fc2_.forward(context, a.fc2_input, activated, y, pass);
}

std::optional<FeedForward::MegakernelGemms> Mlp::megakernel_gemms(
    const FeedForward::Activations& activations) const {
  MegakernelGemms gemms{linear_fc1_.megakernel_gemm(), linear_fc2_.megakernel_gemm()};
  gemms.first.activated = true;
  gemms.first.kind = kind_;
  gemms.first.clamp = clamp_;
  gemms.first.out = gemms.second.x = own(activations).fc2_input.high_precision;
  return gemms;
}

void Mlp::backward(const Context& context, const ProducedOperand& dy, FeedForward::Activations& activations,
                   FeedForward::Gradients& gradients, const Tensor& dx, const Pass& pass, bool deferred,
                   const RecomputeInput& recompute_input) {
  Activations& a = own(activations);
  Gradients& g = own(gradients);
  const Pass recomputed = pass.recomputed();
  OperandRequest request = linear_fc1_.grad_request(g.fc1, pass);
  if (g.fc1_in_place) request.high_precision = a.fc1_out;
  ProducedOperand d_fc1;
  // 3'. Down projection; 2'. gradient of the activation, whose output is recomputed if it was not saved.
  if (linear_fc2_.fuses_backward_activation()) {
    d_fc1 = {.high_precision = request.high_precision, .sums = request.sums};
    EpilogueActivation activation;
    activation.kind = kind_;
    activation.x = a.fc1_out;
    activation.dx = d_fc1;
    activation.clamp = clamp_;
    if (recompute_input) {
      activation.y.high_precision = linear_fc2_.input_request(a.fc2_input, recomputed).high_precision;
      a.fc2_ready = linear_fc2_.complete_input(context, a.fc2_input, activation.y, recomputed);
    }
    g.fc2_ready = linear_fc2_.backward(context, g.fc2, dy, a.fc2_ready, d_act_, pass, deferred, activation);
  } else {
    if (recompute_input) {
      const ProducedOperand activated =
          run_activation(context, a, linear_fc2_.input_request(a.fc2_input, recomputed));
      a.fc2_ready = linear_fc2_.complete_input(context, a.fc2_input, activated, recomputed);
    }
    g.fc2_ready = linear_fc2_.backward(context, g.fc2, dy, a.fc2_ready, d_act_, pass, deferred);
    pass.begin_step(context, Step::activation_backward);
    d_fc1 = request.quantized_or_values(true);
    kernels::activation_backward(context, {.kind = kind_,
                                           .x = a.fc1_out,
                                           .dy = d_act_,
                                           .dx = d_fc1.high_precision,
                                           .dx_fp8 = d_fc1.fp8,
                                           .dbias = d_fc1.sums.into,
                                           .scratch = d_fc1.sums.scratch,
                                           .clamp = clamp_});
  }
  // 1'. Up projection.
  pass.begin_step(context, Step::fc1_backward);
  if (recompute_input) {
    const ProducedOperand x = recompute_input(linear_fc1_.input_request(a.fc1_input, recomputed));
    a.fc1_ready = linear_fc1_.complete_input(context, a.fc1_input, x, recomputed);
  }
  g.fc1_ready = linear_fc1_.backward(context, g.fc1, d_fc1, a.fc1_ready, dx, pass, deferred);
}

void Mlp::wgrad(const Context& context, const FeedForward::Activations& activations,
                const FeedForward::Gradients& gradients) const {
  const Activations& a = own(activations);
  const Gradients& g = own(gradients);
  linear_fc2_.wgrad(context, g.fc2_ready, a.fc2_ready);
  linear_fc1_.wgrad(context, g.fc1_ready, a.fc1_ready);
}

}  // namespace te::model
