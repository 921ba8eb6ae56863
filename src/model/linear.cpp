#include "model/linear.h"

#include <utility>

#include "core/profile.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"

namespace te::model {

using fp8::OperandRole;

Linear::Linear(Spec spec, parameters::Parameter* weight, Recipe& recipe, parallel::TensorParallel& tensor)
    : spec_(std::move(spec)), tensor_(tensor), weight_(weight) {
  const auto quantizer = [&](OperandRole role) {
    return recipe.quantizer(spec_.id, role, weight_->group, weight_->trainable, spec_.experts);
  };
  input_quantizer_ = quantizer(OperandRole::input);
  weight_quantizer_ = quantizer(OperandRole::weight);
  grad_quantizer_ = quantizer(OperandRole::grad_output);
  weight_->linear = true;
}

Linear::Linear(const Spec& spec, parameters::ParameterStore& parameters, Recipe& recipe,
               parallel::TensorParallel& tensor)
    : Linear(spec,
             parameters.add({.id = spec.id.parameter(ParameterPart::weight),
                             .shard = spec.weight,
                             .std = spec.init_std,
                             .decay = true,
                             .matrices = spec.matrices,
                             .group = spec.group}),
             recipe, tensor) {
  const fp8::OperandLayouts& layouts = weight_quantizer_.layouts();
  weight_->quantized = spec_.experts == 0 && layouts.transposes();
  weight_->quantized_once = !weight_->trainable && layouts.quantized() && !layouts.high_precision &&
                            !layouts.emulated() && kernels::scale_dtype(layouts.scales) == DType::f32;
  weight_->two_codes = layouts.scales == kernels::ScaleLayout::rows;
  if (spec_.bias)
    bias_ = parameters.add({.id = spec_.id.parameter(ParameterPart::bias),
                            .shard = spec_.bias_shard,
                            .init = parameters::Init::zeros,
                            .sharing = spec_.bias_sharing});
  if (spec_.adapted.empty()) return;
  std::vector<int64_t> blocks = spec_.matrices;
  blocks.resize(blocks.size() / static_cast<size_t>(std::max(spec_.experts, 1)));
  adapter_ = std::make_unique<LoraAdapter>(LoraAdapter::Spec{.adapter = spec_.adapter,
                                                             .id = spec_.id,
                                                             .blocks = std::move(blocks),
                                                             .targets = spec_.adapted,
                                                             .in = spec_.weight.global[1],
                                                             .ranks = spec_.ranks,
                                                             .row_parallel = spec_.row_parallel,
                                                             .experts = spec_.partition,
                                                             .group = spec_.group},
                                           parameters, tensor);
}

// --- storage -----------------------------------------------------------------------------------------------

// Scales are always kept. A weight is quantized after every change, between layers. If no layout is kept, it is
// quantized to scratch. That is safe because the only scratch that is alive between layers is their output, whose
// lifetime includes all forward steps, so it never overlaps this layout.
void Linear::plan_weights(MemoryPlan& plan, const LinearUse& use, bool training) {
  using config::Fp8KeptWeights;
  early_weight_ = !training;
  const bool gathered = weight_->has_bytes;
  if (gathered && !weight_->dropped) weight_->sharded_weight_index = weight_quantizer_.register_sharded();
  keeps_rowwise_ = !training || gathered || weight_->dropped || use.weights != Fp8KeptWeights::none;
  keeps_columnwise_ =
      !training || use.weights == Fp8KeptWeights::both || (weight_->dropped && weight_->two_codes);
  recomputes_input_ = use.recompute != config::Recompute::none;
  const Lifetime forward = live(use.forward), backward = live(use.backward);
  if (adapter_)
    adapter_->plan(plan, use.dims, use.row_count(), use.tag / Buffer::adapter, forward | backward, training);
  if (!weight_->has_value && (!gathered || weight_->dropped))
    plan.add(
        {weight_operand_, weight_operand_.high_precision}, spec_.name + ".weight.high_precision",
        MemoryKind::scratch, DType::bf16, weight_->shape,
        {use.tag / Buffer::weight / Buffer::high_precision, weight_->dropped ? forward | backward : forward});
  if (weight_->dropped) {
    weight_->written = &weight_operand_.high_precision;
    weight_->rowwise = &weight_operand_.rowwise;
    weight_->columnwise = &weight_operand_.columnwise;
    weight_->keeps_columnwise = keeps_columnwise_;
    weight_->quantize_written = [this](const Context& context) { quantize_written(context); };
  }
  weight_quantizer_.plan(plan, weight_operand_,
                         {.name = spec_.name + ".weight",
                          .rows = weight_->shape[0],
                          .cols = in(),
                          .values = MemoryKind::fp8_weights,
                          .scales = MemoryKind::fp8_state,
                          .tag = use.tag / Buffer::weight,
                          .rowwise = keeps_rowwise_ ? Lifetime{}
                                     : use.repeats  ? forward | backward
                                                    : forward,
                          .columnwise = keeps_columnwise_                     ? Lifetime{}
                                        : weight_quantizer_.layouts().rowwise ? backward
                                                                              : forward | backward,
                          .has_columnwise = training || !weight_quantizer_.layouts().rowwise,
                          .plans_rowwise = !gathered,
                          .plans_columnwise = weight_->columnwise_at == 0});
}

Lifetime LinearUse::input_life() const {
  const Lifetime once = live(input, forward);
  return recompute == config::Recompute::selective || repeats ? once | live(backward) : once;
}

Lifetime LinearUse::saved_life() const {
  if (recompute == config::Recompute::selective) return input_life();
  return saved(recompute, live(input, backward));
}

// Quantized: fprop reads the rowwise layout; wgrad reads the columnwise layout in the backward pass, or high precision.
// A producer that quantizes needs no high_precision, but calibration does.
void Linear::plan_operand(MemoryPlan& plan, Planned<Operand>& input, const LinearUse& use,
                          bool high_precision_exists) const {
  const std::string name = spec_.name + ".input";
  if (!high_precision_exists) {
    const bool quantized_wgrad =
        input_quantizer_.layouts().columnwise && !input_quantizer_.keeps_high_precision();
    plan.add({input, input.high_precision}, name, MemoryKind::activations, use.dims.dtype,
             {use.row_count(), in()},
             {use.tag / Buffer::input / Buffer::high_precision,
              quantized_wgrad || !keeps_input() ? use.input_life() : use.saved_life()});
  }
  input_quantizer_.plan(plan, input,
                        {.name = name,
                         .rows = use.row_count(),
                         .cols = in(),
                         .tag = use.tag / Buffer::input,
                         .rowwise = use.input_life(),
                         .columnwise = use.saved_life(),
                         .keeps_scale = use.recompute == config::Recompute::selective});
}

void Linear::plan_grad_operand(MemoryPlan& plan, Planned<Operand>& grad, const LinearUse& use, bool deferred,
                               bool high_precision) const {
  const std::string name = spec_.name + ".grad_output";
  const Lifetime wgrad = deferred ? Lifetime{} : use.grad;
  const bool quantized_wgrad =
      grad_quantizer_.layouts().columnwise && !grad_quantizer_.keeps_high_precision();
  if (high_precision || (deferred && !quantized_wgrad)) {
    plan.add({grad, grad.high_precision}, name, MemoryKind::activations, use.dims.dtype,
             {use.row_count(), out()},
             {use.tag / Buffer::grad_output / Buffer::high_precision, quantized_wgrad ? use.grad : wgrad});
  }
  grad_quantizer_.plan(plan, grad,
                       {.name = name,
                        .rows = use.row_count(),
                        .cols = out(),
                        .tag = use.tag / Buffer::grad_output,
                        .rowwise = use.grad,
                        .columnwise = wgrad});
}

void Linear::plan_column_sums(MemoryPlan& plan, const LinearUse& use, Lifetime sums) {
  if (bias_ == nullptr || !bias_->trainable) return;
  plan.add(column_sums_, spec_.name + ".column_sums", MemoryKind::scratch, DType::f32,
           {kernels::quantize_scratch_elements(use.dims.tokens, out())},
           {use.tag / Buffer::column_sums, sums});
}

fp8::QuantizeMode Linear::input_mode(const Pass& pass) const {
  fp8::QuantizeMode mode = pass.quantize_mode();
  if (recomputes_input_ && pass.kind == PassKind::train && input_quantizer_.layouts().rowwise)
    mode.columnwise = false;
  return mode;
}

kernels::Matrix Linear::input_layout(const Tensor& values, const Tensor& scales, int64_t rows) const {
  const fp8::OperandLayouts& layouts = input_quantizer_.layouts();
  if (!layouts.rowwise) return {};
  const Tensor rowwise{values.data, layouts.values, {rows, in()}};
  if (layouts.scales == kernels::ScaleLayout::none) return rowwise;
  return {
      rowwise,
      {scales.data, kernels::scale_dtype(layouts.scales), kernels::scale_shape(layouts.scales, rows, in())},
      layouts.scales};
}

// --- GEMMs -------------------------------------------------------------------------------------------------

kernels::Gemm fprop(const ReadyOperand& input, const ReadyOperand& weight, int64_t first, int64_t count) {
  if (!input.rowwise)
    return {.a = input.high_precision.slice_rows(first, count), .b = weight.high_precision, .trans_b = true};
  return {.a = input.rowwise.slice_rows(first, count),
          .b = weight.rowwise,
          .trans_b = true,
          .fast_accumulation = input.rowwise.layout == kernels::ScaleLayout::tensor ||
                               input.rowwise.layout == kernels::ScaleLayout::rows};
}

// The GEMM contracts over W's rows, so in FP8 it reads W's columnwise layout.
kernels::Gemm dgrad(const ReadyOperand& grad, const ReadyOperand& weight, int64_t first, int64_t count) {
  if (!grad.rowwise) return {.a = grad.high_precision.slice_rows(first, count), .b = weight.high_precision};
  return {.a = grad.rowwise.slice_rows(first, count), .b = weight.columnwise, .trans_b = true};
}

kernels::Gemm wgrad(const ReadyOperand& grad, const ReadyOperand& input) {
  if (!grad.columnwise) return {.a = grad.high_precision, .b = input.high_precision, .trans_a = true};
  return {.a = grad.columnwise, .b = input.columnwise, .trans_b = true};
}

kernels::MegakernelGemm Linear::megakernel_gemm() const {
  kernels::MegakernelGemm gemm;
  if (bias_ != nullptr) gemm.bias = bias_->value;
  if (!quantized()) {
    gemm.weight = weight_->value;
  } else if (const auto scale = input_quantizer_.current_scaling();
             scale && weight_quantizer_.layouts().rowwise) {
    gemm.weight = weight_operand_.rowwise;
    gemm.margin = scale->margin;
    gemm.power_of_two = scale->power_of_two;
  }
  return gemm;
}

void Linear::fprop(const Context& context, const ReadyOperand& input, const Tensor& y, int64_t first,
                   int64_t count, bool with_bias, const EpilogueActivation& activation) const {
  const ProfileLabel label(spec_.name, "fprop");
  kernels::Gemm gemm = model::fprop(input, weight_ready_, first, count);
  gemm.out = y.slice_rows(first, count);
  gemm.early_b = early_weight_;
  if (with_bias && bias_ != nullptr) gemm.bias = bias_->value;
  if (!activation.forward()) return kernels::gemm(context, gemm);
  const ProducedOperand& result = activation.y;
  TE_CHECK(!result.fp8 || count == y.rows(),
           "{}: a quantized activation in the epilogue needs all rows at once, got {} of {}", spec_.name,
           count, y.rows());
  kernels::gemm_activation_forward(
      context, {.kind = activation.kind,
                .a = gemm.a,
                .b = gemm.b,
                .bias = gemm.bias,
                .out = gemm.out,
                .y = result.high_precision ? result.high_precision.slice_rows(first, count) : Tensor{},
                .y_fp8 = result.fp8,
                .clamp = activation.clamp,
                .fast_accumulation = gemm.fast_accumulation,
                .early_b = early_weight_});
}

void Linear::dgrad(const Context& context, const ReadyOperand& grad, const Tensor& dx, int64_t first,
                   int64_t count, const EpilogueActivation& activation) const {
  const ProfileLabel label(spec_.name, "dgrad");
  kernels::Gemm gemm = model::dgrad(grad, weight_ready_, first, count);
  gemm.out = dx.slice_rows(first, count);
  if (!activation.backward()) return kernels::gemm(context, gemm);
  TE_CHECK(!runs_quantized(), "{}: quantized GEMMs cannot fuse the gradient of the activation", spec_.name);
  kernels::gemm_activation_backward(
      context,
      {.kind = activation.kind,
       .a = gemm.a.values,
       .b = gemm.b.values,
       .x = activation.x.slice_rows(first, count),
       .dx = activation.dx.high_precision.slice_rows(first, count),
       .dbias = activation.dx.sums.into,
       .scratch = activation.dx.sums.scratch,
       .d_y = gemm.out,
       .y = activation.y.high_precision ? activation.y.high_precision.slice_rows(first, count) : Tensor{},
       .clamp = activation.clamp});
}

void Linear::wgrad(const Context& context, const ReadyOperand& grad, const ReadyOperand& input) const {
  if (!weight_->trainable) return;
  const ProfileLabel label(spec_.name, "wgrad");
  kernels::Gemm gemm = model::wgrad(grad, input);
  gemm.out = weight_->grad;
  gemm.accumulate = !std::exchange(weight_->grad_stale, false);
  kernels::gemm(context, gemm);
}

// --- the weight --------------------------------------------------------------------------------------------

void Linear::quantize_weight(const Context& context, bool count) {
  if (adapter_) adapter_->prepare(context);
  // Without a kept layout, and where passes in both precisions alternate, the operand changes between passes.
  const bool keeps = keeps_rowwise_ && !weight_quantizer_.keeps_high_precision();
  if (keeps && !parameters::ParameterStore::needs_quantization(*weight_)) return;
  if (weight_->quantize_written)
    return quantize_written(context);  // only a trace, in which nothing is written
  weight_->quantized_version = weight_->value_version;
  const ProfileLabel label("weights");
  if (weight_->has_bytes) {
    set_gathered_values();
    weight_ready_ = weight_quantizer_.complete_gathered(
        context, weight_operand_, weight_->sharded_weight_index,
        {.record_amax = weight_->trainable, .columnwise = keeps_columnwise_});
    return;
  }
  if (!weight_->has_value) kernels::cast(context, weight_->main, weight_operand_.high_precision);
  const Tensor& values = weight_->has_value ? weight_->value : weight_operand_.high_precision;
  const bool columnwise = keeps_columnwise_ || !weight_quantizer_.layouts().rowwise;
  weight_ready_ = weight_quantizer_.complete(
      context, weight_operand_, {.high_precision = values},
      {.record_amax = weight_->trainable, .count = count, .columnwise = columnwise});
}

void Linear::set_gathered_values() {
  const auto set = [&](kernels::Matrix& matrix, const Tensor& bytes) {
    if (bytes) matrix.values = {bytes.data, weight_quantizer_.layouts().format, bytes.shape};
  };
  set(weight_operand_.rowwise, weight_->bytes);
  set(weight_operand_.columnwise, weight_->columnwise_bytes);
}

// The value's memory is scratch, which passes use for other data. Codes that are gathered are written to their slot.
// Scales of blocks are kept for the columnwise layout, too, which passes transpose from the rowwise one.
void Linear::quantize_written(const Context& context) {
  set_gathered_values();
  const bool columnwise =
      keeps_columnwise_ || weight_quantizer_.layouts().scales == kernels::ScaleLayout::blocks;
  weight_ready_ =
      weight_quantizer_.complete(context, weight_operand_, {.high_precision = weight_operand_.high_precision},
                                 {.columnwise = columnwise});
  weight_ready_.high_precision = {};
  weight_->quantized_version = weight_->value_version;
}

void Linear::prepare_fprop_weight(const Context& context) {
  if (keeps_rowwise_ || !weight_operand_.rowwise) return;
  const ProfileLabel label("weights");
  weight_quantizer_.add_rowwise(context, weight_operand_, weight_ready_);
}

void Linear::prepare_dgrad_weight(const Context& context) {
  if (keeps_columnwise_ || !weight_operand_.columnwise) return;
  const ProfileLabel label("weights");
  weight_quantizer_.add_columnwise(context, weight_operand_, weight_ready_,
                                   keeps_rowwise_ && weight_operand_.rowwise);
}

}  // namespace te::model
