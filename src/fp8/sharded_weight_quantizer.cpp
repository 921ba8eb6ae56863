#include "fp8/sharded_weight_quantizer.h"

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
  plan.add(amax_, "fp8.sharded.amax", MemoryKind::fp8_state, DType::f32, {n});
  plan.add(scale_, "fp8.sharded.scale", MemoryKind::fp8_state, DType::f32, {n});
  plan.add(fp8_max_, "fp8.sharded.fp8_max", MemoryKind::fp8_state, DType::f32, {n});
  plan.add(powers_of_two_, "fp8.sharded.powers_of_two", MemoryKind::fp8_state, DType::u8, {n});
}

void ShardedWeightQuantizer::bind(const Context& context) {
  if (weights_.empty()) return;
  std::vector<float> limits;
  std::vector<uint8_t> rounded;
  for (const Weight& weight : weights_) {
    limits.push_back(fp8_max(weight.format));
    rounded.push_back(weight.power_of_two ? 1 : 0);
  }
  context.copy_to_device(fp8_max_, limits.data());
  context.copy_to_device(powers_of_two_, rounded.data());
  context.synchronize();  // the host vectors must outlive the copies
}

Tensor ShardedWeightQuantizer::one(const Tensor& of_all, int number) {
  return {of_all.as<float>() + number, DType::f32, {1}};
}

void ShardedWeightQuantizer::reset_amax(const Context& context) const {
  context.zero(amax_);
}

void ShardedWeightQuantizer::record_amax(const Context& context, int number, const Tensor& values) const {
  kernels::Fp8Output out;
  out.amax = one(amax_, number).as<float>();
  kernels::quantize(context, {.x = in_rows(values, values.dtype), .out = out, .dbias = {}, .scratch = {}});
}

// The maximum of the bits as integers, which preserves NaN (parallel/communicator.h).
void ShardedWeightQuantizer::all_reduce_amax(const Context& context, parallel::Communicator* ranks) const {
  if (ranks != nullptr)
    ranks->all_reduce(context, {amax_.data, DType::i32, amax_.shape}, parallel::ReduceOp::max);
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
