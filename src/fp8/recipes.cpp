#include "fp8/recipes.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_groups.h"
#include "kernels/scale_update/scale_update.h"

namespace te::fp8 {

// --- delayed -----------------------------------------------------------------------------------------------

// Weights are quantized once per step from memory. They use their current scale, so that no update can overflow it. So
// do calibration passes. Both amaxes enter the history like any other; the row of last_amax is scratch.
Recipe::CastScale DelayedRecipe::cast_scale(int index) const {
  if (calibrating_ || table().info(index).role == OperandRole::weight) return CastScale::current;
  return requantizes() ? CastScale::corrected : CastScale::given;
}

void DelayedRecipe::cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                         const ColumnSums& sums) {
  cast_tensor(context, index, operand, mode, sums);
}

void DelayedRecipe::bypass_quantization(const Context& context, int index, Operand& operand,
                                        QuantizeMode mode, const ColumnSums& sums) {
  if (!mode.record_amax) return Recipe::bypass_quantization(context, index, operand, mode, sums);
  kernels::Fp8Output out;
  out.amax = table().amax_of(index).as<float>();
  kernels::quantize(context, {.x = operand.high_precision, .out = out});
  Recipe::bypass_quantization(context, index, operand, mode,
                              sums);  // the same kernel as with the recipe `off`, for the same bits
}

void DelayedRecipe::update(const Context& context, const int32_t* skip) {
  if (table().size() == 0) return;
  const int64_t n = table().size();
  reduce_amax(context, shared_->stage, table().amax);
  context.copy(table().last_amax, table().amax);
  kernels::delayed_scale_update(context, {.amax = table().amax.view({n}),
                                          .history = table().history,
                                          .position = table().position,
                                          .scale = table().scale.view({n}),
                                          .fp8_max = table().fp8_max.view({n}),
                                          .margin = static_cast<int>(precision_.margin),
                                          .compute = precision_.amax_compute_algo,
                                          .skip = skip});
  check_scales_agree(context);
}

// --- off ---------------------------------------------------------------------------------------------------

void OffRecipe::cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                     const ColumnSums& sums) {
  bypass_quantization(context, index, operand, mode, sums);
}

// --- tensorwise --------------------------------------------------------------------------------------------

// Only the values and their scale outlive the call; the table's row is scratch (and shown in the log).
void TensorwiseRecipe::cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                            const ColumnSums& sums) {
  cast_tensor(context, index, operand, mode, sums);
}

void TensorwiseRecipe::update(const Context& context, const int32_t*) {
  if (table().size() > 0) context.copy(table().last_amax, table().amax);
}

// --- rowwise, blockwise ------------------------------------------------------------------------------------

void GroupRecipe::cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                       const ColumnSums& sums) {
  kernels::quantize_groups(
      context, {.x = operand.high_precision,
                .rowwise = operand.rowwise,
                .columnwise = mode.columnwise ? operand.columnwise : kernels::Matrix{},
                .power_of_two = precision_.fp8_scale_format == config::Fp8ScaleFormat::power_of_two,
                .margin = margin_of(index),
                .amax = mode.record_amax ? table().amax_of(index).as<float>() : nullptr,
                .counters = mode.count ? table().counters_of(index) : nullptr});
  if (sums.into) kernels::bias_gradient(context, operand.high_precision, sums.into, sums.scratch);
}

void GroupRecipe::update(const Context& context, const int32_t*) {
  log_amaxes(context);
}

bool BlockwiseRecipe::gathers_quantized(const parallel::TensorParallel& ranks, int64_t tokens) const {
  const std::vector<parallel::TokenRange> runs = ranks.ranges(tokens);
  return std::all_of(runs.begin(), runs.end(), [](const parallel::TokenRange& run) {
    return run.begin % kernels::kScaleBlock == 0 && run.count % kernels::kScaleBlock == 0;
  });
}

// --- mixed -------------------------------------------------------------------------------------------------

std::unique_ptr<Recipe> make_plain_recipe(config::Fp8Recipe kind, const config::PrecisionConfig& precision,
                                          int num_layers) {
  switch (kind) {
    case config::Fp8Recipe::tensorwise:
      return std::make_unique<TensorwiseRecipe>(precision, num_layers);
    case config::Fp8Recipe::rowwise:
      return std::make_unique<RowwiseRecipe>(precision, num_layers);
    case config::Fp8Recipe::blockwise:
      return std::make_unique<BlockwiseRecipe>(precision, num_layers);
    default:
      return std::make_unique<DelayedRecipe>(precision, num_layers);
  }
}

// Creates a recipe when the first linear layer uses it; all are created before the plan.
Recipe& MixedRecipe::recipe_of(config::Fp8Recipe kind) {
  std::unique_ptr<Recipe>& recipe = recipes_[kind];
  if (recipe == nullptr) {
    recipe = make_plain_recipe(kind, precision_, num_layers_);
    recipe->shared_ = shared_;
  }
  return *recipe;
}

bool MixedRecipe::needs_calibration() const {
  return recipes_.contains(config::Fp8Recipe::delayed);
}

int MixedRecipe::history_len() const {
  return needs_calibration() ? static_cast<int>(precision_.amax_history_len) : 0;
}

void MixedRecipe::begin_calibration() {
  for (auto& [kind, recipe] : recipes_) recipe->begin_calibration();
}

void MixedRecipe::end_calibration() {
  for (auto& [kind, recipe] : recipes_) recipe->end_calibration();
}

// The delayed recipe updates the whole table. That does not affect other recipes, which compute their scales in each
// quantization.
void MixedRecipe::update(const Context& context, const int32_t* skip) {
  if (needs_calibration()) return recipes_.at(config::Fp8Recipe::delayed)->update(context, skip);
  log_amaxes(context);
}

}  // namespace te::fp8
