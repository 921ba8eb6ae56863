#include "fp8/recipe.h"

#include <vector>

#include "fp8/recipes.h"
#include "kernels/elementwise/elementwise.h"

namespace te::fp8 {

bool Quantizer::enabled() const {
  return index_ >= 0 && recipe_->quantizes();
}

DType Quantizer::format() const {
  return recipe_->table().info(index_).format;
}

bool Quantizer::fused() const {
  return enabled() && recipe_->fused();
}

kernels::Fp8Output Quantizer::producer_output(const QuantizedTensor& storage, QuantizeMode mode) const {
  return fused() ? recipe_->producer_output(index_, storage, mode) : kernels::Fp8Output{};
}

void Quantizer::complete(const Context& context, Operand& operand, QuantizeMode mode, const Tensor& dbias,
                         const Tensor& scratch) const {
  if (index_ >= 0) return recipe_->complete(context, index_, operand, mode, dbias, scratch);
  if (dbias) kernels::bias_gradient(context, operand.hp, dbias, scratch);
}

Quantizer Recipe::quantizer(const std::string& linear_name, int layer, OperandRole role) {
  const bool head = layer == kOutputLayer;
  const bool high_precision_layer =
      head ? !precision_.fp8_output_layer
           : layer < precision_.first_layers_bf16 || layer >= num_layers_ - precision_.last_layers_bf16;
  const bool tracked = quantizes() || precision_.fp8_calibrate;
  if (high_precision_layer || !tracked) return {};
  // Hybrid: gradients have the wider range and get the wider exponent.
  const bool e5m2 = role == OperandRole::grad_output && precision_.fp8 != config::Fp8Mode::e4m3;
  return {this,
          table_.add({linear_name, head ? num_layers_ : layer, role, e5m2 ? DType::e5m2 : DType::e4m3})};
}

void Recipe::share(parallel::Communicator& tensor, parallel::Communicator& stage) {
  tensor_ = tensor.size() > 1 ? &tensor : nullptr;
  stage_ = stage.size() > 1 ? &stage : nullptr;
}

// Non-negative floats are ordered like their bits, and so are infinity and NaN above them; a maximum of floats would
// lose a NaN.
void Recipe::reduce_amax(const Context& context, parallel::Communicator* group, const Tensor& amax) {
  if (group != nullptr)
    group->all_reduce(context, {amax.data, DType::i32, amax.shape}, parallel::ReduceOp::max);
}

void Recipe::plan(MemoryPlan& plan) {
  table_.plan(plan, history_len());
#ifndef NDEBUG
  if (stage_ != nullptr && table_.size() > 0)
    plan.add(compared_, "fp8.compared_scales", MemoryKind::fp8_state, DType::f32, {table_.size()});
#endif
}

// Every rank equal to the largest: all equal.
void Recipe::check_scales_agree(const Context& context) const {
  if (!compared_) return;
  const auto count = static_cast<size_t>(table_.size());
  std::vector<float> own(count), largest(count);
  context.copy(compared_, table_.scale.view(compared_.shape));
  context.copy_to_host(own.data(), compared_);
  stage_->all_reduce(context, compared_, parallel::ReduceOp::max);
  context.copy_to_host(largest.data(), compared_);
  context.synchronize();
  for (size_t i = 0; i < count; ++i) {
    TE_CHECK(own[i] == largest[i], "FP8 scale of {} {} is {} here and {} on another rank of {}",
             table_.info(static_cast<int>(i)).name, role_name(table_.info(static_cast<int>(i)).role), own[i],
             largest[i], stage_->name());
  }
}

void Recipe::update(const Context&, const int32_t*) {}

kernels::Fp8Output Recipe::producer_output(int index, const QuantizedTensor& storage, QuantizeMode mode) {
  kernels::Fp8Output out;
  out.rowwise = storage.rowwise;
  out.columnwise = storage.columnwise;
  out.scale = table_.scale_of(index).as<float>();
  out.scale_inv = storage.scale_inv.as<float>();
  out.amax = mode.record_amax ? table_.amax_of(index).as<float>() : nullptr;
  out.counters = mode.count ? table_.counters_of(index) : nullptr;
  return out;
}

std::unique_ptr<Recipe> make_recipe(const config::PrecisionConfig& precision, int num_layers) {
  if (precision.fp8 == config::Fp8Mode::off) return std::make_unique<OffRecipe>(precision, num_layers);
  if (precision.fp8_recipe == config::Fp8Recipe::tensorwise) {
    return std::make_unique<TensorwiseRecipe>(precision, num_layers);
  }
  return std::make_unique<DelayedRecipe>(precision, num_layers);
}

}  // namespace te::fp8
