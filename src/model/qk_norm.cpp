#include "model/qk_norm.h"

namespace te::model {

QkNorm::QkNorm(const std::string& name, const config::ModelConfig& model,
               parameters::ParameterStore& parameters, const parallel::TensorParallel& tensor)
    : name_(name),
      shape_{model.num_attention_heads / tensor.size(), model.num_query_groups / tensor.size(),
             model.kv_channels},
      eps_(static_cast<float>(model.norm_epsilon)) {
  const bool head = model.qk_norm == config::QkNorm::head;
  TE_CHECK(head || tensor.size() == 1, "{}: a norm of whole projections is not cut among tensor ranks", name);
  const auto gain = [&](const char* part, int64_t width) {
    return parameters.add({.name = name + part,
                           .shard = parameters::ParameterShard::whole({head ? model.kv_channels : width}),
                           .init = parameters::Init::ones,
                           .sharing = parameters::Sharing::partial});
  };
  q_ = gain(".q_layernorm.weight", shape_.q_width());
  k_ = gain(".k_layernorm.weight", shape_.k_width());
}

void QkNorm::plan_activations(MemoryPlan& plan, Activations& a, const Dimensions& dims,
                              Lifetime lifetime) const {
  plan.add(a.raw, name_ + ".raw_qk", MemoryKind::activations, dims.dtype,
           {dims.tokens, shape_.q_width() + shape_.k_width()}, lifetime);
  plan.add(a.rstd, name_ + ".qk_rstd", MemoryKind::activations, DType::f32,
           {dims.tokens, kernels::qk_norm_pieces(shape_, q_->shape[0], k_->shape[0])}, lifetime);
}

void QkNorm::plan_scratch(MemoryPlan& plan) {
  plan.add(sums_, name_ + ".qk_sums", MemoryKind::scratch, DType::f32,
           {kernels::qk_norm_scratch_elements(q_->shape[0], k_->shape[0])}, live(Step::attention_backward));
}

void QkNorm::forward(const Context& context, const Tensor& qkv, const Activations& a) const {
  kernels::qk_norm_forward(context, {.shape = shape_,
                                     .eps = eps_,
                                     .qkv = qkv,
                                     .q_gain = q_->value,
                                     .k_gain = k_->value,
                                     .raw = a.raw,
                                     .rstd = a.rstd});
}

void QkNorm::backward(const Context& context, const Tensor& dqkv, const Activations& a) const {
  kernels::qk_norm_backward(context, {.shape = shape_,
                                      .dqkv = dqkv,
                                      .q_gain = q_->value,
                                      .k_gain = k_->value,
                                      .raw = a.raw,
                                      .rstd = a.rstd,
                                      .dq_gain = q_->grad,
                                      .dk_gain = k_->grad,
                                      .scratch = sums_});
}

}  // namespace te::model
