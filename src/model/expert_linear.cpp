#include "model/expert_linear.h"

#include <numeric>
#include <utility>

#include "config/adapter.h"
#include "core/profile.h"
#include "kernels/common/row_blocks.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/permute.h"

namespace te::model {
namespace {

Linear::Spec expert_spec(LinearId id, const LayerConfig& config, const ExpertPartition& experts, int64_t in,
                         double init_std, const parallel::TensorParallel& tensor) {
  const bool shared = id.expert == kSharedExpert;
  const int64_t own = shared ? 1 : experts.own(), all = shared ? 1 : experts.all;
  const std::vector<int64_t> blocks = config::linear_blocks(config.model, id);
  const int64_t out = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  if (!shared) id.expert = static_cast<int>(experts.first());
  const ParameterId weight = id.parameter(ParameterPart::weight);
  Linear::Spec spec{.id = id, .name = module_name(weight.role, weight.layer)};
  spec.adapter = config.adapter;
  spec.adapted = config::adapted_blocks(config.adapter, config.model, id.kind);
  spec.weight = own == all ? parameters::ParameterShard::full({all * out, in})
                           : parameters::ParameterShard::of_rows({all * out, in}, {all * out}, experts.rank,
                                                                 experts.ranks);
  for (int64_t i = 0; i < own; ++i) spec.matrices.insert(spec.matrices.end(), blocks.begin(), blocks.end());
  spec.experts = shared ? 0 : static_cast<int>(own);
  spec.partition = shared ? ExpertPartition{} : experts;
  spec.group = own < all ? GradientGroup::expert : full_weight_group(tensor);
  spec.init_std = static_cast<float>(init_std);
  return spec;
}

Operand of_experts(Operand operand, const ExpertRows& rows) {
  operand.offsets = rows.offsets;
  operand.source = rows.source, operand.topk = rows.topk;
  return operand;
}

ReadyOperand complete(const Context& context, const fp8::Quantizer& quantizer, const Operand& operand,
                      const ExpertRows& rows, const fp8::QuantizeMode& mode) {
  const Operand of_rows = of_experts(operand, rows);
  if (is_fp8(rows.values.dtype)) return quantizer.complete_received(context, of_rows, rows.values, mode);
  if (rows.quantized) return fp8::Quantizer::complete_quantized(of_rows, mode);
  return quantizer.complete(context, of_rows, {.high_precision = rows.values, .fp8 = {}, .sums = {}}, mode);
}

}  // namespace

ExpertLinear::ExpertLinear(const LinearId& id, const LayerConfig& config, const ExpertPartition& experts,
                           int64_t in, double init_std, parameters::ParameterStore& parameters,
                           Recipe& recipe, parallel::TensorParallel& tensor)
    : Linear(expert_spec(id, config, experts, in, init_std, tensor), parameters, recipe, tensor) {}

int64_t ExpertLinear::row_alignment(bool inference) const {
  const fp8::OperandLayouts& layouts = input_quantizer_.layouts();
  if (layouts.scales == kernels::ScaleLayout::vectors) return kernels::kScaleBlock;
  return layouts.columnwise && !inference ? kernels::kRowBlock : kExpertAlignment;
}

void ExpertLinear::plan_inference_input(MemoryPlan& plan, Planned<Operand>& input, int64_t rows) const {
  input_quantizer_.plan(plan, input,
                        {.name = spec_.name + ".input",
                         .rows = rows,
                         .cols = in(),
                         .values = MemoryKind::scratch,
                         .scales = MemoryKind::scratch,
                         .has_columnwise = false});
}

ExpertRows ExpertLinear::rows_of(const Context& context, const fp8::Quantizer& quantizer,
                                 const ExpertRows& tokens, const Tensor& memory) {
  if (quantizer.reads_tokens() && !quantizer.in_high_precision()) return tokens;
  kernels::permute(context,
                   {.x = tokens.values, .source = tokens.source, .topk = tokens.topk, .rows = memory});
  ExpertRows rows = tokens;
  rows.values = memory, rows.source = {}, rows.topk = 1;
  return rows;
}

ReadyOperand ExpertLinear::forward(const Context& context, const Operand& input, const ExpertRows& x,
                                   const Tensor& y, const Pass& pass) {
  ReadyOperand ready = complete(context, input_quantizer_, input, x, input_mode(pass));
  prepare_fprop_weight(context);
  if (grouped()) {
    const ProfileLabel label(spec_.name, "fprop");
    const kernels::Gemm gemm = model::fprop(ready, weight_ready_, 0, x.count());
    kernels::grouped_gemm(context, {.a = gemm.a,
                                    .b = gemm.b,
                                    .offsets = x.offsets,
                                    .out = y,
                                    .trans_b = true,
                                    .fast_accumulation = gemm.fast_accumulation});
  } else {
    fprop(context, ready, y, 0, x.count(), false);
  }
  adapter_fprop(context, ready, y, 0, x.count(), pass, x.of_adapter());
  return ready;
}

ReadyOperand ExpertLinear::complete_input(const Context& context, const Operand& input, const ExpertRows& x,
                                          const Pass& pass) const {
  return complete(context, input_quantizer_, input, x, wgrad_input_mode(pass));
}

void ExpertLinear::backward(const Context& context, const Operand& grad, const ExpertRows& dy,
                            const ReadyOperand& input, const Tensor& dx, const Pass& pass) {
  const ReadyOperand ready = complete(context, grad_quantizer_, grad, dy, pass.quantize_mode());
  prepare_dgrad_weight(context);
  if (grouped()) {
    {
      const ProfileLabel label(spec_.name, "dgrad");
      const kernels::Gemm gemm = model::dgrad(ready, weight_ready_, 0, dy.count());
      // Quantized weights are the columnwise layout [in, experts * out], which grouped_gemm() knows without trans_b.
      kernels::grouped_gemm(context, {.a = gemm.a, .b = gemm.b, .offsets = dy.offsets, .out = dx});
    }
    experts_wgrad(context, ready, input, dy.offsets);
  } else {
    dgrad(context, ready, dx, 0, dy.count());
    wgrad(context, ready, input);
  }
  adapter_dgrad(context, ready, dx, 0, dy.count(), pass, dy.of_adapter());
  adapter_wgrad(context, ready, input, pass, dy.of_adapter());
}

void ExpertLinear::experts_wgrad(const Context& context, const ReadyOperand& grad, const ReadyOperand& input,
                                 const Tensor& offsets) const {
  if (!weight_->trainable) return;
  const ProfileLabel label(spec_.name, "wgrad");
  const kernels::Gemm gemm = model::wgrad(grad, input);
  kernels::grouped_wgrad(context, {.a = gemm.a,
                                   .b = gemm.b,
                                   .offsets = offsets,
                                   .alignment = row_alignment(false),
                                   .out = weight_->grad,
                                   .accumulate = !std::exchange(weight_->grad_stale, false)});
}

}  // namespace te::model
