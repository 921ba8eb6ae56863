#include "model/self_attention.h"

namespace te::model {

SelfAttention::SelfAttention(const std::string& layer_name, int index, const LayerConfig& config,
                             parameters::ParameterStore& parameters, Recipe& recipe, const RopeTables& rope,
                             parallel::TensorParallel& tensor, const ContextParallel& ranks)
    : name_(layer_name),
      dims_(config.dims),
      recompute_(config.recompute),
      kept_weights_(config.kept_weights),
      linear_qkv_({index, LinearKind::qkv}, config, dims_.hidden, config.model.qkv_bias(),
                  config.model.init_method_std, parameters, recipe, tensor),
      attention_(layer_name + ".self_attention", config, rope, tensor, ranks),
      linear_proj_({index, LinearKind::proj}, config, config.model.attention_width(), dims_.hidden,
                   config.model.proj_bias(), output_std(config.model, LinearKind::proj), parameters, recipe,
                   tensor) {
  if (config.model.qk_norm != config::QkNorm::none)
    qk_norm_ = std::make_unique<QkNorm>(index, config.model, parameters, tensor);
}

// --- memory ------------------------------------------------------------------------------------------------

LinearUse SelfAttention::qkv_use() const {
  return {.dims = dims_,
          .tag = Buffer::linear_qkv,
          .recompute = recompute_,
          .input = Step::input_norm,
          .forward = Step::qkv,
          .grad = live(Step::attention_backward, Step::qkv_backward),
          .backward = Step::qkv_backward,
          .weights = kept_weights_};
}

LinearUse SelfAttention::proj_use() const {
  return {.dims = dims_,
          .tag = Buffer::linear_proj,
          .recompute = requantizes_output_ ? config::Recompute::selective : recompute_,
          .input = Step::proj,  // attention's output is quantized in this step
          .forward = Step::proj,
          .grad = live(Step::mlp_norm_backward, Step::proj_backward),
          .backward = Step::proj_backward,
          .weights = kept_weights_};
}

void SelfAttention::plan_weights(MemoryPlan& plan, bool training, bool deferred) {
  // Attention's output is saved in high precision for attention's backward pass. Quantizing it twice for linear_proj is
  // better than also saving the quantized values.
  requantizes_output_ = recompute_ == config::Recompute::none && linear_proj_.quantized() && !deferred;
  linear_qkv_.plan_weights(plan, qkv_use(), training);
  linear_proj_.plan_weights(plan, proj_use(), training);
}

void SelfAttention::plan_scratch(MemoryPlan& plan, const Context& context) {
  linear_qkv_.plan_scratch(plan, qkv_use());
  if (qk_norm_) qk_norm_->plan_scratch(plan);
  attention_.plan_scratch(plan, context);
  if (attention_.keeps_heads())
    plan.add(qkv_, name_ + ".qkv_of_tokens", MemoryKind::scratch, dims_.dtype, {dims_.tokens, dims_.qkv},
             {Buffer::qkv_of_tokens, live(Step::qkv, Step::attention)});
  linear_proj_.plan_scratch(plan, proj_use());
  plan.add(d_o_, name_ + ".d_attention_out", MemoryKind::scratch, dims_.dtype,
           {dims_.tokens, dims_.attention},
           {Buffer::d_out, live(Step::proj_backward, Step::attention_backward)});
}

void SelfAttention::plan_activations(MemoryPlan& plan, Activations& a) const {
  const auto save = [&](PlanSlot slot, const char* what, DType dtype, Shape shape, Buffer buffer, Step made) {
    plan.add(slot, name_ + what, MemoryKind::activations, dtype, shape,
             {buffer, saved(recompute_, live(made, Step::attention_backward))});
  };
  a.core = &attention_;
  save(a.qkv, ".qkv", dims_.dtype, attention_.kept_shape(), Buffer::qkv, Step::qkv);
  save(a.lse, ".lse", DType::f32, attention_.lse_shape(), Buffer::lse, Step::attention);
  save({a.proj_input, a.proj_input.high_precision}, ".attention_out", dims_.dtype,
       {dims_.tokens, dims_.attention}, Buffer::out, Step::attention);
  if (qk_norm_)
    qk_norm_->plan_activations(plan, a.qk_norm, dims_,
                               saved(recompute_, live(Step::qkv, Step::attention_backward)));
  linear_qkv_.plan_input(plan, a.qkv_input, qkv_use());
  linear_proj_.plan_input(plan, a.proj_input, proj_use(), true);
}

void SelfAttention::plan_gradients(MemoryPlan& plan, Gradients& g, bool deferred) const {
  linear_qkv_.plan_grad(plan, g.qkv, qkv_use(), deferred);
  linear_proj_.plan_grad(plan, g.proj, proj_use(), deferred);
}

void SelfAttention::quantize_weights(const Context& context, bool count) {
  linear_qkv_.quantize_weight(context, count);
  linear_proj_.quantize_weight(context, count);
}

void SelfAttention::share_input_layouts(Activations& a, const Tensor& values, const Tensor& scales) const {
  a.qkv_input.rowwise = linear_qkv_.input_layout(values, scales, a.qkv_input.high_precision.rows());
  a.proj_input.rowwise = linear_proj_.input_layout(values, scales, a.proj_input.high_precision.rows());
}

// --- passes ------------------------------------------------------------------------------------------------

void SelfAttention::forward(const Context& context, Activations& a, const ProducedOperand& x, const Tensor& y,
                            const Pass& pass) {
  // 1. Queries, keys and values of all heads, in one GEMM.
  pass.begin_step(context, Step::qkv);
  const Tensor& qkv = attention_.keeps_heads() ? qkv_ : a.qkv;
  a.qkv_ready = linear_qkv_.forward(context, a.qkv_input, x, qkv, pass);
  // 2. Rotary embedding and attention, on the packed result.
  const ProducedOperand o{.high_precision = a.proj_input.high_precision};
  attend(context, a, qkv, o.high_precision, pass);
  // 3. Projection to the width of the residual stream.
  pass.begin_step(context, Step::proj);
  a.proj_ready = linear_proj_.forward(context, a.proj_input, o, y, pass);
}

void SelfAttention::attend(const Context& context, Activations& a, const Tensor& qkv, const Tensor& o,
                           const Pass& pass) const {
  if (qk_norm_) qk_norm_->forward(context, qkv, a.qk_norm);
  pass.begin_step(context, Step::attention);
  a.core->forward(context, qkv, a.qkv, o, a.lse, pass);
}

void SelfAttention::backward(const Context& context, const ProducedOperand& dy, Activations& a, Gradients& g,
                             const Tensor& dx, const Pass& pass, bool deferred,
                             const RecomputeInput& recompute_input) {
  // 3'. Projection; attention's output was saved, only its quantized layout is recomputed.
  if (recompute_input || requantizes_output_)
    a.proj_ready = linear_proj_.complete_input(
        context, a.proj_input, {.high_precision = a.proj_input.high_precision}, pass.recomputed());
  g.proj_ready = linear_proj_.backward(context, g.proj, dy, a.proj_ready, d_o_, pass, deferred);
  // 2'. Attention, rotary embedding and QK norm, which give linear_qkv's dy.
  pass.begin_step(context, Step::attention_backward);
  const ProducedOperand d_qkv = attention_backward(context, a, linear_qkv_.grad_request(g.qkv, pass), pass);
  // 1'. Queries, keys and values.
  pass.begin_step(context, Step::qkv_backward);
  if (recompute_input) {
    const ProducedOperand x = recompute_input(linear_qkv_.input_request(a.qkv_input, pass.recomputed()));
    a.qkv_ready = linear_qkv_.complete_input(context, a.qkv_input, x, pass.recomputed());
  }
  g.qkv_ready = linear_qkv_.backward(context, g.qkv, d_qkv, a.qkv_ready, dx, pass, deferred);
}

ProducedOperand SelfAttention::attention_backward(const Context& context, const Activations& a,
                                                  const OperandRequest& d_qkv, const Pass& pass) const {
  const Tensor& o = a.proj_input.high_precision;
  if (!qk_norm_) return attention_.backward(context, a.qkv, o, a.lse, d_o_, d_qkv, pass);
  const OperandRequest values{.high_precision = d_qkv.high_precision};
  ProducedOperand produced = attention_.backward(context, a.qkv, o, a.lse, d_o_, values, pass);
  qk_norm_->backward(context, produced.high_precision, a.qk_norm);
  return produced;
}

void SelfAttention::wgrad(const Context& context, const Activations& a, const Gradients& g) const {
  linear_proj_.wgrad(context, g.proj_ready, a.proj_ready);
  linear_qkv_.wgrad(context, g.qkv_ready, a.qkv_ready);
}

}  // namespace te::model
