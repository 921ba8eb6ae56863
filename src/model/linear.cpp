#include "model/linear.h"

#include <utility>

#include "kernels/gemm/gemm.h"

namespace te::model {

using fp8::Operand;
using fp8::OperandRole;

Linear::Linear(Spec spec, ParameterStore& parameters, fp8::Recipe& recipe) : spec_(std::move(spec)) {
  weight_ = parameters.add({.name = spec_.name + ".weight",
                            .shard = ParameterShard::whole({spec_.out, spec_.in}),
                            .std = spec_.init_std,
                            .decay = true});
  if (spec_.bias) {
    bias_ = parameters.add(
        {.name = spec_.name + ".bias", .shard = ParameterShard::whole({spec_.out}), .init = Init::zeros});
  }
  input_quantizer_ = recipe.quantizer(spec_.name, spec_.layer, OperandRole::input);
  weight_quantizer_ = recipe.quantizer(spec_.name, spec_.layer, OperandRole::weight);
  grad_quantizer_ = recipe.quantizer(spec_.name, spec_.layer, OperandRole::grad_output);
}

// --- storage -----------------------------------------------------------------------------------------------

void Linear::plan_weights(MemoryPlan& plan) {
  if (!weight_quantizer_.enabled()) return;
  const DType format = weight_quantizer_.format();
  fp8::QuantizedTensor& q = weight_operand_.q;
  const std::string name = spec_.name + ".weight";
  plan.add(q.rowwise, name + ".rowwise", MemoryKind::fp8_weights, format, {spec_.out, spec_.in});
  plan.add(q.columnwise, name + ".columnwise", MemoryKind::fp8_weights, format, {spec_.in, spec_.out});
  plan.add(q.scale_inv, name + ".scale_inv", MemoryKind::fp8_state, DType::f32, {1});
}

void Linear::plan_input(MemoryPlan& plan, Operand& input, const Dimensions& dims, Scratch& scratch,
                        bool saved, bool hp_exists) const {
  const int64_t tokens = dims.tokens;
  const std::string name = spec_.name + ".input";
  const auto keep = [&](Tensor& slot, const char* suffix, DType dtype, Shape shape) {
    plan.add(slot, name + suffix, MemoryKind::activations, dtype, shape);
  };
  if (!input_quantizer_.enabled()) {
    if (hp_exists) return;
    if (saved) return keep(input.hp, "", dims.dtype, {tokens, spec_.in});
    return plan.alias(input.hp, scratch.input_hp, dims.dtype, {tokens, spec_.in});
  }
  // FP8: fprop reads rowwise at once, so it is scratch; wgrad reads the transposed copy in the backward pass.
  const DType format = input_quantizer_.format();
  if (!hp_exists && !input_quantizer_.fused()) {
    plan.alias(input.hp, scratch.input_hp, dims.dtype, {tokens, spec_.in});
  }
  plan.alias(input.q.rowwise, scratch.input_rowwise, format, {tokens, spec_.in});
  if (saved) {
    keep(input.q.columnwise, ".columnwise", format, {spec_.in, tokens});
  } else {
    plan.alias(input.q.columnwise, scratch.input_columnwise, format, {spec_.in, tokens});
  }
  keep(input.q.scale_inv, ".scale_inv", DType::f32, {1});
}

// --- forward -----------------------------------------------------------------------------------------------

OperandTarget Linear::input_target(Operand& input, const Pass& pass) const {
  fp8::QuantizedTensor storage = input.q;
  if (pass.evaluating()) storage.columnwise = {};  // no wgrad will follow
  input.quantized = input_quantizer_.fused();
  return {input.hp, input_quantizer_.producer_output(storage, pass.quantize_mode())};
}

void Linear::complete_input(const Context& context, Operand& input, const Pass& pass) const {
  input_quantizer_.complete(context, input, pass.quantize_mode());
}

void Linear::forward(const Context& context, Operand& input, const Tensor& y, const Pass& pass,
                     const Scratch&) {
  complete_input(context, input, pass);
  kernels::Gemm product{.b = weight_->value, .out = y, .trans_b = true};
  product.a = input.hp;
  if (bias_ != nullptr) product.bias = bias_->value;
  if (input_quantizer_.enabled()) {
    product.a = input.q.rowwise;
    product.b = weight_operand_.q.rowwise;
    product.a_scale_inv = input.q.scale_inv.as<float>();
    product.b_scale_inv = weight_operand_.q.scale_inv.as<float>();
    product.fast_accumulation = true;
  }
  kernels::gemm(context, product);
}

// --- backward ----------------------------------------------------------------------------------------------

OperandTarget Linear::grad_target(Operand& grad, const Tensor& hp, const Scratch& scratch,
                                  const Pass& pass) const {
  grad = {};
  const int64_t tokens = hp.rows();
  if (grad_quantizer_.enabled()) {
    const DType format = grad_quantizer_.format();
    grad.q.rowwise = {scratch.grad_rowwise.data, format, {tokens, spec_.out}};
    grad.q.columnwise = {scratch.grad_columnwise.data, format, {spec_.out, tokens}};
    grad.q.scale_inv = scratch.grad_scale_inv;
  }
  grad.quantized = grad_quantizer_.fused();
  if (!grad.quantized) grad.hp = hp;
  return {grad.hp, grad_quantizer_.producer_output(grad.q, pass.quantize_mode())};
}

void Linear::backward(const Context& context, const Tensor& dy, Operand& input, const Tensor& dx,
                      const Pass& pass, const Scratch& scratch) {
  Operand grad;
  grad_target(grad, dy, scratch, pass);
  grad.hp = dy;
  grad.quantized = false;
  backward(context, grad, input, dx, pass, scratch);
}

void Linear::backward(const Context& context, Operand& grad, Operand& input, const Tensor& dx,
                      const Pass& pass, const Scratch& scratch) {
  // 1. dy as the products need it. A producer that wrote FP8 has also added the bias gradient.
  if (!grad.quantized) {
    grad_quantizer_.complete(context, grad, pass.quantize_mode(), bias_ != nullptr ? bias_->grad : Tensor{},
                             scratch.column_sums);
  }
  const bool fp8 = grad_quantizer_.enabled();
  const fp8::QuantizedTensor &dy = grad.q, &x = input.q, &w = weight_operand_.q;
  // 2. dgrad: dx = dy W. In FP8 the contraction runs over `out`, so W enters transposed.
  kernels::Gemm dgrad{.a = grad.hp, .b = weight_->value, .out = dx};
  if (fp8) {
    dgrad = {.a = dy.rowwise, .b = w.columnwise, .out = dx, .trans_b = true};
    dgrad.a_scale_inv = dy.scale_inv.as<float>();
    dgrad.b_scale_inv = w.scale_inv.as<float>();
  }
  kernels::gemm(context, dgrad);
  // 3. wgrad: dW += dy^T x, straight into the FP32 main gradient.
  kernels::Gemm wgrad{.a = grad.hp, .b = input.hp, .out = weight_->grad, .trans_a = true, .accumulate = true};
  if (fp8) {
    wgrad = {
        .a = dy.columnwise, .b = x.columnwise, .out = weight_->grad, .trans_b = true, .accumulate = true};
    wgrad.a_scale_inv = dy.scale_inv.as<float>();
    wgrad.b_scale_inv = x.scale_inv.as<float>();
  }
  kernels::gemm(context, wgrad);
}

void Linear::quantize_weight(const Context& context, bool count) {
  weight_operand_.hp = weight_->value;
  weight_operand_.quantized = false;
  weight_quantizer_.complete(context, weight_operand_, {.record_amax = true, .count = count});
}

}  // namespace te::model
