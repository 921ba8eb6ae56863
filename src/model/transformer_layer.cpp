#include "model/transformer_layer.h"

#include "core/random.h"
#include "kernels/elementwise/elementwise.h"
#include "model/embedding.h"

namespace te::model {

TransformerLayer::TransformerLayer(int index, const LayerConfig& config,
                                   parameters::ParameterStore& parameters, Recipe& recipe,
                                   const RopeTables& rope, parallel::TensorParallel& tensor,
                                   const ContextParallel& ranks, const FeedForwardFactory& make_feed_forward)
    : index_(index),
      name_(layer_name(index)),
      tensor_(tensor),
      ranks_(ranks),
      dims_(config.dims),
      recompute_(config.recompute),
      pre_(config.model.norm_placement != config::NormPlacement::post),
      post_(config.model.norm_placement != config::NormPlacement::pre),
      parallel_(config.model.parallel_residual),
      dropout_(static_cast<float>(config.model.hidden_dropout)),
      attention_dropout_id_(stream_of(name_ + ".self_attention.hidden_dropout")),
      mlp_dropout_id_(stream_of(name_ + ".mlp.hidden_dropout")),
      attention_norms_(make_norms(ParameterRole::input_norm, ParameterRole::post_attention_norm, index,
                                  config, parameters)),
      attention_(name_, index, config, parameters, recipe, rope, tensor, ranks),
      mlp_norms_(
          make_norms(ParameterRole::pre_mlp_norm, ParameterRole::post_mlp_norm, index, config, parameters)),
      feed_forward_(make_feed_forward(name_, index, config, parameters, recipe, tensor)) {
  parameters.end_layer(true);
}

TransformerLayer::Norms TransformerLayer::make_norms(ParameterRole before, ParameterRole after, int layer,
                                                     const LayerConfig& config,
                                                     parameters::ParameterStore& parameters) {
  const auto make = [&](ParameterRole role) {
    return std::make_unique<Norm>(role, layer, config.model, parameters, tensor_);
  };
  Norms norms;
  if (pre_) norms.before = make(before);
  if (post_) norms.after = make(after);
  return norms;
}

// --- memory ------------------------------------------------------------------------------------------------

void TransformerLayer::plan_weights(MemoryPlan& plan, bool training, bool deferred) {
  attention_.plan_weights(plan, training, deferred);
  feed_forward_->plan_weights(plan, training);
}

void TransformerLayer::plan_scratch(MemoryPlan& plan, const Context& context) {
  if (pre_) attention_norms_.before->plan_scratch(plan, Step::input_norm_backward);
  if (post_) attention_norms_.after->plan_scratch(plan, Step::proj_backward);
  attention_.plan_scratch(plan, context);
  if (pre_) mlp_norms_.before->plan_scratch(plan, Step::mlp_norm_backward);
  if (post_) mlp_norms_.after->plan_scratch(plan, Step::fc2_backward);
  feed_forward_->plan_scratch(plan);
  const auto add = [&](PlannedTensor& slot, const char* name, Buffer buffer, Lifetime lifetime) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dims_.dtype, {dims_.residual_rows, dims_.hidden},
             {buffer, lifetime});
  };
  add(d_branch_, ".d_branch", Buffer::d_branch,
      live(Step::fc1_backward, Step::mlp_norm_backward) |
          live(Step::qkv_backward, Step::input_norm_backward));
  if (has_branch_gradient())
    add(d_output_, ".d_output", Buffer::d_output,
        live(Step::fc2_backward, feed_forward_->last_gradient_read()) | live(Step::proj_backward));
  if (parallel_)
    add(d_parallel_, ".d_parallel", Buffer::d_parallel,
        live(Step::mlp_norm_backward, Step::input_norm_backward));
}

void TransformerLayer::plan_input(MemoryPlan& plan, LayerActivations& a) {
  plan.add(a.x_in, name_ + ".x_in", MemoryKind::activations, dims_.dtype,
           {dims_.residual_rows, dims_.hidden});
}

