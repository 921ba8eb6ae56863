// The FP8 state of a model: for every GEMM operand its scale, amax, amax history and counters, as flat
// arrays, so that one launch updates all of them and one message reduces or saves all of them.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "kernels/quantize/fp8_output.h"

namespace te::fp8 {

/// The three operands of a linear layer's three GEMMs (fprop: input, weight; dgrad: grad_output, weight;
/// wgrad: grad_output, input).
enum class OperandRole : uint8_t { input, weight, grad_output };
const char* role_name(OperandRole role);

struct OperandInfo {
  std::string name;  ///< "layers.3.mlp.linear_fc1"
  int layer = 0;
  OperandRole role = OperandRole::input;
  DType format = DType::e4m3;
};

class ScaleTable {
 public:
  /// Registers an operand; returns its index. Only before plan().
  int add(OperandInfo info);
  /// `two_launches`: there are casts of two launches (kernels/quantize/fp8_output.h).
  void plan(MemoryPlan& plan, int history_len, bool two_launches);
  /// scale = 1, amax = 0, empty history.
  void reset(const Context& context);
  void zero_counters(const Context& context);
  /// All that passes and updates change: code that restores the state (train/state_copy.h, StepRunner::warm_up) copies
  /// these.
  std::vector<Tensor> state() const;

  int size() const { return static_cast<int>(infos_.size()); }
  const OperandInfo& info(int index) const { return infos_[index]; }
  Tensor amax_of(int index) const { return amax.slice_rows(index, 1).view({1}); }
  Tensor scale_of(int index) const { return scale.slice_rows(index, 1).view({1}); }
  /// Working space of the operand's casts, of which one is under way at a time; only with `two_launches`.
  kernels::Fp8CastState* cast_state_of(int index) const {
    return cast_states.as<kernels::Fp8CastState>() + index;
  }
  unsigned* num_casts_of(int index) { return num_casts_.data() + index; }
  /// Of scales that are powers of two (Fp8Requantize::predicted_scales).
  float* predicted_scales_of(int index) const { return predicted_scales.as<float>() + 2 * index; }
  /// Casts of inputs and gradients in two launches so far, whether they count or not, and how many of them were made
  /// again since zero_counters(). Waits for the device.
  struct CastCount {
    int64_t casts = 0, requantized = 0;
  };
  CastCount count_casts(const Context& context) const;
  kernels::Fp8Counters* counters_of(int index) const { return counters.as<kernels::Fp8Counters>() + index; }

  Tensor amax;              ///< [n, 1] fp32: the step so far
  Tensor last_amax;         ///< [n, 1] fp32: the last finished step, for the log
  Tensor scale;             ///< [n, 1] fp32
  Tensor fp8_max;           ///< [n, 1] fp32
  Tensor history;           ///< [history_len, n] fp32; empty when history_len is 0
  Tensor position;          ///< [1] int32, the ring's next row
  Tensor counters;          ///< [n, bytes of Fp8Counters]
  Tensor predicted_scales;  ///< [n, 2] fp32; with cast_states
  Tensor cast_states;       ///< [n, bytes of Fp8CastState]; empty without casts of two launches

 private:
  std::vector<OperandInfo> infos_;
  std::vector<unsigned> num_casts_;  ///< of the cast states
};

}  // namespace te::fp8
