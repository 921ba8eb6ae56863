#include "fp8/scale_table.h"

namespace te::fp8 {

const char* role_name(OperandRole role) {
  static constexpr const char* kNames[] = {"input", "weight", "grad_output"};
  return kNames[static_cast<size_t>(role)];
}

int ScaleTable::add(OperandInfo info) {
  TE_CHECK(!scale.is_planned(), "operand {} registered after the plan", info.linear.name());
  infos_.push_back(info);
  return size() - 1;
}

void ScaleTable::plan(MemoryPlan& plan, int history_len, bool two_launches) {
  const int64_t n = size();
  if (n == 0) return;
  const auto add = [&](PlannedTensor& slot, const char* name, DType dtype, Shape shape) {
    plan.add(slot, name, MemoryKind::fp8_state, dtype, shape);
  };
  add(amax, "fp8.amax", DType::f32, {n, 1});
  add(last_amax, "fp8.last_amax", DType::f32, {n, 1});
  add(scale, "fp8.scale", DType::f32, {n, 1});
  add(fp8_max, "fp8.fp8_max", DType::f32, {n, 1});
  add(counters, "fp8.counters", DType::u8, {n, static_cast<int64_t>(sizeof(kernels::Fp8Counters))});
  if (two_launches) {
    num_quantizations_.assign(infos_.size(), 0);
    add(predicted_scales, "fp8.predicted_scales", DType::f32, {n, 2});
    add(tensor_states, "fp8.tensor_states", DType::u8,
        {n, static_cast<int64_t>(sizeof(kernels::Fp8TensorState))});
  }
  if (history_len == 0) return;
  add(history, "fp8.amax_history", DType::f32, {history_len, n});
  add(position, "fp8.history_position", DType::i32, {1});
}

void ScaleTable::reset(const Context& context) {
  if (size() == 0) return;
  std::vector<float> scales, limits;
  for (const OperandInfo& info : infos_) {
    scales.push_back(info.initial_scale);
    limits.push_back(te::fp8_max(info.format));
  }
  context.copy_to_device(scale, scales.data());
  context.copy_to_device(fp8_max, limits.data());
  context.zero(amax);
  context.zero(last_amax);
  context.zero(counters);
  if (tensor_states) context.zero(tensor_states), context.zero(predicted_scales);
  if (history) context.zero(history);
  if (position) context.zero(position);
  context.synchronize();  // the host vectors above must outlive the copies
}

std::vector<float> ScaleTable::read_scales(const Context& context) const {
  std::vector<float> scales(infos_.size());
  if (size() == 0) return scales;
  context.copy_to_host(scales.data(), scale);
  context.synchronize();
  return scales;
}

void ScaleTable::restore_scales(const Context& context, const std::vector<float>& scales) {
  if (size() == 0) return;
  std::vector<float> all = read_scales(context);
  for (size_t i = 0; i < all.size(); ++i)
    if (infos_[i].role != OperandRole::weight) all[i] = scales[i];
  context.copy_to_device(scale, all.data());
  context.synchronize();
}

ScaleTable::QuantizationCount ScaleTable::count_quantizations(const Context& context) const {
  QuantizationCount count;
  if (!tensor_states) return count;
  std::vector<kernels::Fp8TensorState> states(infos_.size());
  context.copy_to_host(states.data(), tensor_states);
  context.synchronize();
  for (size_t i = 0; i < infos_.size(); ++i) {
    if (infos_[i].role == OperandRole::weight) continue;
    count.quantized += num_quantizations_[i];
    count.requantized += states[i].requantized;
  }
  return count;
}

void ScaleTable::zero_counters(const Context& context) {
  if (size() > 0) context.zero(counters);
  if (tensor_states)
    context.zero(tensor_states);  // resets the counts; the other fields are zero between quantizations
}

}  // namespace te::fp8
