// Collects statistics of every operand of every linear layer in a pass, and of the quantization error of the run's
// recipe and of alternative recipes ("what if"). FP8 state does not change (fp8::Observer). Such a pass
// (train/step_runner.h, observe()) runs between two steps for diagnosis.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "fp8/recipe.h"
#include "kernels/tensor_stats/tensor_stats.h"

namespace te::train {

/// Statistics of an operand quantized by one recipe.
struct QuantizationStatistics {
  fp8::OperandInfo operand;
  std::string recipe;    ///< "delayed", ..., or "none": not quantized
  bool what_if = false;  ///< an alternative recipe, not that of the run
  std::string layouts;   ///< "rowwise", "columnwise", or "both" if their quantized values are equal
  kernels::TensorSums sums;
};

class QuantizationObserver final : public fp8::Observer {
 public:
  /// `recipe` must outlive it.
  QuantizationObserver(const config::PrecisionConfig& precision, fp8::Recipe& recipe)
      : precision_(precision), recipe_(recipe) {}

  /// Plans memory for the statistics of all operands and the recipes `what_if`, after the model's. Optional; begin()
  /// requires it.
  void plan(MemoryPlan& plan, const std::vector<std::string>& what_if);

  /// Records passes until end(). Zeroes the sums.
  void begin(const Context& context);
  void end() { recipe_.set_observer(nullptr); }
  void record(const Context& context, int operand_index, const Tensor& values,
              const float* scale) const override;

  /// Waits for the device. Statistics of this rank, in the order of the linear layers; merge over ranks with
  /// kernels::merged().
  std::vector<QuantizationStatistics> read(const Context& context) const;

 private:
  struct Variant {
    int operand_index = 0;
    config::Fp8Recipe recipe{};
    DType format = DType::e4m3;
    kernels::ScaleLayout layout = kernels::ScaleLayout::none;  ///< none: not quantized, or emulated
    const fp8::Scaling* emulation = nullptr;
    bool what_if = false, columnwise = false;
    const char* layouts = "both";
    bool quantized() const { return layout != kernels::ScaleLayout::none || emulation != nullptr; }
  };
  const fp8::ObservedOperand& operand_at(int index) const {
    return recipe_.observed_operands()[static_cast<size_t>(index)];
  }
  void add_variants(Variant variant, bool rowwise, bool columnwise);
  void add_what_ifs(int operand_index, config::Fp8Recipe recipe);
  bool power_of_two() const { return precision_.fp8_scale_format == config::Fp8ScaleFormat::power_of_two; }
  void find_scale(const Context& context, const Tensor& values, const Variant& variant) const;
  void emulate(const Context& context, const Variant& variant, kernels::TensorStats& stats) const;
  kernels::TensorSums* sums_of(size_t variant) const { return sums_.as<kernels::TensorSums>() + variant; }

  config::PrecisionConfig precision_;
  fp8::Recipe& recipe_;
  std::vector<std::unique_ptr<fp8::Scaling>> what_ifs_;
  std::vector<Variant> variants_;
  std::vector<size_t> first_variant_;   ///< per operand, and the end
  PlannedTensor sums_;                  ///< u8 [variants, bytes of TensorSums]
  PlannedTensor scratch_;               ///< scratch of tensor_stats
  PlannedTensor current_amax_, scale_;  ///< [1] fp32: of an alternative recipe
  PlannedTensor dequantized_;           ///< [largest operand]: of an emulated recipe
  PlannedTensor counters_;              ///< u8 [bytes of Fp8Counters], with dequantized_
};

}  // namespace te::train
