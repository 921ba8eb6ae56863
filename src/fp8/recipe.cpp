#include "fp8/recipe.h"

#include <cmath>
#include <utility>
#include <vector>

#include "fp8/recipes.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"

namespace te::fp8 {

bool Quantizer::enabled() const {
  return index_ >= 0 && recipe_->quantizes();
}

kernels::ScaleLayout Quantizer::scale_layout() const {
  return recipe_->scale_layout(recipe_->table().info(index_).role);
}

bool Quantizer::transposes() const {
  return enabled() && !layouts_.high_precision && scale_layout() == kernels::ScaleLayout::tensor;
}

DType Quantizer::format() const {
  return recipe_->table().info(index_).format;
}

// Producers write either FP8 or high precision.
bool Quantizer::fused() const {
  const Recipe::Shared* const shared = recipe_ != nullptr ? recipe_->shared_.get() : nullptr;
  return enabled() && !layouts_.high_precision && recipe_->fused() && !recipe_->calibrating_ &&
         !shared->observer.active() && !shared->high_precision && !shared->single_amax_buffer;
}

bool Quantizer::keeps_high_precision() const {
  return enabled() && recipe_->shared_->keeps_high_precision;
}

bool Quantizer::in_high_precision() const {
  return enabled() && recipe_->shared_->high_precision;
}

bool Quantizer::gathers_quantized(const parallel::TensorParallel& ranks, int64_t tokens) const {
  return enabled() && !recipe_->shared_->high_precision && !layouts_.high_precision &&
         recipe_->gathers_quantized(ranks, tokens);
}

std::optional<Quantizer::CurrentScaling> Quantizer::current_scaling() const {
  if (!rowwise() || format() != DType::e4m3 || recipe_->cast_scale(index_) != Recipe::CastScale::current)
    return {};
  if (scale_layout() != kernels::ScaleLayout::tensor) return {};
  return CurrentScaling{recipe_->margin_of(index_), recipe_->has_power_of_two_scales()};
}

kernels::Matrix Quantizer::rowwise_in(const Tensor& values, const Tensor& scales, int64_t rows,
                                      int64_t cols) const {
  if (!rowwise()) return {};
  const kernels::ScaleLayout layout = scale_layout();
  return {{values.data, format(), {rows, cols}},
          {scales.data, DType::f32, kernels::scale_shape(layout, rows, cols)},
          layout};
}

void Quantizer::plan(MemoryPlan& plan, Operand& operand, const OperandMemory& memory) const {
  if (!enabled()) return;
  if (memory.has_rowwise && rowwise())
    plan.add(operand.rowwise.values, memory.name + ".rowwise", memory.values, format(),
             {memory.rows, memory.cols}, memory.rowwise);
  if (memory.has_columnwise && columnwise())
    plan.add(operand.columnwise.values, memory.name + ".columnwise", memory.values, format(),
             {memory.cols, memory.rows}, memory.columnwise);
  recipe_->plan_scales(plan, index_, layouts_, operand, memory);
}

Target Quantizer::target(Operand& operand, QuantizeMode mode, const ColumnSums& sums) const {
  Target target = target_of_shard(operand, sums);
  if (fused()) target.fp8_ = recipe_->output_of(index_, operand, mode_of(operand, mode));
  return target;
}

QuantizeMode Quantizer::mode_of(const Operand& operand, QuantizeMode mode) const {
  if (recipe_ != nullptr && mode.is_recompute && operand.scale &&
      recipe_->cast_scale(index_) != Recipe::CastScale::given)
    mode.reuse_scale = true;
  return mode;
}

Target Quantizer::target_of_shard(Operand& operand, const ColumnSums& sums) {
  operand.produced_ = {};
  operand.ready_ = false;
  Target target(operand.high_precision);
  target.operand_ = &operand;
  target.sums_ = sums;
  return target;
}

void Quantizer::complete(const Context& context, Operand& operand, QuantizeMode mode,
                         const ColumnSums& sums) const {
  const Operand::Produced done = std::exchange(operand.produced_, {});
  operand.ready_ = true;
  operand.use_high_precision_ = enabled() && recipe_->shared_->high_precision;
  const ColumnSums missing = done.sums ? ColumnSums{} : sums;
  if (done.cast) {
    TE_CHECK(!missing.into, "{}: its producer quantized it without computing the column sums",
             recipe_->table().info(index_).linear.name());
    return;
  }
  TE_CHECK(done.values, "operand [{}] is completed, but no producer of this pass has written it",
           operand.high_precision.shape.str());
  const bool watching = recipe_ != nullptr && recipe_->shared_->observer.active(),
             first_pass = mode.record_amax;
  if (watching) mode.record_amax = mode.count = false;
  mode = mode_of(operand, mode);
  if (operand.use_high_precision_) {
    recipe_->bypass_quantization(context, index_, operand, mode, missing);
  } else if (index_ >= 0) {
    if (!mode.rowwise && operand.columnwise)
      quantize_layout(context, operand, &Operand::columnwise, mode, missing);
    else
      recipe_->cast(context, index_, operand, mode, missing);
  } else if (missing.into) {
    kernels::bias_gradient(context, operand.high_precision, missing.into, missing.scratch);
  }
  if (watching && first_pass)
    recipe_->shared_->observer.record(context, observer_index_, operand,
                                      enabled() ? recipe_->last_scale(index_) : nullptr);
}

// The other layout may have no valid memory at this time.
void Quantizer::quantize_layout(const Context& context, const Operand& operand,
                                kernels::Matrix Operand::*form, QuantizeMode mode,
                                const ColumnSums& sums) const {
  Operand part = operand;
  part.rowwise = part.columnwise = {};
  part.*form = operand.*form;
  recipe_->cast(context, index_, part, mode, sums);
}

// Passes in high precision read no quantized layout.
void Quantizer::recompute_rowwise(const Context& context, Operand& operand) const {
  if (operand.use_high_precision_) return;
  quantize_layout(context, operand, &Operand::rowwise, {.columnwise = false, .reuse_scale = true}, {});
}

void Quantizer::recompute_columnwise(const Context& context, Operand& operand, bool from_rowwise) const {
  if (operand.use_high_precision_) return;
  if (from_rowwise && operand.rowwise.layout == kernels::ScaleLayout::tensor)
    return kernels::transpose_fp8(context, operand.rowwise.values, operand.columnwise.values);
  quantize_layout(context, operand, &Operand::columnwise, {.reuse_scale = true}, {});
}

int Quantizer::register_sharded() const {
  TE_CHECK(transposes() && recipe_->cast_scale(index_) == Recipe::CastScale::current,
           "only an operand with current scaling per tensor can be quantized in shards");
  return recipe_->shared_->sharded_weights.add({.index = index_,
                                                .format = format(),
                                                .power_of_two = recipe_->has_power_of_two_scales(),
                                                .margin = recipe_->margin_of(index_)});
}

void Quantizer::complete_gathered(const Context& context, Operand& weight, int number,
                                  QuantizeMode mode) const {
  TE_CHECK(!recipe_->shared_->observer.active() && !recipe_->shared_->high_precision,
           "{}: all high-precision values are needed, but this rank has only a shard",
           recipe_->table().info(index_).linear.name());
  weight.produced_ = {};
  weight.ready_ = true;
  weight.use_high_precision_ = false;
  recipe_->shared_->sharded_weights.commit_scale(context, number, recipe_->output_of(index_, weight, mode));
  if (mode.columnwise && weight.columnwise)
    kernels::transpose_fp8(context, weight.rowwise.values, weight.columnwise.values);
}

void Quantizer::plan_shard(MemoryPlan& plan, ShardMemory& memory, const std::string& name,
                           const parallel::TensorParallel& ranks, int64_t tokens, int64_t cols,
                           Lifetime lifetime) const {
  if (!gathers_quantized(ranks, tokens)) return;
  const bool grouped = scale_layout() == kernels::ScaleLayout::vectors;
  memory.shape(ranks, format(), tokens, cols, grouped);
  if (!grouped || !keeps_high_precision()) memory.plan(plan, name, lifetime);
}

Operand Quantizer::shard_of(const Operand& full, const Tensor& high_precision,
                            const parallel::TensorParallel& ranks, ShardMemory& memory) const {
  Operand shard;
  shard.high_precision = high_precision;
  shard.is_shard = true;
  shard.produced_ = full.produced_;
  shard.produced_.values = true;
  if (!gathers_quantized(ranks, full.rows())) return shard;
  if (scale_layout() == kernels::ScaleLayout::vectors) {
    if (keeps_high_precision()) memory.place_in(full.high_precision);
    shard.rowwise = memory.rowwise_of(ranks.rank());
    shard.columnwise = memory.columnwise_of(ranks.rank());
  } else {
    shard.rowwise = {memory.rowwise, full.rowwise.scales, full.rowwise.layout};
  }
  if (const Tensor own = ranks.shard_view(full.rowwise.values)) shard.rowwise.values = own;
  return shard;
}

void Quantizer::gather(const Context& context, parallel::TensorParallel& ranks, const ShardMemory& memory,
                       Operand& shard, Operand& full, QuantizeMode mode,
                       const parallel::TensorParallel::Work& work, const ColumnSums& sums) const {
  const bool casts = enabled() && !recipe_->shared_->high_precision;
  if (casts && !gathers_quantized(ranks, full.rows())) {
    // Gather high-precision rows, then quantize all of them.
    if (sums.into && !shard.produced_.sums)
      kernels::bias_gradient(context, shard.high_precision, sums.into, sums.scratch);
    ranks.gather(context, shard.high_precision, full.high_precision);
    full.mark_high_precision_written();
    complete(context, full, mode);
    if (work) work(0, full.high_precision.rows());
    return;
  }
  // 1. Quantize the shard before gathering FP8 bytes. A scale per tensor is that of all shards.
  const bool grouped = casts && scale_layout() == kernels::ScaleLayout::vectors;
  if (!grouped) mode.rowwise = true;  // the columnwise layout is its transpose
  complete(context, shard, mode, sums);
  full.produced_ = {};
  full.ready_ = true;
  full.use_high_precision_ = shard.use_high_precision_;
  if (!casts) return ranks.gather(context, shard.high_precision, full.high_precision, work);
  if (grouped) return gather_groups(context, ranks, memory, shard.rowwise.values, full, mode, work);
  ranks.gather(context, shard.rowwise.values, full.rowwise.values, work);
  // 2. Transpose the gathered rows.
  if (mode.columnwise) kernels::transpose_fp8(context, full.rowwise.values, full.columnwise.values);
}

namespace {

OperandLayouts forms_of(const config::LinearPrecision& linear, OperandRole role) {
  const bool of_rows = role == OperandRole::grad_output ? linear.dgrad : linear.fprop,
             of_columns = role == OperandRole::weight ? linear.dgrad : linear.wgrad;
  return {.rowwise = of_rows, .columnwise = of_columns, .high_precision = !of_rows || !of_columns};
}

DType format_of(const config::LinearPrecision& linear, OperandRole role) {
  switch (role) {
    case OperandRole::input:
      return linear.input;
    case OperandRole::weight:
      return linear.weight;
    default:
      return linear.grad_output;
  }
}

}  // namespace

Quantizer Recipe::quantizer(const LinearId& id, OperandRole role) {
  // A calibrating run records the operands that an FP8 run would quantize.
  const config::LinearPrecision linear =
      config::linear_precision(config::as_quantized(precision_), id, num_layers_);
  const OperandLayouts layouts = forms_of(linear, role);
  const OperandInfo info{id, role, format_of(linear, role)};
  const bool none = !layouts.rowwise && !layouts.columnwise;
  const int observer_index = shared_->observer.add_operand({.info = info,
                                                            .quantized = quantizes() && !none,
                                                            .recipe = linear.recipe,
                                                            .rowwise = layouts.rowwise,
                                                            .columnwise = layouts.columnwise});
  if (none || (!quantizes() && !precision_.fp8_calibrate)) return {this, -1, {}, observer_index};
  return {&recipe_of(linear.recipe), table().add(info), layouts, observer_index};
}

void Recipe::set_amax_groups(parallel::Communicator& tensor, parallel::Communicator& stage) {
  shared_->tensor = tensor.size() > 1 ? &tensor : nullptr;
  shared_->stage = stage.size() > 1 ? &stage : nullptr;
}

// Non-negative floats, infinity and NaN are ordered like their bits as integers. A maximum of floats would drop NaN.
void Recipe::reduce_amax(const Context& context, parallel::Communicator* group, const Tensor& amax) {
  if (group != nullptr)
    group->all_reduce(context, {amax.data, DType::i32, amax.shape}, parallel::ReduceOp::max);
}

void Recipe::log_amaxes(const Context& context) {
  if (table().size() == 0) return;
  reduce_amax(context, shared_->tensor, table().amax);
  context.copy(table().last_amax, table().amax);
  context.zero(table().amax);
}

void Recipe::plan(MemoryPlan& plan) {
  table().plan(plan, history_len(), has_cast_states());
#ifndef NDEBUG
  if (shared_->stage != nullptr && table().size() > 0)
    plan.add(compared_, "fp8.compared_scales", MemoryKind::fp8_state, DType::f32, {table().size()});
#endif
}

// All ranks have equal scales if each equals the maximum.
void Recipe::check_scales_agree(const Context& context) const {
  if (!compared_) return;
  const auto count = static_cast<size_t>(table().size());
  std::vector<float> own(count), largest(count);
  context.copy(compared_, table().scale.view(compared_.shape));
  context.copy_to_host(own.data(), compared_);
  shared_->stage->all_reduce(context, compared_, parallel::ReduceOp::max);
  context.copy_to_host(largest.data(), compared_);
  context.synchronize();
  for (size_t i = 0; i < count; ++i) {
    TE_CHECK(own[i] == largest[i], "FP8 scale of {} {} is {} on this rank and {} on another rank of {}",
             table().info(static_cast<int>(i)).linear.name(),
             role_name(table().info(static_cast<int>(i)).role), own[i], largest[i], shared_->stage->name());
  }
}

void Recipe::update(const Context&, const int32_t*) {}

void Recipe::set_high_precision(bool on) {
  TE_CHECK(!on || shared_->keeps_high_precision,
           "high precision was not planned; call keep_high_precision() first");
  shared_->high_precision = on;
}

void Recipe::bypass_quantization(const Context& context, int, Operand& operand, QuantizeMode,
                                 const ColumnSums& sums) {
  if (sums.into) kernels::bias_gradient(context, operand.high_precision, sums.into, sums.scratch);
}

bool Recipe::has_test_outlier(int index) const {
  const OperandInfo& info = table().info(index);
  return info.role == OperandRole::input && info.linear.kind == LinearKind::fc2;
}

int Recipe::margin_of(int index) const {
  return static_cast<int>(precision_.margin) + (has_test_outlier(index) ? shared_->outlier_log2 : 0);
}

// One launch computes the delayed scales of all operands with one margin, so the outlier is applied to fp8_max.
void Recipe::set_test_outlier(const Context& context, int log2) {
  shared_->outlier_log2 = log2;
  if (table().size() == 0) return;
  std::vector<float> limits;
  for (int i = 0; i < table().size(); ++i)
    limits.push_back(std::ldexp(fp8_max(table().info(i).format), has_test_outlier(i) ? -log2 : 0));
  context.copy_to_device(table().fp8_max, limits.data());
  context.synchronize();
}

void Recipe::plan_scales(MemoryPlan& plan, int index, OperandLayouts layouts, Operand& operand,
                         const OperandMemory& memory) const {
  const kernels::ScaleLayout layout = scale_layout(table().info(index).role);
  const bool columnwise = memory.has_columnwise && layouts.columnwise;
  const auto add = [&](kernels::Matrix& form, const char* suffix, int64_t rows, int64_t cols) {
    plan.add(form.scales, memory.name + suffix, memory.scales, DType::f32,
             kernels::scale_shape(layout, rows, cols));
  };
  if (layouts.rowwise) add(operand.rowwise, ".scale_inv", memory.rows, memory.cols);
  if (columnwise && layouts.rowwise && layout == kernels::ScaleLayout::tensor)
    plan.alias(operand.columnwise.scales, operand.rowwise.scales);
  else if (columnwise)
    add(operand.columnwise, ".columnwise.scale_inv", memory.cols, memory.rows);
  if (memory.keeps_scale && has_cast_states() && layout == kernels::ScaleLayout::tensor)
    plan.add(operand.scale, memory.name + ".scale", memory.scales, DType::f32, {1});
  if (layouts.rowwise) operand.rowwise.layout = layout;
  if (columnwise) operand.columnwise.layout = layout;
}

kernels::Fp8Output Recipe::output_of(int index, const Operand& operand, QuantizeMode mode) const {
  kernels::Fp8Output out;
  out.rowwise = operand.rowwise.values;
  if (mode.columnwise) out.columnwise = operand.columnwise.values;
  out.scale = table().scale_of(index).as<float>();
  out.scale_inv = (operand.rowwise ? operand.rowwise : operand.columnwise).scales.as<float>();
  out.amax = mode.record_amax ? table().amax_of(index).as<float>() : nullptr;
  out.counters = mode.count ? table().counters_of(index) : nullptr;
  const CastScale scale = cast_scale(index);
  if (!out.wants_data() || scale == CastScale::given) return out;
  if (mode.reuse_scale) {
    if (operand.scale) out.scale = operand.scale.as<float>();
    return out;
  }
  const bool own = scale == CastScale::current;
  kernels::Fp8CastState* const state = table().cast_state_of(index);
  unsigned* const num_casts = shared_->table.num_casts_of(index);
  out.requantize = {.state = state,
                    .num_casts = num_casts,
                    .margin_factor = std::ldexp(1.0f, -margin_of(index)),
                    .all_reduce_amax = {}};
  if (own) {
    out.requantize.current_scale = table().scale_of(index).as<float>();
    if (has_power_of_two_scales()) out.requantize.predicted_scales = table().predicted_scales_of(index);
    out.requantize.current_amax = current_amax_of(index).as<float>();
    if (out.requantize.current_amax == out.amax) out.amax = nullptr;
  }
  out.requantize.used_scale = operand.scale.as<float>();
  parallel::Communicator* const ranks = own || operand.is_shard ? shared_->tensor : nullptr;
  if (ranks != nullptr)
    out.requantize.all_reduce_amax = [ranks, amax = out.requantize.amax()](const Context& context) {
      reduce_amax(context, ranks, {amax, DType::f32, {1}});
    };
  return out;
}

void Recipe::cast_tensor(const Context& context, int index, Operand& operand, QuantizeMode mode,
                         const ColumnSums& sums) {
  if (shared_->single_amax_buffer && cast_small(context, index, operand, mode)) return;
  kernels::quantize(context, {.x = operand.high_precision,
                              .out = output_of(index, operand, mode),
                              .dbias = sums.into,
                              .scratch = sums.scratch});
}

// Returns false if the operand does not meet the conditions.
bool Recipe::cast_small(const Context& context, int index, Operand& operand, QuantizeMode mode) {
  if (cast_scale(index) != CastScale::current || !operand.rowwise || mode.columnwise || mode.record_amax ||
      mode.count)
    return false;
  const bool done =
      kernels::quantize_current_scaling(context, {.x = operand.high_precision,
                                                  .out = operand.rowwise.values,
                                                  .amax = current_amax_of(index).as<float>(),
                                                  .scale = table().scale_of(index).as<float>(),
                                                  .scale_inv = operand.rowwise.scales.as<float>(),
                                                  .margin = margin_of(index),
                                                  .power_of_two = has_power_of_two_scales()});
  TE_CHECK(done || !context.is_cuda() || operand.high_precision.numel() > kernels::kMaxSmallElements,
           "{}: quantizing {} would alternate amax buffers, which a CUDA graph cannot",
           table().info(index).linear.name(), operand.high_precision.shape.str());
  return done;
}

std::unique_ptr<Recipe> make_recipe(const config::PrecisionConfig& precision, int num_layers) {
  if (precision.fp8 == config::Fp8Mode::off) return std::make_unique<OffRecipe>(precision, num_layers);
  if (precision.overrides.empty()) return make_plain_recipe(precision.fp8_recipe, precision, num_layers);
  return std::make_unique<MixedRecipe>(precision, num_layers);
}

config::PrecisionConfig stateless_precision(config::PrecisionConfig precision) {
  if (precision.fp8_recipe == config::Fp8Recipe::delayed)
    precision.fp8_recipe = config::Fp8Recipe::tensorwise;
  precision.overrides = config::stateless_overrides(precision.overrides);
  precision.fp8_calibrate = false;
  return precision;
}

}  // namespace te::fp8
