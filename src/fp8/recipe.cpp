#include "fp8/recipe.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "config/recipe_traits.h"
#include "kernels/scale_update/scale_update.h"

namespace te::fp8 {
namespace {

OperandLayouts layouts_of(const config::LinearPrecision& linear, OperandRole role, bool trained) {
  OperandLayouts layouts;
  layouts.rowwise = role == OperandRole::grad_output ? linear.dgrad : linear.fprop;
  layouts.columnwise = role == OperandRole::weight ? linear.dgrad : linear.wgrad && trained;
  layouts.high_precision = !layouts.rowwise || !layouts.columnwise;
  layouts.format = role == OperandRole::input    ? linear.input
                   : role == OperandRole::weight ? linear.weight
                                                 : linear.grad_output;
  return layouts;
}

}  // namespace

Recipe::Recipe(const config::PrecisionConfig& precision, int num_layers, std::unique_ptr<Scaling> scaling)
    : precision_(precision), num_layers_(num_layers) {
  if (scaling != nullptr) scalings_[precision.fp8_recipe] = std::move(scaling);
  if (quantizes() && precision.overrides.empty()) (void)scaling_of(precision.fp8_recipe);
}

// Creates a scaling when the first linear layer uses it; all are created before the plan.
const Scaling& Recipe::scaling_of(config::Fp8Recipe recipe) {
  std::unique_ptr<Scaling>& scaling = scalings_[recipe];
  if (scaling == nullptr) scaling = make_scaling(recipe, precision_);
  return *scaling;
}

Quantizer Recipe::quantizer(const LinearId& id, OperandRole role, GradientGroup group, bool trained,
                            int experts) {
  // A calibrating run records the operands that an FP8 run would quantize.
  const config::LinearPrecision linear =
      config::linear_precision(config::as_quantized(precision_), id, num_layers_);
  OperandLayouts layouts = layouts_of(linear, role, trained);
  OperandInfo info{.linear = id, .role = role, .format = layouts.format, .group = group};
  Quantizer quantizer;
  quantizer.recipe_ = this;
  if (layouts.quantized() && (quantizes() || precision_.fp8_calibrate)) {
    quantizer.scaling_ = &scaling_of(quantizes() ? linear.recipe : config::Fp8Recipe::delayed);
    const Scaling& scaling = *quantizer.scaling_;
    info.has_history = scaling.history_len() > 0;
    if (quantizes() && (!scaling.one_scale() || scaling.source(role) == ScaleSource::corrected))
      info.initial_scale = kUnknownScale;
    quantizer.index_ = table_.add(info);
    for (int e = 1; e < experts; ++e) {
      OperandInfo next = info;
      next.linear.expert += e;
      table_.add(next);
    }
    layouts.scales = quantizer.scaling_->layout(role);
    layouts.values = quantizer.scaling_->emulated() ? config::dtype_of(precision_.dtype) : layouts.format;
    if (dtype_size(layouts.values) > dtype_size(widest_values_)) widest_values_ = layouts.values;
  }
  quantizer.experts_ = experts;
  if (quantizes()) quantizer.layouts_ = layouts;
  if (experts > 0) return quantizer;
  quantizer.observer_index_ = static_cast<int>(observed_.size());
  observed_.push_back(
      {.info = info,
       .recipe = linear.recipe,
       .layouts = quantizer.layouts_,
       .emulation = quantizer.layouts_.quantized() ? quantizer.scaling_->emulation() : nullptr});
  return quantizer;
}

bool Recipe::requantizes() const {
  return quantizes() && any_scaling([](const Scaling& scaling) {
           return scaling.one_scale() &&
                  (scaling.source(OperandRole::input) == ScaleSource::corrected || scaling.power_of_two());
         });
}

int64_t Recipe::history_len() const {
  int64_t length = 0;
  for (const auto& [recipe, scaling] : scalings_) length = std::max(length, scaling->history_len());
  return length;
}

void Recipe::set_amax_groups(parallel::Communicator& tensor, parallel::Communicator& stage) {
  for (const GradientGroup group : kGradientGroups) {
    add_ranks(pass_ranks_, group, tensor);
    add_ranks(stage_ranks_, group, stage);
  }
}

// A current scale of an expert is that of the rows on this rank.
void Recipe::set_expert_amax_group(parallel::Communicator& copies) {
  for (AmaxRanks* const ranks : {&pass_ranks_, &stage_ranks_})
    ranks->at(static_cast<size_t>(GradientGroup::expert)).clear();
  add_ranks(stage_ranks_, GradientGroup::expert, copies);
}

void Recipe::set_high_precision(bool on) {
  TE_CHECK(!on || keeps_high_precision_, "high precision was not planned; call keep_high_precision() first");
  high_precision_ = on;
}

// --- state -------------------------------------------------------------------------------------------------

void Recipe::plan(MemoryPlan& plan) {
  table_.plan(plan, static_cast<int>(history_len()), quantizes() && any_scaling(&Scaling::one_scale));
  int64_t experts = 0;
  for (int row = 0; row < table_.size(); ++row) {
    if (table_.info(row).group != GradientGroup::expert) continue;
    if (expert_rows_.empty() || expert_rows_.back().first + expert_rows_.back().second != row)
      expert_rows_.emplace_back(row, 0);
    ++expert_rows_.back().second;
    ++experts;
  }
  if (experts > 0) plan.add(expert_amax_, "fp8.expert_amax", MemoryKind::fp8_state, DType::f32, {experts, 1});
#ifndef NDEBUG
  if (table_.size() > 0)
    plan.add(compared_, "fp8.compared_scales", MemoryKind::fp8_state, DType::f32, {table_.size(), 1});
#endif
}

void Recipe::reset(const Context& context) {
  table_.reset(context);
  sharded_weights_.bind(context);
}

void Recipe::begin_calibration(const Context& context) {
  calibrating_ = true;
  scales_before_calibration_ = table_.read_scales(context);
}

// Current scaling has written its scales to the table, 1 for zeros.
void Recipe::end_calibration(const Context& context) {
  calibrating_ = false;
  table_.restore_scales(context, scales_before_calibration_);
}

// The ranks of dense operands have other experts, so the rows of experts are kept while the whole column is reduced.
void Recipe::reduce_table(const Context& context, const AmaxRanks& ranks, const Tensor& amax) const {
  const auto copy_experts = [&](bool to_table) {
    int64_t at = 0;
    for (const auto& [row, count] : expert_rows_) {
      const Tensor packed = expert_amax_.slice_rows(at, count), rows = amax.slice_rows(row, count);
      to_table ? context.copy(rows, packed) : context.copy(packed, rows);
      at += count;
    }
  };
  copy_experts(false);
  reduce_amax(context, ranks, GradientGroup::dense, amax);
  if (expert_amax_) reduce_amax(context, ranks, GradientGroup::expert, expert_amax_);
  copy_experts(true);
}

// With a history, the scales of the whole table are updated. That does not affect operands with other scaling, whose
// scales are computed in each quantization. Without a history, the step's amaxes are only logged; those of one scale
// per tensor are already equal on all ranks and are overwritten by each quantization.
void Recipe::update(const Context& context, const int32_t* skip) {
  const int64_t n = table_.size();
  if (n == 0) return;
  const bool history = history_len() > 0;
  const bool groups = any_scaling(std::not_fn(&Scaling::one_scale));
  if (history || groups) reduce_table(context, history ? stage_ranks_ : pass_ranks_, table_.amax);
  context.copy(table_.last_amax, table_.amax);
  if (!history && groups) context.zero(table_.amax);
  if (!history) return;
  kernels::delayed_scale_update(context, {.amax = table_.amax.view({n}),
                                          .history = table_.history,
                                          .position = table_.position,
                                          .scale = table_.scale.view({n}),
                                          .fp8_max = table_.fp8_max.view({n}),
                                          .margin = static_cast<int>(precision_.margin),
                                          .compute = precision_.amax_compute_algo,
                                          .skip = skip});
  check_scales_agree(context);
}

// All ranks have equal scales if each equals the maximum.
void Recipe::check_scales_agree(const Context& context) const {
  if (!compared_) return;
  const auto count = static_cast<size_t>(table_.size());
  std::vector<float> own(count), largest(count);
  context.copy(compared_, table_.scale);
  context.copy_to_host(own.data(), compared_);
  reduce_table(context, stage_ranks_, compared_);
  context.copy_to_host(largest.data(), compared_);
  context.synchronize();
  for (size_t i = 0; i < count; ++i) {
    const OperandInfo& info = table_.info(static_cast<int>(i));
    TE_CHECK(own[i] == largest[i],
             "FP8 scale of {} {} is {} on this rank and {} on another rank of its group", info.linear.name(),
             role_name(info.role), own[i], largest[i]);
  }
}

// --- margin and outlier ------------------------------------------------------------------------------------

int Recipe::outlier_of(int index) const {
  const OperandInfo& info = table_.info(index);
  return info.role == OperandRole::input && info.linear.kind == LinearKind::fc2 ? outlier_log2_ : 0;
}

// One launch computes the delayed scales of all operands with one margin, so the outlier is applied to fp8_max.
void Recipe::set_test_outlier(const Context& context, int log2) {
  outlier_log2_ = log2;
  if (table_.size() == 0) return;
  std::vector<float> limits;
  for (int i = 0; i < table_.size(); ++i)
    limits.push_back(std::ldexp(fp8_max(table_.info(i).format), -outlier_of(i)));
  context.copy_to_device(table_.fp8_max, limits.data());
  context.synchronize();
}

config::PrecisionConfig stateless_precision(config::PrecisionConfig precision) {
  if (config::traits_of(precision.fp8_recipe).history) precision.fp8_recipe = config::Fp8Recipe::tensorwise;
  precision.overrides = config::stateless_overrides(precision.overrides);
  precision.fp8_calibrate = false;
  return precision;
}

}  // namespace te::fp8
