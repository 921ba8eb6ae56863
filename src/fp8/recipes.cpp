#include "fp8/recipes.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "kernels/scale_update/scale_update.h"

namespace te::fp8 {

// --- delayed -----------------------------------------------------------------------------------------------

void DelayedRecipe::cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                         const ColumnSums& sums) {
  kernels::quantize(
      context,
      {.x = operand.hp, .out = output_of(index, operand, mode), .dbias = sums.into, .scratch = sums.scratch});
}

void DelayedRecipe::update(const Context& context, const int32_t* skip) {
  if (table_.size() == 0) return;
  const int64_t n = table_.size();
  reduce_amax(context, stage_, table_.amax);
  context.copy(table_.last_amax, table_.amax);
  kernels::delayed_scale_update(context, {.amax = table_.amax.view({n}),
                                          .history = table_.history,
                                          .position = table_.position,
                                          .scale = table_.scale.view({n}),
                                          .fp8_max = table_.fp8_max.view({n}),
                                          .margin = static_cast<int>(precision_.margin),
                                          .compute = precision_.amax_compute_algo == config::AmaxAlgo::max
                                                         ? kernels::AmaxCompute::max
                                                         : kernels::AmaxCompute::most_recent,
                                          .skip = skip});
  check_scales_agree(context);
}

// --- off ---------------------------------------------------------------------------------------------------

void OffRecipe::cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                     const ColumnSums& sums) {
  kernels::Fp8Output out;
  out.amax = mode.record_amax ? table_.amax_of(index).as<float>() : nullptr;
  if (out) {
    kernels::quantize(context, {.x = operand.hp, .out = out, .dbias = sums.into, .scratch = sums.scratch});
  } else if (sums.into) {
    kernels::bias_gradient(context, operand.hp, sums.into, sums.scratch);
  }
}

// --- tensorwise --------------------------------------------------------------------------------------------

void TensorwiseRecipe::cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                            const ColumnSums& sums) {
  // Nothing here outlives the call but the values and their scale_inv: the table's row is working space (and
  // what the log shows).
  const Tensor amax = table_.amax_of(index), scale = table_.scale_of(index);
  context.zero(amax);
  kernels::Fp8Output amax_only;
  amax_only.amax = amax.as<float>();
  kernels::quantize(context, {.x = operand.hp, .out = amax_only});
  reduce_amax(context, tensor_, amax);
  kernels::current_scale(context, {.amax = amax,
                                   .scale = scale,
                                   .fp8_max = fp8_max(table_.info(index).format),
                                   .margin = static_cast<int>(precision_.margin)});
  mode.record_amax = false;
  kernels::quantize(
      context,
      {.x = operand.hp, .out = output_of(index, operand, mode), .dbias = sums.into, .scratch = sums.scratch});
}

void TensorwiseRecipe::update(const Context& context, const int32_t*) {
  if (table_.size() > 0) context.copy(table_.last_amax, table_.amax);
}

}  // namespace te::fp8
