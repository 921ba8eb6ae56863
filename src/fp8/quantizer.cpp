#include "fp8/quantizer.h"

#include <algorithm>
#include <cmath>

#include "fp8/recipe.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/moe/quantize_experts.h"
#include "kernels/moe/send_fp8.h"
#include "kernels/quantize/quantize.h"

namespace te::fp8 {

// --- what the recipe says ----------------------------------------------------------------------------------

bool Quantizer::keeps_high_precision() const {
  return layouts_.quantized() && recipe_->keeps_high_precision_;
}

bool Quantizer::in_high_precision() const {
  return layouts_.quantized() && recipe_->high_precision_;
}

bool Quantizer::gathers_quantized(const parallel::TensorParallel& ranks, int64_t tokens) const {
  return layouts_.quantized() && !recipe_->high_precision_ && !layouts_.high_precision &&
         scaling_->gathers_quantized(ranks, tokens);
}

bool Quantizer::observed() const {
  return recipe_ != nullptr && recipe_->observer_ != nullptr;
}

// Producers write either FP8 or high precision.
bool Quantizer::producers_quantize() const {
  return layouts_.transposes() && experts_ == 0 && !recipe_->calibrating_ && !observed() &&
         !recipe_->high_precision_ && !recipe_->single_amax_buffer_;
}

// Calibration passes use current scales, too.
ScaleSource Quantizer::source() const {
  return recipe_->calibrating_ ? ScaleSource::current : scaling_->source(recipe_->table_.info(index_).role);
}

// With a history, which all operands of a table have if one has it, amaxes of current scales enter it like any other,
// and the row of last_amax is scratch.
float* Quantizer::current_amax() const {
  const ScaleTable& table = recipe_->table_;
  return (recipe_->history_len() > 0 ? table.last_amax : table.amax).as<float>() + index_;
}

std::optional<Quantizer::CurrentScaling> Quantizer::current_scaling() const {
  if (!layouts_.rowwise || !layouts_.one_scale() || layouts_.format != DType::e4m3 ||
      source() != ScaleSource::current)
    return {};
  return CurrentScaling{recipe_->margin_of(index_), scaling_->power_of_two()};
}

QuantizeMode Quantizer::mode_of(const Operand& operand, QuantizeMode mode) const {
  if (mode.is_recompute && operand.scale && source() != ScaleSource::given) mode.reuse_scale = true;
  return mode;
}

// --- memory ------------------------------------------------------------------------------------------------

void Quantizer::plan(MemoryPlan& plan, Planned<Operand>& operand, const OperandMemory& memory) const {
  enum class Layout : uint8_t { rowwise, columnwise, rowwise_scales, columnwise_scales };
  if (recipe_ != nullptr)
    recipe_->largest_operand_ = std::max(recipe_->largest_operand_, memory.rows * memory.cols);
  if (!layouts_.quantized()) return;
  const bool rowwise = layouts_.rowwise, columnwise = memory.has_columnwise && layouts_.columnwise;
  const auto values = [&](kernels::Matrix& matrix, const char* suffix, Shape shape, Layout layout,
                          Lifetime lifetime) {
    plan.add({operand, matrix.values}, memory.name + suffix, memory.values, layouts_.values, shape,
             {memory.tag / layout, lifetime});
  };
  const int64_t scales_of_tensors = std::max(experts_, 1);
  // Scales of vectors take a share of the memory that counts, and live as long as their values.
  const bool vectors = layouts_.scales == kernels::ScaleLayout::vectors;
  const auto scales = [&](kernels::Matrix& matrix, const char* suffix, int64_t rows, int64_t cols,
                          Layout layout, Lifetime lifetime) {
    if (layouts_.scales == kernels::ScaleLayout::none) return;
    plan.add(
        {operand, matrix.scales}, memory.name + suffix, memory.scales, kernels::scale_dtype(layouts_.scales),
        layouts_.one_scale() ? Shape{scales_of_tensors} : kernels::scale_shape(layouts_.scales, rows, cols),
        {memory.tag / layout, vectors ? lifetime : Lifetime{}});
  };
  if (rowwise && memory.plans_rowwise)
    values(operand.rowwise, ".rowwise", {memory.rows, memory.cols}, Layout::rowwise, memory.rowwise);
  if (columnwise && memory.plans_columnwise)
    values(operand.columnwise, ".columnwise", {memory.cols, memory.rows}, Layout::columnwise,
           memory.columnwise);
  if (rowwise)
    scales(operand.rowwise, ".scale_inv", memory.rows, memory.cols, Layout::rowwise_scales, memory.rowwise);
  if (columnwise && rowwise && layouts_.one_scale())
    plan.alias({operand, operand.columnwise.scales}, {operand, operand.rowwise.scales});
  else if (columnwise)
    scales(operand.columnwise, ".columnwise.scale_inv", memory.cols, memory.rows, Layout::columnwise_scales,
           memory.columnwise);
  if (layouts_.scales == kernels::ScaleLayout::nvfp4) {
    const auto factor = [&](kernels::Matrix& matrix, const char* suffix) {
      plan.add({operand, matrix.factor}, memory.name + suffix, memory.scales, DType::f32, {1});
    };
    if (rowwise) factor(operand.rowwise, ".factor");
    if (columnwise) factor(operand.columnwise, ".columnwise.factor");
  }
  if (memory.keeps_scale && layouts_.one_scale())
    plan.add({operand, operand.scale}, memory.name + ".scale", memory.scales, DType::f32,
             {scales_of_tensors});
  if (rowwise) operand.rowwise.layout = layouts_.scales;
  if (columnwise) operand.columnwise.layout = layouts_.scales;
}

// --- from the producer to the GEMMs ------------------------------------------------------------------------

OperandRequest Quantizer::request(const Operand& operand, QuantizeMode mode, const ColumnSums& sums) const {
  OperandRequest request{.high_precision = operand.high_precision, .fp8 = {}, .sums = sums};
  if (producers_quantize()) request.fp8 = output_of(operand, mode_of(operand, mode));
  return request;
}

ExpertsRequest Quantizer::experts_request(const Operand& operand, QuantizeMode mode) const {
  if (!reads_tokens() || recipe_->calibrating_ || observed() || in_high_precision()) return {};
  ExpertsRequest request;
  if (layouts_.one_scale())
    request.fp8 = output_of(operand, mode_of(operand, mode));
  else if (!mode.count)  // the statistics need the values
    request.groups = groups_of(operand, mode, true);
  if (!mode.rowwise) request.fp8.rowwise = {}, request.groups.rowwise = {};
  return request ? request : ExpertsRequest{};
}

ReadyOperand Quantizer::complete_quantized(const Operand& operand, const QuantizeMode& mode) {
  ReadyOperand ready;
  if (mode.rowwise) ready.rowwise = operand.rowwise;
  if (mode.columnwise) ready.columnwise = operand.columnwise;
  return ready;
}

ReadyOperand Quantizer::complete(const Context& context, Operand operand, const ProducedOperand& produced,
                                 QuantizeMode mode, const ColumnSums& sums) const {
  const ColumnSums missing = produced.sums.into ? ColumnSums{} : sums;
  ReadyOperand ready{.high_precision = produced.high_precision};
  const bool quantized = layouts_.quantized() && !recipe_->high_precision_;
  if (quantized && mode.rowwise) ready.rowwise = operand.rowwise;
  if (quantized && mode.columnwise) ready.columnwise = operand.columnwise;
  if (produced.fp8.wants_data()) {
    TE_CHECK(!missing.into, "{}: its producer quantized it without computing the column sums",
             recipe_->table_.info(index_).linear.name());
    return ready;
  }
  TE_CHECK(produced.high_precision, "an operand is completed that its producer has not written");
  const bool records = observed() && mode.record_amax && observer_index_ >= 0;
  if (observed()) mode.record_amax = mode.count = false;
  mode = mode_of(operand, mode);
  operand.high_precision = produced.high_precision;
  // With precision.overrides an operand may have only the layout that the pass does not need.
  const bool nothing_left =
      !(mode.rowwise && operand.rowwise) && !(mode.columnwise && operand.columnwise) && !mode.record_amax;
  if (!quantized || nothing_left)
    bypass(context, operand, mode, missing);
  else if (!mode.rowwise && operand.columnwise)
    quantize_layout(context, operand, &Operand::columnwise, mode, missing);
  else
    quantize(context, operand, mode, missing);
  if (records) {
    const float* scale = nullptr;
    if (layouts_.one_scale())
      scale = source() == ScaleSource::corrected ? &recipe_->table_.tensor_state_of(index_)->scale
                                                 : recipe_->table_.scale_of(index_).as<float>();
    recipe_->observer_->record(context, observer_index_, produced.high_precision, scale);
  }
  return ready;
}

kernels::Fp8Output Quantizer::sent_output(const Operand& operand, QuantizeMode mode) const {
  if (observed()) mode.record_amax = mode.count = false;
  return output_of(operand, mode_of(operand, mode));
}

ReadyOperand Quantizer::complete_received(const Context& context, const Operand& operand,
                                          const Tensor& received, QuantizeMode mode) const {
  ReadyOperand ready = complete_quantized(operand, mode);
  kernels::order_received(context, {.x = received,
                                    .source = operand.source,
                                    .offsets = operand.offsets,
                                    .rowwise = ready.rowwise.values,
                                    .columnwise = ready.columnwise.values});
  return ready;
}

void Quantizer::add_rowwise(const Context& context, Operand operand, ReadyOperand& ready) const {
  if (in_high_precision()) return;
  operand.high_precision = ready.high_precision;
  quantize_layout(context, operand, &Operand::rowwise, {.columnwise = false, .reuse_scale = true}, {});
  ready.rowwise = operand.rowwise;
}

void Quantizer::add_columnwise(const Context& context, Operand operand, ReadyOperand& ready,
                               bool from_rowwise) const {
  if (in_high_precision()) return;
  operand.high_precision = ready.high_precision;
  if (from_rowwise && (layouts_.one_scale() || !ready.high_precision))
    kernels::transpose_fp8(context, operand.rowwise.values, operand.columnwise.values);
  else
    quantize_layout(context, operand, &Operand::columnwise, {.reuse_scale = true}, {});
  ready.columnwise = operand.columnwise;
}

int Quantizer::register_sharded() const {
  TE_CHECK(layouts_.transposes() && source() == ScaleSource::current,
           "only an operand with current scaling per tensor can be quantized in shards");
  return recipe_->sharded_weights_.add({.index = index_,
                                        .format = layouts_.format,
                                        .power_of_two = scaling_->power_of_two(),
                                        .margin = recipe_->margin_of(index_),
                                        .group = recipe_->table_.info(index_).group});
}

ReadyOperand Quantizer::complete_gathered(const Context& context, const Operand& weight, int number,
                                          QuantizeMode mode) const {
  TE_CHECK(!observed() && !recipe_->high_precision_,
           "{}: all high-precision values are needed, but this rank has only a shard",
           recipe_->table_.info(index_).linear.name());
  recipe_->sharded_weights_.commit_scale(context, number, output_of(weight, mode));
  const bool columnwise = mode.columnwise && weight.columnwise;
  if (columnwise) kernels::transpose_fp8(context, weight.rowwise.values, weight.columnwise.values);
  return {.high_precision = {},
          .rowwise = weight.rowwise,
          .columnwise = columnwise ? weight.columnwise : kernels::Matrix{}};
}

// --- quantization ------------------------------------------------------------------------------------------

// The FP8 output of a kernel for a tensor with one scale. A current scale is stored in the table's row and is equal on
// all tensor-parallel ranks, which have parts of the tensor.
kernels::Fp8Output Quantizer::output_of(const Operand& operand, QuantizeMode mode) const {
  ScaleTable& table = recipe_->table_;
  kernels::Fp8Output out;
  out.rowwise = operand.rowwise.values;
  if (mode.columnwise) out.columnwise = operand.columnwise.values;
  out.scale = table.scale_of(index_).as<float>();
  out.scale_inv = (operand.rowwise ? operand.rowwise : operand.columnwise).scales.as<float>();
  out.amax = mode.record_amax ? table.amax_of(index_).as<float>() : nullptr;
  out.counters = mode.count ? table.counters_of(index_) : nullptr;
  if (!out.wants_data() || source() == ScaleSource::given) return out;
  if (mode.reuse_scale) {
    if (operand.scale) out.scale = operand.scale.as<float>();
    return out;
  }
  const bool current = source() == ScaleSource::current;
  out.requantize = {.state = table.tensor_state_of(index_),
                    .num_quantizations = table.num_quantizations_of(index_),
                    .margin_factor = std::ldexp(1.0f, -recipe_->margin_of(index_)),
                    .all_reduce_amax = {}};
  if (current) {
    out.requantize.current_scale = table.scale_of(index_).as<float>();
    if (scaling_->power_of_two()) out.requantize.predicted_scales = table.predicted_scales_of(index_);
    out.requantize.current_amax = current_amax();
    if (out.requantize.current_amax == out.amax) out.amax = nullptr;
  }
  out.requantize.used_scale = operand.scale.as<float>();
  const GradientGroup group = table.info(index_).group;
  // A current scale of an expert is that of the rows on this rank, as with data-parallel ranks.
  if (experts_ == 0 && (current || operand.is_shard) &&
      !recipe_->pass_ranks_[static_cast<size_t>(group)].empty())
    out.requantize.all_reduce_amax = [&ranks = recipe_->pass_ranks_, group,
                                      amax = out.requantize.amax()](const Context& context) {
      reduce_amax(context, ranks, group, {amax, DType::f32, {1}});
    };
  return out;
}

// Quantizes operand.high_precision to its layouts and adds its column sums, if requested.
void Quantizer::quantize(const Context& context, const Operand& operand, QuantizeMode mode,
                         const ColumnSums& sums) const {
  if (experts_ > 0) return quantize_experts(context, operand, mode);
  if (layouts_.one_scale()) {
    if (recipe_->single_amax_buffer_ && quantize_small(context, operand, mode)) return;
    return kernels::quantize(context, {.x = operand.high_precision,
                                       .out = output_of(operand, mode),
                                       .dbias = sums.into,
                                       .scratch = sums.scratch});
  }
  scaling_->quantize(
      context, {.groups = {.x = operand.high_precision,
                           .rowwise = operand.rowwise,
                           .columnwise = mode.columnwise ? operand.columnwise : kernels::Matrix{},
                           .power_of_two = scaling_->power_of_two(),
                           .margin = recipe_->margin_of(index_),
                           .amax = mode.record_amax ? recipe_->table_.amax_of(index_).as<float>() : nullptr,
                           .counters = mode.count ? recipe_->table_.counters_of(index_) : nullptr},
                .operand = recipe_->table_.info(index_),
                .seed = mode.seed,
                .sample = mode.sample,
                .all_reduce_amax = amax_reduction()});
  if (sums.into) kernels::bias_gradient(context, operand.high_precision, sums.into, sums.scratch);
}

// The outputs and the rule of an operand of experts with scales of groups.
kernels::QuantizeGroups Quantizer::groups_of(const Operand& operand, const QuantizeMode& mode,
                                             bool row_blocks) const {
  return {.rowwise = operand.rowwise,
          .columnwise = mode.columnwise ? operand.columnwise : kernels::Matrix{},
          .row_blocks = row_blocks,
          .power_of_two = scaling_->power_of_two(),
          .margin = recipe_->margin_of(index_)};
}

// Groups of values that share a scale lie within an expert, because its rows start and end at multiples of the group's
// size (MoeFeedForward), so only the statistics depend on the experts.
void Quantizer::quantize_experts(const Context& context, const Operand& operand, QuantizeMode mode) const {
  const Tensor& x = operand.high_precision;
  if (layouts_.one_scale())
    return kernels::quantize_experts(context, {.x = x,
                                               .offsets = operand.offsets,
                                               .experts = experts_,
                                               .source = operand.source,
                                               .topk = operand.topk,
                                               .out = output_of(operand, mode)});
  kernels::QuantizeGroups groups = groups_of(operand, mode, static_cast<bool>(operand.offsets));
  groups.x = x, groups.source = operand.source, groups.topk = operand.topk;
  scaling_->quantize(context, {.groups = groups, .operand = recipe_->table_.info(index_)});
  if (!mode.count) return;
  kernels::count_quantized_experts(
      context, {.x = x,
                .offsets = operand.offsets,
                .experts = experts_,
                .source = operand.source,
                .topk = operand.topk,
                .rowwise = operand.rowwise.values,
                .columnwise = groups.columnwise.values,
                .amax = mode.record_amax ? recipe_->table_.amax_of(index_).as<float>() : nullptr,
                .counters = recipe_->table_.counters_of(index_)});
}

// Other ranks have parts of the tensor.
std::function<void(const Context&, const Tensor&)> Quantizer::amax_reduction() const {
  const GradientGroup group = recipe_->table_.info(index_).group;
  if (recipe_->pass_ranks_[static_cast<size_t>(group)].empty()) return {};
  return [&ranks = recipe_->pass_ranks_, group](const Context& context, const Tensor& amax) {
    reduce_amax(context, ranks, group, amax);
  };
}

// The other layout may have no valid memory at this time.
void Quantizer::quantize_layout(const Context& context, Operand operand, kernels::Matrix Operand::*layout,
                                QuantizeMode mode, const ColumnSums& sums) const {
  (layout == &Operand::rowwise ? operand.columnwise : operand.rowwise) = {};
  quantize(context, operand, mode, sums);
}

// Returns false if the operand does not meet the conditions.
bool Quantizer::quantize_small(const Context& context, const Operand& operand, QuantizeMode mode) const {
  if (source() != ScaleSource::current || !operand.rowwise || mode.columnwise || mode.record_amax ||
      mode.count)
    return false;
  const bool done =
      kernels::quantize_current_scaling(context, {.x = operand.high_precision,
                                                  .out = operand.rowwise.values,
                                                  .amax = current_amax(),
                                                  .scale = recipe_->table_.scale_of(index_).as<float>(),
                                                  .scale_inv = operand.rowwise.scales.as<float>(),
                                                  .margin = recipe_->margin_of(index_),
                                                  .power_of_two = scaling_->power_of_two()});
  TE_CHECK(done || !context.is_cuda() || operand.high_precision.numel() > kernels::kMaxSmallElements,
           "{}: quantizing {} would alternate amax buffers, which a CUDA graph cannot",
           recipe_->table_.info(index_).linear.name(), operand.high_precision.shape.str());
  return done;
}

// In high precision a history still records the amaxes. The column sums are computed by the same kernel as with the
// recipe `off`, for the same bits.
void Quantizer::bypass(const Context& context, const Operand& operand, QuantizeMode mode,
                       const ColumnSums& sums) const {
  const Tensor& values = operand.high_precision;
  if (mode.record_amax && scaling_ != nullptr && scaling_->history_len() > 0) {
    kernels::Fp8Output out;
    out.amax = recipe_->table_.amax_of(index_).as<float>();
    if (experts_ > 0)
      kernels::quantize_experts(context,
                                {.x = values, .offsets = operand.offsets, .experts = experts_, .out = out});
    else
      kernels::quantize(context, {.x = values, .out = out});
  }
  if (sums.into) kernels::bias_gradient(context, values, sums.into, sums.scratch);
}

}  // namespace te::fp8
