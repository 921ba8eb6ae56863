#include "fp8/sharded_weight_quantizer.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/quantize/quantize.h"
#include "kernels/scale_update/scale_update.h"

namespace te::fp8 {
namespace {

/// A part of a weight as a matrix with 128 columns.
Tensor in_rows(const Tensor& flat, DType dtype) {
  constexpr int64_t kCols = 128;
  TE_CHECK(flat.numel() % kCols == 0, "a part of a weight has {} elements, not a multiple of {}",
           flat.numel(), kCols);
  return {flat.data, dtype, {flat.numel() / kCols, kCols}};
}

}  // namespace

int ShardedWeightQuantizer::add(const Weight& weight) {
  TE_CHECK(!amax_.is_planned(), "weight registered after the plan");
  TE_CHECK(weights_.empty() || weights_.front().margin == weight.margin,
           "sharded weights must have the same margin");
  weights_.push_back(weight);
  return size() - 1;
}

void ShardedWeightQuantizer::plan(MemoryPlan& plan) {
  const int64_t n = size();
  if (n == 0) return;
  rows_.resize(weights_.size());
  int64_t row = 0;
  for (const GradientGroup group : kGradientGroups)
    for (size_t number = 0; number < weights_.size(); ++number)
      if (weights_[number].group == group) rows_[number] = row++;
  plan.add(amax_, "fp8.sharded.amax", MemoryKind::fp8_state, DType::f32, {n});
  plan.add(scale_, "fp8.sharded.scale", MemoryKind::fp8_state, DType::f32, {n});
  plan.add(fp8_max_, "fp8.sharded.fp8_max", MemoryKind::fp8_state, DType::f32, {n});
  plan.add(powers_of_two_, "fp8.sharded.powers_of_two", MemoryKind::fp8_state, DType::u8, {n});
}

void ShardedWeightQuantizer::bind(const Context& context) {
  if (weights_.empty()) return;
  std::vector<float> limits(weights_.size());
  std::vector<uint8_t> rounded(weights_.size());
  for (size_t number = 0; number < weights_.size(); ++number) {
    const auto row = static_cast<size_t>(rows_[number]);
    limits[row] = fp8_max(weights_[number].format);
    rounded[row] = weights_[number].power_of_two ? 1 : 0;
  }
  context.copy_to_device(fp8_max_, limits.data());
  context.copy_to_device(powers_of_two_, rounded.data());
  context.synchronize();  // the host vectors must outlive the copies
}

Tensor ShardedWeightQuantizer::one(const Tensor& of_all, int number) const {
  return {of_all.as<float>() + rows_[static_cast<size_t>(number)], DType::f32, {1}};
}

void ShardedWeightQuantizer::reset_amax(const Context& context) const {
  context.zero(amax_);
}

void ShardedWeightQuantizer::record_amax(const Context& context, int number, const Tensor& values) const {
  kernels::Fp8Output out;
  out.amax = one(amax_, number).as<float>();
  kernels::quantize(context, {.x = in_rows(values, values.dtype), .out = out, .dbias = {}, .scratch = {}});
}

void ShardedWeightQuantizer::all_reduce_amax(const Context& context, const AmaxRanks& ranks) const {
  int64_t first = 0;
  for (const GradientGroup group : kGradientGroups) {
    const int64_t count =
        std::ranges::count_if(weights_, [&](const Weight& weight) { return weight.group == group; });
    if (count > 0) reduce_amax(context, ranks, group, {amax_.as<float>() + first, DType::f32, {count}});
    first += count;
  }
  kernels::current_scales(context, {.amax = amax_,
                                    .fp8_max = fp8_max_,
                                    .power_of_two = powers_of_two_,
                                    .scale = scale_,
                                    .margin = weights_.front().margin});
}

void ShardedWeightQuantizer::quantize(const Context& context, int number, const Tensor& values,
                                      const Tensor& bytes, kernels::Fp8Counters* counters) const {
  kernels::Fp8Output out;
  out.rowwise = in_rows(bytes, at(number).format);
  out.scale = one(scale_, number).as<float>();
  out.counters = counters;
  kernels::quantize(context, {.x = in_rows(values, values.dtype), .out = out, .dbias = {}, .scratch = {}});
}

void ShardedWeightQuantizer::commit_scale(const Context& context, int number,
                                          const kernels::Fp8Output& out) const {
  kernels::record_current_scale(context, {.found_amax = one(amax_, number).as<float>(),
                                          .found_scale = one(scale_, number).as<float>(),
                                          .amax = out.amax,
                                          .current_amax = out.requantize.current_amax,
                                          .scale = out.requantize.current_scale,
                                          .scale_inv = out.scale_inv});
}

}  // namespace te::fp8
