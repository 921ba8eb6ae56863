// Collects statistics of every operand of every linear layer in a pass, and of the quantization error of the run's
// recipe and of alternative recipes ("what if"). The statistics need the high-precision values. While the observer is
// active, producers therefore write high precision and complete() quantizes, with the same bits as without the observer
// (recipe.h). FP8 state does not change: no amax is recorded and no quantization is counted. Such a pass
// (train/step_runner.h, observe()) runs between two steps for diagnosis.
//
// Linear layers do not use the observer. Recipe::quantizer() registers each operand, including those in high precision;
// Quantizer::complete() records it after quantization.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "fp8/quantizer.h"
#include "kernels/tensor_stats/tensor_stats.h"

namespace te::fp8 {

/// Statistics of an operand quantized by one recipe.
struct QuantizationStatistics {
  OperandInfo operand;
  std::string recipe;    ///< "delayed", ..., or "none": not quantized
  bool what_if = false;  ///< an alternative recipe, not that of the run
  std::string layouts;   ///< "rowwise", "columnwise", or "both" if their quantized values are equal
  kernels::TensorSums sums;
};

class Scaling;

/// An operand as registered by Recipe::quantizer().
struct ObservedOperand {
  OperandInfo info;
  config::Fp8Recipe recipe = config::Fp8Recipe::delayed;
  OperandLayouts layouts;
  const Scaling* emulation = nullptr;  ///< Scaling::emulation()
};

class Observer {
 public:
  explicit Observer(const config::PrecisionConfig& precision);
  ~Observer();
  Observer(const Observer&) = delete;

  int add_operand(ObservedOperand operand);
  /// Operands have up to `values` values. Before plan().
  void expect(int64_t values) { largest_ = std::max(largest_, values); }
  /// Plans memory for the statistics of all operands and the recipes `what_if`. Optional; begin() requires it.
  void plan(MemoryPlan& plan, const std::vector<std::string>& what_if);

  /// Records passes until end(). Zeroes the sums.
  void begin(const Context& context);
  void end() { active_ = false; }
  bool active() const { return active_; }

  /// `scale`: the scale with which the operand was just quantized, if its recipe has one per tensor. An operand may be
  /// recorded in parts: the sums accumulate.
  void record(const Context& context, int operand_index, const Tensor& values, const float* scale) const;

  /// Waits for the device. Statistics of this rank, in the order of the linear layers; merge over ranks with
  /// kernels::merged().
  std::vector<QuantizationStatistics> read(const Context& context) const;

 private:
  struct Variant {
    int operand_index = 0;
    config::Fp8Recipe recipe{};
    DType format = DType::e4m3;
    kernels::ScaleLayout layout = kernels::ScaleLayout::none;  ///< none: not quantized, or emulated
    const Scaling* emulation = nullptr;
    bool what_if = false, columnwise = false;
    const char* layouts = "both";
    bool quantized() const { return layout != kernels::ScaleLayout::none || emulation != nullptr; }
  };
  void add_variants(Variant variant, bool rowwise, bool columnwise);
  void add_what_ifs(int operand_index, config::Fp8Recipe recipe);
  void find_scale(const Context& context, const Tensor& values, DType format) const;
  void emulate(const Context& context, const Variant& variant, kernels::TensorStats& stats) const;
  kernels::TensorSums* sums_of(size_t variant) const { return sums_.as<kernels::TensorSums>() + variant; }

  config::PrecisionConfig precision_;
  std::vector<ObservedOperand> operands_;
  std::vector<std::unique_ptr<Scaling>> what_ifs_;
  int64_t largest_ = 0;
  std::vector<Variant> variants_;
  std::vector<size_t> first_variant_;  ///< per operand, and the end
  bool active_ = false;
  PlannedTensor sums_;                  ///< u8 [variants, bytes of TensorSums]
  PlannedTensor scratch_;               ///< scratch of tensor_stats
  PlannedTensor current_amax_, scale_;  ///< [1] fp32: of an alternative recipe
  PlannedTensor dequantized_;           ///< [largest operand]: of an emulated recipe
  PlannedTensor counters_;              ///< u8 [bytes of Fp8Counters], with dequantized_
};

}  // namespace te::fp8
