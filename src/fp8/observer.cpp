#include "fp8/observer.h"

#include <utility>

#include "core/error.h"
#include "fp8/scaling.h"
#include "kernels/quantize/quantize.h"
#include "kernels/scale_update/scale_update.h"

namespace te::fp8 {

using config::Fp8Recipe;
using kernels::ScaleLayout;
using kernels::TensorSums;

int Observer::add_operand(ObservedOperand operand) {
  TE_CHECK(first_variant_.empty(), "operand {} registered after the plan", operand.info.linear.name());
  operands_.push_back(std::move(operand));
  return static_cast<int>(operands_.size()) - 1;
}

// With one scale per tensor or per 128 x 128 block, both layouts have the same quantized values.
void Observer::add_variants(Variant variant, bool rowwise, bool columnwise) {
  if (variant.layout != ScaleLayout::rows && variant.layout != ScaleLayout::vectors)
    return variants_.push_back(variant);
  variant.form = "rowwise";
  if (rowwise) variants_.push_back(variant);
  variant.form = "columnwise";
  variant.columnwise = true;
  if (columnwise) variants_.push_back(variant);
}

void Observer::plan(MemoryPlan& plan, const std::vector<std::string>& what_if) {
  for (int i = 0; i < static_cast<int>(operands_.size()); ++i) {
    const auto& [info, own, layouts] = operands_[static_cast<size_t>(i)];
    first_variant_.push_back(variants_.size());
    add_variants({.operand_index = i, .recipe = own, .layout = layouts.scales}, layouts.rowwise,
                 layouts.columnwise);
    for (const std::string& name : what_if) {
      Fp8Recipe recipe{};
      TE_CHECK(config::from_string(name, recipe) && recipe != Fp8Recipe::delayed,
               "not a recipe that can be tried: {}", name);
      if (layouts.quantized() && recipe == own) continue;
      const ScaleLayout layout = make_scaling(recipe, precision_)->layout(info.role);
      add_variants({.operand_index = i, .recipe = recipe, .layout = layout, .what_if = true}, true, true);
    }
  }
  first_variant_.push_back(variants_.size());
  if (variants_.empty()) return;
  plan.add(sums_, "fp8.statistics", MemoryKind::fp8_state, DType::u8,
           {static_cast<int64_t>(variants_.size()), static_cast<int64_t>(sizeof(TensorSums))});
  plan.add(scratch_, "fp8.statistics_parts", MemoryKind::fp8_state, DType::u8,
           {kernels::tensor_stats_scratch_bytes()});
  plan.add(current_amax_, "fp8.statistics_amax", MemoryKind::fp8_state, DType::f32, {1});
  plan.add(scale_, "fp8.statistics_scale", MemoryKind::fp8_state, DType::f32, {1});
}

void Observer::begin(const Context& context) {
  TE_CHECK(!first_variant_.empty(), "the observer has no plan");
  if (sums_) context.zero(sums_);
  active_ = true;
}

void Observer::record(const Context& context, int operand_index, const Tensor& values,
                      const float* scale) const {
  const ObservedOperand& what = operands_[static_cast<size_t>(operand_index)];
  for (size_t i = first_variant_[static_cast<size_t>(operand_index)];
       i < first_variant_[static_cast<size_t>(operand_index) + 1]; ++i) {
    const Variant& variant = variants_[i];
    kernels::TensorStats stats{
        .x = values,
        .layout = variant.layout,
        .format = what.info.format,
        .columnwise = variant.columnwise,
        .power_of_two = precision_.fp8_scale_format == config::Fp8ScaleFormat::power_of_two,
        .margin = static_cast<int>(precision_.margin),
        .scratch = scratch_,
        .into = sums_of(i)};
    if (stats.layout == ScaleLayout::tensor) {
      stats.scale = scale;
      if (variant.what_if) {  // as tensorwise scaling, for this rank's part of the tensor
        kernels::Fp8Output amax;
        amax.amax = current_amax_.as<float>();
        context.zero(current_amax_);
        kernels::quantize(context, {.x = values, .out = amax});
        kernels::current_scale(context, {.amax = current_amax_,
                                         .scale = scale_,
                                         .fp8_max = fp8_max(what.info.format),
                                         .margin = static_cast<int>(precision_.margin)});
        stats.scale = scale_.as<float>();
      }
    }
    kernels::tensor_stats(context, stats);
  }
}

std::vector<CastStatistics> Observer::read(const Context& context) const {
  std::vector<TensorSums> sums(variants_.size());
  if (sums_) context.copy_to_host(sums.data(), sums_);
  context.synchronize();
  std::vector<CastStatistics> result;
  for (size_t i = 0; i < variants_.size(); ++i) {
    const Variant& variant = variants_[i];
    result.push_back({.operand = operands_[static_cast<size_t>(variant.operand_index)].info,
                      .recipe = variant.layout != ScaleLayout::none
                                    ? std::string(config::to_string(variant.recipe))
                                    : "none",
                      .what_if = variant.what_if,
                      .form = variant.form,
                      .sums = sums[i]});
  }
  return result;
}

}  // namespace te::fp8