// Selective recompute recomputes the outputs of norms and activations, which are cheap and most of the saved memory.
void TransformerLayer::plan_activations(MemoryPlan& plan, LayerActivations& a) {
  const Shape stream{dims_.residual_rows, dims_.hidden};
  const auto add = [&](PlannedTensor& slot, const char* name, Buffer buffer, Lifetime lifetime) {
    plan.add(slot, name_ + name, MemoryKind::activations, dims_.dtype, stream, {buffer, lifetime});
  };
  const auto statistics = [&](const std::unique_ptr<Norm>& norm, Planned<Norm::Statistics>& slots,
                              Buffer buffer, Lifetime lifetime) {
    if (norm) norm->plan_statistics(plan, slots, dims_.residual_rows, {buffer, saved(recompute_, lifetime)});
  };
  const Lifetime after1 = live(Step::proj, Step::proj_backward), after2 = live(Step::fc2, Step::fc2_backward);
  statistics(attention_norms_.before, a.norm1, Buffer::norm1,
             live(Step::input_norm, Step::input_norm_backward));
  statistics(attention_norms_.after, a.post_norm1, Buffer::post_norm1, after1);
  attention_.plan_activations(plan, a.attention);
  const Lifetime read_again = kLayerOutput | live(Step::fc2_backward, Step::mlp_norm_backward);
  add(a.x_mid, ".x_mid", Buffer::x_mid, parallel_ ? kLayerOutput : saved(recompute_, read_again));
  statistics(mlp_norms_.before, a.norm2, Buffer::norm2, live(Step::mlp_norm, Step::mlp_norm_backward));
  statistics(mlp_norms_.after, a.post_norm2, Buffer::post_norm2, after2);
  a.feed_forward = feed_forward_->make_activations();
  feed_forward_->plan_activations(plan, *a.feed_forward);
  if (post_) {
    add(a.attention_out, ".attention_branch", Buffer::attention_out, saved(recompute_, after1));
    add(a.mlp_out, ".mlp_branch", Buffer::mlp_out, saved(recompute_, after2));
  }
  plan.add(a.delta, name_ + ".delta", MemoryKind::scratch, dims_.dtype, stream,
           {Buffer::delta, kLayerOutput});
}

void TransformerLayer::plan_gradients(MemoryPlan& plan, LayerGradients& g, bool deferred) const {
  attention_.plan_gradients(plan, g.attention, deferred);
  g.feed_forward = feed_forward_->make_gradients();
  feed_forward_->plan_gradients(plan, *g.feed_forward, deferred);
}

void TransformerLayer::quantize_weights(const Context& context, bool count) {
  attention_.quantize_weights(context, count);
  feed_forward_->quantize_weights(context, count);
}

// --- forward -----------------------------------------------------------------------------------------------

void TransformerLayer::forward(const Context& context, const Tensor& residual, const Tensor& delta,
                               LayerActivations& a, const Pass& pass) {
  // 1. Add the previous layer's output to the residual stream; its norm is attention's input.
  pass.begin_step(context, Step::input_norm);
  const ProducedOperand attention_input = begin_branch(context, attention_branch(a), residual, delta, a.x_in,
                                                       attention_.input_request(a.attention, pass));
  // 2. Attention.
  attention_.forward(context, a.attention, attention_input, output(a, a.attention_out), pass);
  end_branch(context, attention_branch(a), output(a, a.attention_out), a.delta, pass);
  // 3. Add attention's output to the residual stream; its norm is the MLP's input.
  pass.begin_step(context, Step::mlp_norm);
  const OperandRequest request = feed_forward_->input_request(*a.feed_forward, pass);
  const ProducedOperand mlp_input =
      parallel_ ? begin_branch(context, mlp_branch(a), a.x_in, {}, a.x_in, request)
                : begin_branch(context, mlp_branch(a), a.x_in, a.delta, a.x_mid, request);
  if (parallel_) kernels::add(context, a.x_in, a.delta, a.x_mid);
  // 4. MLP; the next norm adds its output to the residual stream.
  feed_forward_->forward(context, *a.feed_forward, mlp_input, output(a, a.mlp_out), pass);
  end_branch(context, mlp_branch(a), output(a, a.mlp_out), a.delta, pass);
}

// sum = x + delta (x itself without delta); produces the sum, or its norm, for the sublayer.
ProducedOperand TransformerLayer::begin_branch(const Context& context, const Branch& branch, const Tensor& x,
                                               const Tensor& delta, const Tensor& sum,
                                               const OperandRequest& request) const {
  if (pre_) return branch.norms.before->forward(context, x, delta, sum, branch.before, request);
  if (delta) kernels::add(context, x, delta, sum);
  context.copy(request.high_precision, sum);
  return {.high_precision = request.high_precision};
}

// delta: what the sublayer adds to the residual stream.
void TransformerLayer::end_branch(const Context& context, const Branch& branch, const Tensor& out,
                                  const Tensor& delta, const Pass& pass) const {
  if (post_) branch.norms.after->forward(context, out, {}, out, branch.after, {.high_precision = delta});
  dropout(context, delta, delta, branch.dropout_id, pass);
}

void TransformerLayer::dropout(const Context& context, const Tensor& x, const Tensor& y, uint64_t dropout_id,
                               const Pass& pass) const {
  if (dropout_ == 0.0f || pass.evaluating()) return;
  residual_dropout(context, x, y, dropout_, dropout_id, pass, dims_, tensor_, ranks_);
}

