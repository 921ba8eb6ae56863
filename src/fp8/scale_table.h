// The FP8 state of a model: scale, amax, amax history and counters of every GEMM operand, as flat arrays, so that one
// launch can update and one collective can reduce all of them.
#pragma once

#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "core/parameter_id.h"
#include "kernels/quantize/fp8_output.h"

namespace te::fp8 {

/// The three operands of a linear layer's three GEMMs (fprop: input, weight; dgrad: grad_output, weight;
/// wgrad: grad_output, input).
enum class OperandRole : uint8_t { input, weight, grad_output };
const char* role_name(OperandRole role);

/// Scale of an operand with ScaleSource::corrected until it has an amax: the first tensor with an amax above
/// 2^-117 or so overflows it, so that it is requantized. Its inverse is a normal number. Checkpoints have 1 instead.
/// Also of an operand without one scale per tensor, which nothing reads.
inline constexpr float kUnknownScale = 0x1p126f;

struct OperandInfo {
  LinearId linear;
  OperandRole role = OperandRole::input;
  DType format = DType::e4m3;
  GradientGroup group = GradientGroup::dense;  ///< of the linear's weight
  float initial_scale = 1.0f;
  bool has_history = true;  ///< its own scale depends on the amax history, which checkpoints must have
};

class ScaleTable {
 public:
  /// Registers an operand; returns its index. Only before plan().
  int add(OperandInfo info);
  /// `two_launches`: quantization may need two launches (kernels/quantize/fp8_output.h).
  void plan(MemoryPlan& plan, int history_len, bool two_launches);
  /// Initial scales, amax = 0, empty history.
  void reset(const Context& context);
  /// The scales of all operands.
  std::vector<float> read_scales(const Context& context) const;
  /// Sets the scales of inputs and gradients to those that read_scales() returned. A frozen weight is quantized only
  /// once, so weights keep theirs.
  void restore_scales(const Context& context, const std::vector<float>& scales);
  void zero_counters(const Context& context);

  int size() const { return static_cast<int>(infos_.size()); }
  const OperandInfo& info(int index) const { return infos_[index]; }
  Tensor amax_of(int index) const { return amax.slice_rows(index, 1).view({1}); }
  Tensor scale_of(int index) const { return scale.slice_rows(index, 1).view({1}); }
  /// Scratch for quantizing the operand, one quantization at a time; only with `two_launches`.
  kernels::Fp8TensorState* tensor_state_of(int index) const {
    return tensor_states.as<kernels::Fp8TensorState>() + index;
  }
  unsigned* num_quantizations_of(int index) { return num_quantizations_.data() + index; }
  /// Of all operands: which slots of tensor_states and predicted_scales come next, so part of a copy of these.
  std::vector<unsigned>& num_quantizations() { return num_quantizations_; }
  /// Predictions of scales that are powers of two (Fp8Requantize::predicted_scales).
  float* predicted_scales_of(int index) const { return predicted_scales.as<float>() + 2 * index; }
  /// Number of quantizations of inputs and gradients in two launches so far, and how many of them were requantized
  /// since zero_counters(). Waits for the device.
  struct QuantizationCount {
    int64_t quantized = 0, requantized = 0;
  };
  QuantizationCount count_quantizations(const Context& context) const;
  kernels::Fp8Counters* counters_of(int index) const { return counters.as<kernels::Fp8Counters>() + index; }

  PlannedTensor amax;              ///< [n, 1] fp32: of the current step
  PlannedTensor last_amax;         ///< [n, 1] fp32: of the last finished step, for the log
  PlannedTensor scale;             ///< [n, 1] fp32
  PlannedTensor fp8_max;           ///< [n, 1] fp32
  PlannedTensor history;           ///< [history_len, n] fp32; empty if history_len is 0
  PlannedTensor position;          ///< [1] int32: next row of the ring buffer
  PlannedTensor counters;          ///< [n, bytes of Fp8Counters]
  PlannedTensor predicted_scales;  ///< [n, 2] fp32; with tensor_states
  PlannedTensor tensor_states;     ///< [n, bytes of Fp8TensorState]; empty without two_launches

 private:
  std::vector<OperandInfo> infos_;
  std::vector<unsigned> num_quantizations_;  ///< per operand, with two_launches
};

}  // namespace te::fp8
