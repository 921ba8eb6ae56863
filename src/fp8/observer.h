// Looks at every operand of every linear while a pass makes them, and at what a cast does to it: the run's own recipe,
// and others that might have been ("what if"). The values that are looked at are the high-precision ones, so while the
// observer is active producers write these and complete() casts, to the same bits as ever (recipe.h), and no state is
// touched: no amax is recorded, no cast counted. One such pass (train/step_runner.h, observe()) is a diagnosis between
// two steps.
//
// Linears know nothing of it. Recipe::quantizer() registers each operand, high-precision ones, too;
// Quantizer::complete() shows it once it is cast.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "fp8/operand.h"
#include "fp8/scale_table.h"
#include "kernels/tensor_stats/tensor_stats.h"

namespace te::fp8 {

/// What happens to the values of an operand in one way of casting.
struct CastStatistics {
  OperandInfo operand;
  std::string recipe;    ///< "delayed", ..., or "none": not cast
  bool what_if = false;  ///< not what the run does
  std::string form;      ///< "rowwise", "columnwise", or "both" where they are cast alike
  kernels::TensorSums sums;
};

// Of all sums' values: NaN where there are none.
double sqnr_db(const kernels::TensorSums& sums);  ///< 10 log10(signal / error); infinite without an error
double dynamic_range(const kernels::TensorSums& sums);  ///< log2(amax / smallest magnitude above 0)
double kurtosis(const kernels::TensorSums& sums);       ///< about the mean; 3 of a normal distribution
double saturated_fraction(const kernels::TensorSums& sums);
double underflow_fraction(const kernels::TensorSums& sums);

/// An operand as Recipe::quantizer() knows it.
struct ObservedOperand {
  OperandInfo info;
  bool quantized = false;
  config::Fp8Recipe recipe = config::Fp8Recipe::delayed;
  bool rowwise = true, columnwise = true;  ///< forms that it has
};

/// Which values share a scale. Delayed and tensorwise scales are of whole tensors.
kernels::ScaleLayout layout_of(config::Fp8Recipe recipe, OperandRole role);

class Observer {
 public:
  explicit Observer(const config::PrecisionConfig& precision) : precision_(precision) {}

  int add_operand(ObservedOperand operand);
  /// Before the plan: what shall be recorded. Without it nothing is planned.
  void plan(MemoryPlan& plan, const std::vector<std::string>& what_if);

  /// From here to end() passes are looked at. Zeroes the sums.
  void begin(const Context& context);
  void end() { active_ = false; }
  bool active() const { return active_; }

  /// `scale`: the one that has just cast the operand, where its recipe has one of the tensor. Sums of an operand that
  /// is seen in parts add up.
  void record(const Context& context, int operand_index, const Operand& operand, const float* scale) const;

  /// Waits for the device. Of this rank, in the order of the linears; merge over ranks with kernels::merged().
  std::vector<CastStatistics> read(const Context& context) const;

 private:
  struct Variant {
    int operand_index = 0;
    config::Fp8Recipe recipe{};
    bool casts = true, what_if = false, columnwise = false;
    const char* form = "both";
  };
  void add_variants(int operand_index, config::Fp8Recipe recipe, bool what_if, bool rowwise, bool columnwise);
  kernels::TensorSums* sums_of(size_t variant) const { return sums_.as<kernels::TensorSums>() + variant; }

  config::PrecisionConfig precision_;
  std::vector<ObservedOperand> operands_;
  std::vector<Variant> variants_;
  std::vector<size_t> first_variant_;  ///< of each operand, and the end
  bool active_ = false;
  Tensor sums_;                  ///< u8 [ways, bytes of TensorSums]
  Tensor scratch_;               ///< of tensor_stats
  Tensor current_amax_, scale_;  ///< [1] fp32: of a cast that might have been
};

}  // namespace te::fp8
