#include "model/linear.h"

#include <utility>

#include "core/profile.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"

namespace te::model {

using fp8::Operand;
using fp8::OperandRole;

Linear::Linear(Spec spec, parameters::Parameter* weight, fp8::Recipe& recipe,
               parallel::TensorParallel& tensor)
    : spec_(std::move(spec)), tensor_(tensor), weight_(weight) {
  input_quantizer_ = recipe.quantizer(spec_.name, spec_.layer, OperandRole::input);
  weight_quantizer_ = recipe.quantizer(spec_.name, spec_.layer, OperandRole::weight);
  grad_quantizer_ = recipe.quantizer(spec_.name, spec_.layer, OperandRole::grad_output);
  weight_->product = true;
}

Linear::Linear(const Spec& spec, parameters::ParameterStore& parameters, fp8::Recipe& recipe,
               parallel::TensorParallel& tensor)
    : Linear(spec,
             parameters.add(
                 {.name = spec.name + ".weight", .shard = spec.weight, .std = spec.init_std, .decay = true}),
             recipe, tensor) {
  if (!spec_.bias) return;
  bias_ = parameters.add({.name = spec_.name + ".bias",
                          .shard = spec_.bias_shard,
                          .init = parameters::Init::zeros,
                          .sharing = spec_.bias_sharing});
}

// --- storage -----------------------------------------------------------------------------------------------

void Linear::plan_weights(MemoryPlan& plan) {
  if (!weight_quantizer_.enabled()) return;
  const DType format = weight_quantizer_.format();
  fp8::QuantizedTensor& q = weight_operand_.q;
  const std::string name = spec_.name + ".weight";
  plan.add(q.rowwise, name + ".rowwise", MemoryKind::fp8_weights, format, {out(), in()});
  plan.add(q.columnwise, name + ".columnwise", MemoryKind::fp8_weights, format, {in(), out()});
  plan.add(q.scale_inv, name + ".scale_inv", MemoryKind::fp8_state, DType::f32, {1});
}

void Linear::plan_operand(MemoryPlan& plan, Operand& input, const Dimensions& dims, Scratch& scratch,
                          bool saved, bool hp_exists) const {
  const int64_t tokens = dims.tokens;
  const std::string name = spec_.name + ".input";
  const auto keep = [&](Tensor& slot, const char* suffix, DType dtype, Shape shape) {
    plan.add(slot, name + suffix, MemoryKind::activations, dtype, shape);
  };
  if (!input_quantizer_.enabled()) {
    if (hp_exists) return;
    if (saved) return keep(input.hp, "", dims.dtype, {tokens, in()});
    return plan.alias(input.hp, scratch.input_hp, dims.dtype, {tokens, in()});
  }
  // FP8: fprop reads rowwise at once, so it is scratch; wgrad reads the transposed copy in the backward pass.
  const DType format = input_quantizer_.format();
  if (!hp_exists && !input_quantizer_.fused()) {
    plan.alias(input.hp, scratch.input_hp, dims.dtype, {tokens, in()});
  }
  plan.alias(input.q.rowwise, scratch.input_rowwise, format, {tokens, in()});
  if (saved) {
    keep(input.q.columnwise, ".columnwise", format, {in(), tokens});
  } else {
    plan.alias(input.q.columnwise, scratch.input_columnwise, format, {in(), tokens});
  }
  keep(input.q.scale_inv, ".scale_inv", DType::f32, {1});
}

void Linear::plan_grad_operand(MemoryPlan& plan, Operand& grad, const Dimensions& dims, Scratch& scratch,
                               bool deferred) const {
  if (!grad_quantizer_.enabled()) return;
  const DType format = grad_quantizer_.format();
  const std::string name = spec_.name + ".grad_output";
  plan.alias(grad.q.rowwise, scratch.grad_rowwise, format, {dims.tokens, out()});
  if (deferred) {
    plan.add(grad.q.columnwise, name + ".columnwise", MemoryKind::activations, format, {out(), dims.tokens});
    plan.add(grad.q.scale_inv, name + ".scale_inv", MemoryKind::activations, DType::f32, {1});
  } else {
    plan.alias(grad.q.columnwise, scratch.grad_columnwise, format, {out(), dims.tokens});
    plan.alias(grad.q.scale_inv, scratch.grad_scale_inv, DType::f32, {1});
  }
}

// --- products ----------------------------------------------------------------------------------------------

void Linear::fprop(const Context& context, const Operand& input, const Tensor& y, int64_t first,
                   int64_t count, bool with_bias, const ActivationOutput& activation) const {
  const ProfileLabel label(spec_.name, "fprop");
  TE_CHECK(!activation || !fp8(), "{}: FP8 products have no activation", spec_.name);
  const Tensor bias = with_bias && bias_ != nullptr ? bias_->value : Tensor{};
  if (activation) {
    return kernels::gemm_activation_forward(context, {.kind = activation.kind,
                                                      .a = input.hp.slice_rows(first, count),
                                                      .b = weight_->value,
                                                      .bias = bias,
                                                      .out = y.slice_rows(first, count),
                                                      .y = activation.out.slice_rows(first, count)});
  }
  kernels::Gemm product{
      .b = weight_->value, .out = y.slice_rows(first, count), .trans_b = true, .bias = bias};
  if (input_quantizer_.enabled()) {
    product.a = input.q.rowwise.slice_rows(first, count);
    product.b = weight_operand_.q.rowwise;
    product.a_scale_inv = input.q.scale_inv.as<float>();
    product.b_scale_inv = weight_operand_.q.scale_inv.as<float>();
    product.fast_accumulation = true;
  } else {
    product.a = input.hp.slice_rows(first, count);
  }
  kernels::gemm(context, product);
}

// In FP8 the contraction runs over `out`, so W enters transposed.
void Linear::dgrad(const Context& context, const Operand& grad, const Tensor& dx, int64_t first,
                   int64_t count, const ActivationGradient& activation) const {
  const ProfileLabel label(spec_.name, "dgrad");
  TE_CHECK(!activation || !fp8(), "{}: FP8 products have no activation", spec_.name);
  const Tensor rows = dx.slice_rows(first, count);
  if (activation) {
    return kernels::gemm_activation_backward(
        context, {.kind = activation.kind,
                  .a = grad.hp.slice_rows(first, count),
                  .b = weight_->value,
                  .x = activation.x.slice_rows(first, count),
                  .dx = activation.dx.slice_rows(first, count),
                  .dbias = activation.dbias,
                  .scratch = activation.scratch,
                  .d_y = rows,
                  .y = activation.y ? activation.y.slice_rows(first, count) : Tensor{}});
  }
  if (!grad_quantizer_.enabled()) {
    return kernels::gemm(context, {.a = grad.hp.slice_rows(first, count), .b = weight_->value, .out = rows});
  }
  const fp8::QuantizedTensor& w = weight_operand_.q;
  kernels::Gemm product{
      .a = grad.q.rowwise.slice_rows(first, count), .b = w.columnwise, .out = rows, .trans_b = true};
  product.a_scale_inv = grad.q.scale_inv.as<float>();
  product.b_scale_inv = w.scale_inv.as<float>();
  kernels::gemm(context, product);
}

void Linear::wgrad(const Context& context, const Operand& grad, const Operand& input) const {
  const ProfileLabel label(spec_.name, "wgrad");
  kernels::Gemm product{.a = grad.hp, .b = input.hp, .out = weight_->grad, .trans_a = true};
  if (grad_quantizer_.enabled()) {
    product = {.a = grad.q.columnwise, .b = input.q.columnwise, .out = weight_->grad, .trans_b = true};
    product.a_scale_inv = grad.q.scale_inv.as<float>();
    product.b_scale_inv = input.q.scale_inv.as<float>();
  }
  product.accumulate = !std::exchange(weight_->grad_stale, false);
  kernels::gemm(context, product);
}

void Linear::quantize_weight(const Context& context, bool count) {
  const ProfileLabel label("weights");
  weight_operand_.hp = weight_->value;
  weight_operand_.quantized = false;
  weight_quantizer_.complete(context, weight_operand_, {.record_amax = true, .count = count});
}

}  // namespace te::model
