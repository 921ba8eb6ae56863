#include "model/qk_norm.h"

#include "model/norm.h"

namespace te::model {

QkNorm::QkNorm(int layer, const config::ModelConfig& model, parameters::ParameterStore& parameters,
               const parallel::TensorParallel& tensor)
    : name_(layer_name(layer) + ".self_attention"),
      shape_{model.num_attention_heads / tensor.size(), model.num_query_groups / tensor.size(),
             model.kv_channels},
      eps_(static_cast<float>(model.norm_epsilon)),
      zero_centered_(model.layernorm_zero_centered_gamma && model.qk_norm != config::QkNorm::head_no_gain),
      parameters_(parameters),
      q_width_(model.kv_channels),
      k_width_(model.kv_channels) {
  if (model.qk_norm == config::QkNorm::head_no_gain) {
    parameters.need_ones(model.kv_channels);
    return;
  }
  const bool head = model.qk_norm == config::QkNorm::head;
  if (shares_norms(model, tensor)) ranks_ = &tensor.group();
  // `heads`: heads of the full projection.
  const auto gain = [&](ParameterRole role, int64_t heads) {
    using parameters::ParameterShard;
    const int64_t width = heads * model.kv_channels;
    return parameters.add(
        {.id = {role, layer},
         .shard = head ? ParameterShard::full({model.kv_channels})
                       : ParameterShard::of_rows({width}, {width}, tensor.rank(), tensor.size()),
         .init = initial_gain(model),
         .sharing = head ? parameters::Sharing::partial : parameters::Sharing::sharded});
  };
  q_ = gain(ParameterRole::q_norm, model.num_attention_heads);
  k_ = gain(ParameterRole::k_norm, model.num_query_groups);
  q_width_ = q_->shape[0];
  k_width_ = k_->shape[0];
}

void QkNorm::plan_activations(MemoryPlan& plan, Activations& a, const Dimensions& dims,
                              Lifetime lifetime) const {
  plan.add(a.raw, name_ + ".raw_qk", MemoryKind::activations, dims.dtype,
           {dims.tokens, shape_.q_width() + shape_.k_width()}, {Buffer::raw, lifetime});
  plan.add(a.rstd, name_ + ".qk_rstd", MemoryKind::activations, DType::f32,
           {dims.tokens, kernels::qk_norm_segments(shape_, q_width_, k_width_)}, {Buffer::rstd, lifetime});
  if (ranks_ == nullptr) return;
  plan.add(a.sums, name_ + ".qk_norm_sums", MemoryKind::scratch, DType::f32,
           {dims.tokens, kernels::qk_norm_segments(shape_, q_width_, k_width_)},
           {Buffer::sums, live(Step::qkv) | live(Step::attention_backward)});
}

void QkNorm::plan_scratch(MemoryPlan& plan) {
  plan.add(gain_sums_, name_ + ".qk_sums", MemoryKind::scratch, DType::f32,
           {kernels::qk_norm_scratch_elements(q_width_, k_width_)},
           {Buffer::gain_sums, live(Step::attention_backward)});
}

void QkNorm::forward(const Context& context, const Tensor& qkv, const Activations& a) const {
  kernels::QkNormForward args{.shape = shape_,
                              .eps = eps_,
                              .qkv = qkv,
                              .q_gain = q_gain(),
                              .k_gain = k_gain(),
                              .raw = a.raw,
                              .rstd = a.rstd,
                              .zero_centered = zero_centered_};
  if (ranks_ != nullptr) {
    args.ranks = ranks_->size();
    args.sums = a.sums;
    kernels::qk_norm_forward_sums(context, args);
    ranks_->all_reduce(context, args.sums, parallel::ReduceOp::sum);
  }
  kernels::qk_norm_forward(context, args);
}

void QkNorm::backward(const Context& context, const Tensor& dqkv, const Activations& a) const {
  kernels::QkNormBackward args{.shape = shape_,
                               .dqkv = dqkv,
                               .q_gain = q_gain(),
                               .k_gain = k_gain(),
                               .raw = a.raw,
                               .rstd = a.rstd,
                               .dq_gain = q_ != nullptr ? q_->grad : Tensor{},
                               .dk_gain = k_ != nullptr ? k_->grad : Tensor{},
                               .scratch = gain_sums_,
                               .zero_centered = zero_centered_};
  if (ranks_ != nullptr) {
    args.ranks = ranks_->size();
    args.sums = a.sums;
    kernels::qk_norm_backward_sums(context, args);
    ranks_->all_reduce(context, args.sums, parallel::ReduceOp::sum);
  }
  kernels::qk_norm_backward(context, args);
}

}  // namespace te::model
