#include "train/quantization_observer.h"

#include <algorithm>

#include "config/recipe_traits.h"
#include "core/error.h"
#include "fp8/amax_ranks.h"
#include "fp8/scaling.h"
#include "kernels/quantize/quantize.h"
#include "kernels/scale_update/scale_update.h"

namespace te::train {

using config::Fp8Recipe;
using fp8::OperandInfo;
using fp8::Scaling;
using kernels::ScaleLayout;
using kernels::TensorSums;

// With one scale per tensor or per 128 x 128 block, both layouts have the same quantized values.
void QuantizationObserver::add_variants(Variant variant, bool rowwise, bool columnwise) {
  if (variant.layout != ScaleLayout::rows && variant.layout != ScaleLayout::vectors &&
      variant.emulation == nullptr)
    return variants_.push_back(variant);
  variant.layouts = "rowwise";
  if (rowwise) variants_.push_back(variant);
  variant.layouts = "columnwise";
  variant.columnwise = true;
  if (columnwise) variants_.push_back(variant);
}

void QuantizationObserver::add_what_ifs(int operand_index, Fp8Recipe recipe) {
  const OperandInfo& info = operand_at(operand_index).info;
  const Scaling& scaling = *what_ifs_.emplace_back(fp8::make_scaling(recipe, precision_));
  add_variants(
      {.operand_index = operand_index,
       .recipe = recipe,
       .format = config::traits_of(recipe).format.value_or(is_fp8(info.format) ? info.format : DType::e4m3),
       .layout = (scaling.emulation() != nullptr ? *scaling.emulation() : scaling).layout(info.role),
       .emulation = scaling.emulation(),
       .what_if = true},
      true, true);
}

void QuantizationObserver::plan(MemoryPlan& plan, const std::vector<std::string>& what_if) {
  for (int i = 0; i < static_cast<int>(recipe_.observed_operands().size()); ++i) {
    const fp8::ObservedOperand& operand = operand_at(i);
    const fp8::OperandLayouts& layouts = operand.layouts;
    first_variant_.push_back(variants_.size());
    add_variants({.operand_index = i,
                  .recipe = operand.recipe,
                  .format = operand.info.format,
                  .layout = operand.emulation != nullptr ? operand.emulation->layout(operand.info.role)
                                                         : layouts.scales,
                  .emulation = operand.emulation},
                 layouts.rowwise, layouts.columnwise);
    for (const std::string& name : what_if) {
      Fp8Recipe recipe{};
      TE_CHECK(config::from_string(name, recipe) && !config::traits_of(recipe).history,
               "not a recipe that can be tried: {}", name);
      if (!layouts.quantized() || recipe != operand.recipe) add_what_ifs(i, recipe);
    }
  }
  first_variant_.push_back(variants_.size());
  if (variants_.empty()) return;
  const auto add = [&](PlannedTensor& slot, const char* name, DType dtype, Shape shape) {
    plan.add(slot, name, MemoryKind::fp8_state, dtype, shape);
  };
  add(sums_, "fp8.statistics", DType::u8,
      {static_cast<int64_t>(variants_.size()), static_cast<int64_t>(sizeof(TensorSums))});
  add(scratch_, "fp8.statistics_parts", DType::u8, {kernels::tensor_stats_scratch_bytes()});
  add(current_amax_, "fp8.statistics_amax", DType::f32, {1});
  add(scale_, "fp8.statistics_scale", DType::f32, {1});
  if (std::ranges::none_of(variants_, [](const Variant& variant) { return variant.emulation != nullptr; }))
    return;
  add(dequantized_, "fp8.statistics_values", config::dtype_of(precision_.dtype), {recipe_.largest_operand()});
  add(counters_, "fp8.statistics_counters", DType::u8, {static_cast<int64_t>(sizeof(kernels::Fp8Counters))});
}

void QuantizationObserver::begin(const Context& context) {
  TE_CHECK(!first_variant_.empty(), "the observer has no plan");
  if (sums_) context.zero(sums_);
  recipe_.set_observer(this);
}

// The scale of tensorwise scaling. Other ranks may have parts of the tensor.
void QuantizationObserver::find_scale(const Context& context, const Tensor& values,
                                      const Variant& variant) const {
  kernels::Fp8Output amax;
  amax.amax = current_amax_.as<float>();
  context.zero(current_amax_);
  kernels::quantize(context, {.x = values, .out = amax});
  fp8::reduce_amax(context, recipe_.pass_ranks(), operand_at(variant.operand_index).info.group,
                   current_amax_);
  kernels::current_scale(context, {.amax = current_amax_,
                                   .scale = scale_,
                                   .fp8_max = fp8_max(variant.format),
                                   .margin = static_cast<int>(precision_.margin),
                                   .power_of_two = power_of_two()});
}

// Quantizes the values again, in one layout.
void QuantizationObserver::emulate(const Context& context, const Variant& variant,
                                   kernels::TensorStats& stats) const {
  const int64_t rows = stats.x.rows(), cols = stats.x.cols();
  TE_CHECK(stats.x.numel() <= dequantized_.numel(), "statistics of {} values, planned for {}",
           stats.x.numel(), dequantized_.numel());
  context.zero(counters_);
  stats.counters = counters_.as<kernels::Fp8Counters>();
  stats.dequantized = {dequantized_.data, stats.x.dtype,
                       variant.columnwise ? Shape{cols, rows} : Shape{rows, cols}};
  OperandInfo info = operand_at(variant.operand_index).info;
  info.format = variant.format;
  fp8::GroupedOperand operand{
      .groups = {.x = stats.x, .margin = stats.margin, .counters = counters_.as<kernels::Fp8Counters>()},
      .operand = info,
      .restore = true,
      .all_reduce_amax = [this, &info](const Context& to, const Tensor& amax) {
        fp8::reduce_amax(to, recipe_.pass_ranks(), info.group, amax);
      }};
  kernels::Matrix& layout = variant.columnwise ? operand.groups.columnwise : operand.groups.rowwise;
  layout = stats.dequantized;
  layout.layout = variant.layout;
  if (variant.layout != ScaleLayout::none) layout.scales = scale_;
  variant.emulation->quantize(context, operand);
}

void QuantizationObserver::record(const Context& context, int operand_index, const Tensor& values,
                                  const float* scale) const {
  for (size_t i = first_variant_[static_cast<size_t>(operand_index)];
       i < first_variant_[static_cast<size_t>(operand_index) + 1]; ++i) {
    const Variant& variant = variants_[i];
    kernels::TensorStats stats{.x = values,
                               .layout = variant.emulation != nullptr ? ScaleLayout::none : variant.layout,
                               .format = variant.format,
                               .columnwise = variant.columnwise,
                               .power_of_two = power_of_two(),
                               .margin = static_cast<int>(precision_.margin),
                               .scratch = scratch_,
                               .into = sums_of(i)};
    if (stats.layout == ScaleLayout::tensor) {
      stats.scale = scale;
      if (variant.what_if) {
        find_scale(context, values, variant);
        stats.scale = scale_.as<float>();
      }
    }
    if (variant.emulation != nullptr) emulate(context, variant, stats);
    kernels::tensor_stats(context, stats);
  }
}

std::vector<QuantizationStatistics> QuantizationObserver::read(const Context& context) const {
  std::vector<TensorSums> sums(variants_.size());
  if (sums_) context.copy_to_host(sums.data(), sums_);
  context.synchronize();
  std::vector<QuantizationStatistics> result;
  for (size_t i = 0; i < variants_.size(); ++i) {
    const Variant& variant = variants_[i];
    OperandInfo info = operand_at(variant.operand_index).info;
    info.format = variant.format;
    if (sums[i].amax == 0.0f) sums[i].lowest_scale = sums[i].highest_scale = 0.0f;  // zeros need no scale
    result.push_back({.operand = info,
                      .recipe = variant.quantized() ? std::string(config::to_string(variant.recipe)) : "none",
                      .what_if = variant.what_if,
                      .layouts = variant.layouts,
                      .sums = sums[i]});
  }
  return result;
}

}  // namespace te::train
