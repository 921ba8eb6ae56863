#include "model/norm.h"

namespace te::model {
namespace {

bool has_gain(ParameterRole role, const config::ModelConfig& model) {
  return model.norm_gain && role != ParameterRole::embedding_norm;
}

kernels::NormKind norm_kind(ParameterRole role, const config::ModelConfig& model) {
  if (model.layer_norm()) return kernels::NormKind::layer;
  return has_gain(role, model) && model.layernorm_zero_centered_gamma ? kernels::NormKind::rms_zero_centered
                                                                      : kernels::NormKind::rms;
}

}  // namespace

parameters::Init initial_gain(const config::ModelConfig& model) {
  return model.layernorm_zero_centered_gamma ? parameters::Init::zeros : parameters::Init::ones;
}

Norm::Norm(ParameterRole role, int layer, const config::ModelConfig& model,
           parameters::ParameterStore& parameters, const parallel::TensorParallel& tensor)
    : name_(module_name(role, layer)),
      layer_norm_(model.layer_norm()),
      kind_(norm_kind(role, model)),
      eps_(static_cast<float>(model.norm_epsilon)),
      hidden_(model.hidden_size),
      parameters_(parameters) {
  if (!has_gain(role, model)) {
    parameters.need_ones(hidden_);
    return;
  }
  const parameters::ParameterShard shard = parameters::ParameterShard::full({model.hidden_size});
  const parameters::Sharing sharing =
      tensor.sequence() ? parameters::Sharing::partial : parameters::Sharing::replicated;
  gain_ =
      parameters.add({.id = {role, layer}, .shard = shard, .init = initial_gain(model), .sharing = sharing});
  if (layer_norm_) {
    bias_ = parameters.add({.id = {role, layer, ParameterPart::bias},
                            .shard = shard,
                            .init = parameters::Init::zeros,
                            .sharing = sharing});
  }
}

void Norm::plan_statistics(MemoryPlan& plan, Planned<Statistics>& statistics, int64_t tokens,
                           Scratch scratch) const {
  const auto add = [&](Tensor& slot, const char* what, Buffer buffer) {
    plan.add({statistics, slot}, name_ + what, MemoryKind::activations, DType::f32, {tokens},
             {scratch.tag / buffer, scratch.lifetime});
  };
  add(statistics.rstd, ".rstd", Buffer::rstd);
  if (layer_norm_) add(statistics.mean, ".mean", Buffer::mean);
}

void Norm::plan_scratch(MemoryPlan& plan, Step backward) {
  plan.add(sums_, name_ + ".sums", MemoryKind::scratch, DType::f32,
           {kernels::norm_backward_scratch_elements(hidden_)},
           {ScratchTag(Buffer::sums) / backward, live(backward)});
}

ProducedOperand Norm::forward(const Context& context, const Tensor& x, const Tensor& delta, const Tensor& sum,
                              const Statistics& statistics, const OperandRequest& request) const {
  kernels::NormForward args;
  args.kind = kind_;
  args.eps = eps_;
  args.x = x;
  args.delta = delta;
  if (delta) args.sum = sum;
  args.gamma = gamma();
  if (bias_ != nullptr) args.beta = bias_->value;
  args.mean = statistics.mean;
  args.rstd = statistics.rstd;
  ProducedOperand y = request.quantized_or_values(false);
  args.y = y.high_precision;
  args.y_fp8 = y.fp8;
  kernels::norm_forward(context, args);
  return y;
}

kernels::MegakernelNorm Norm::megakernel_norm() const {
  kernels::MegakernelNorm norm{.kind = kind_, .eps = eps_, .gamma = gamma()};
  if (bias_ != nullptr) norm.beta = bias_->value;
  return norm;
}

ProducedOperand Norm::backward(const Context& context, const Tensor& dy, const Tensor& x,
                               const Statistics& statistics, const Tensor& residual, const Tensor& dx,
                               const OperandRequest& request) const {
  kernels::NormBackward args;
  args.kind = kind_;
  args.dy = dy;
  args.x = x;
  args.gamma = gamma();
  args.mean = statistics.mean;
  args.rstd = statistics.rstd;
  args.dresidual = residual;
  args.dx = dx;
  if (gain_ != nullptr) args.dgamma = gain_->grad;
  if (bias_ != nullptr) args.dbeta = bias_->grad;
  ProducedOperand produced = request.in_addition_to(dx);
  args.dbias = produced.sums.into;
  args.dx_fp8 = produced.fp8;
  args.scratch = sums_;
  kernels::norm_backward(context, args);
  return produced;
}

}  // namespace te::model