std::optional<TransformerLayer::MegakernelGemms> TransformerLayer::megakernel_gemms(
    const LayerActivations& a) const {
  if (!pre_ || post_ || parallel_) return {};
  const auto feed_forward = feed_forward_->megakernel_gemms(*a.feed_forward);
  if (!feed_forward) return {};
  MegakernelGemms all{attention_.megakernel_qkv(), attention_.megakernel_proj(), feed_forward->first,
                      feed_forward->second};
  all.qkv.norm = attention_norms_.before->megakernel_norm();
  all.fc1.norm = mlp_norms_.before->megakernel_norm();
  return all;
}

// --- backward ----------------------------------------------------------------------------------------------

ProducedOperand TransformerLayer::backward(const Context& context, LayerActivations& a, LayerGradients& g,
                                           const PreviousLayer& previous_layer,
                                           const ProducedOperand& d_output, const Pass& pass, bool deferred) {
  RecomputeInput recompute_mlp, recompute_attention;
  if (recompute_ == config::Recompute::selective) {
    recompute_mlp = [&](const OperandRequest& request) {
      return begin_branch(context, mlp_branch(a), mlp_source(a), {}, mlp_source(a), request);
    };
    recompute_attention = [&](const OperandRequest& request) {
      return begin_branch(context, attention_branch(a), a.x_in, {}, a.x_in, request);
    };
  }
  const Tensor& d_residual = d_output.high_precision;
  // 4'. MLP.
  pass.begin_step(context, Step::fc2_backward);
  ProducedOperand d_mlp = d_output;
  if (has_branch_gradient())
    d_mlp = end_branch_backward(context, mlp_branch(a), d_residual, a.mlp_out,
                                feed_forward_->grad_request(*g.feed_forward, pass), pass);
  feed_forward_->backward(context, d_mlp, *a.feed_forward, *g.feed_forward, d_branch_, pass, deferred,
                          recompute_mlp);
  // 3'. Norm; adds its gradient to d_residual, which is then the gradient of attention's output.
  pass.begin_step(context, Step::mlp_norm_backward);
  const Tensor& d_mid = parallel_ ? d_parallel_ : d_residual;
  const bool is_dy = !has_branch_gradient() && !parallel_;
  const ProducedOperand d_sum =
      begin_branch_backward(context, mlp_branch(a), mlp_source(a), d_residual, d_mid,
                            is_dy ? attention_.grad_request(g.attention, pass) : OperandRequest());
  // 2'. Attention.
  pass.begin_step(context, Step::proj_backward);
  ProducedOperand d_attention{.high_precision = d_residual};
  if (is_dy) d_attention = d_sum;
  if (has_branch_gradient())
    d_attention = end_branch_backward(context, attention_branch(a), d_residual, a.attention_out,
                                      attention_.grad_request(g.attention, pass), pass);
  attention_.backward(context, d_attention, a.attention, g.attention, d_branch_, pass, deferred,
                      recompute_attention);
  // 1'. Norm; adds its gradient to d_residual, which is then the gradient of the previous layer's output.
  pass.begin_step(context, Step::input_norm_backward);
  return begin_branch_backward(context, attention_branch(a), a.x_in, d_mid, d_residual,
                               previous_layer.grad_request(pass));
}

// With dropout or a norm after the MLP, its dy is another tensor than d_residual, so the producer of d_residual cannot
// quantize it.
OperandRequest TransformerLayer::grad_request(LayerGradients& g, const Pass& pass) const {
  return has_branch_gradient() ? OperandRequest() : feed_forward_->grad_request(*g.feed_forward, pass);
}

OperandRequest PreviousLayer::grad_request(const Pass& pass) const {
  return layer != nullptr ? layer->grad_request(*gradients, pass) : OperandRequest();
}

// With has_branch_gradient(): the gradient of a sublayer's output, through the backward pass of end_branch().
ProducedOperand TransformerLayer::end_branch_backward(const Context& context, const Branch& branch,
                                                      const Tensor& d_residual, const Tensor& out,
                                                      const OperandRequest& request, const Pass& pass) const {
  if (post_)
    return branch.norms.after->backward(context, d_residual, out, branch.after, {}, d_output_, request);
  dropout(context, d_residual, d_output_, branch.dropout_id, pass);
  return {.high_precision = d_output_};
}

// dx = d_residual + the gradient d_branch_ of the sublayer's input, through the backward pass of begin_branch().
ProducedOperand TransformerLayer::begin_branch_backward(const Context& context, const Branch& branch,
                                                        const Tensor& x, const Tensor& d_residual,
                                                        const Tensor& dx,
                                                        const OperandRequest& request) const {
  if (pre_)
    return branch.norms.before->backward(context, d_branch_, x, branch.before, d_residual, dx, request);
  kernels::add(context, d_residual, d_branch_, dx);
  return {.high_precision = dx};
}

void TransformerLayer::wgrad(const Context& context, const LayerActivations& a,
                             const LayerGradients& g) const {
  feed_forward_->wgrad(context, *a.feed_forward, *g.feed_forward);
  attention_.wgrad(context, a.attention, g.attention);
}

}  // namespace te::model
