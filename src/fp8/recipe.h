// The FP8 recipe of a model: which operands of its linear layers are FP8 (config::linear_precision), with which scaling
// (scaling.h), and their common state (ScaleTable). The model gets a Quantizer per operand. `off` is the recipe that
// quantizes nothing; with fp8_calibrate it keeps the amax history of delayed scaling, so that a later run can use FP8.
//
// State that later steps depend on changes once per optimizer step (update()), never in evaluation, recomputation or a
// skipped step. Delayed scales are therefore constant within a step, and a recomputed forward pass uses those of the
// first one; current scaling writes the scale of every tensor that it quantizes, and the next one's guess.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/precision_overrides.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "fp8/amax_ranks.h"
#include "fp8/quantizer.h"
#include "fp8/scale_table.h"
#include "fp8/sharded_weight_quantizer.h"

namespace te::fp8 {

/// An operand that Recipe::quantizer() has registered, also in high precision, for an observer.
struct ObservedOperand {
  OperandInfo info;
  config::Fp8Recipe recipe = config::Fp8Recipe::delayed;
  OperandLayouts layouts;
  const Scaling* emulation = nullptr;  ///< Scaling::emulation()
};

/// Receives the high-precision values of every operand except experts' operands. While an observer is set, producers
/// write high precision and complete() quantizes, with the same bits, and FP8 state does not change: no amax is
/// recorded and no quantization is counted.
class Observer {
 public:
  virtual ~Observer() = default;
  /// `scale`: with which the operand was just quantized, if its recipe has one per tensor. An operand may be recorded
  /// in parts.
  virtual void record(const Context& context, int operand_index, const Tensor& values,
                      const float* scale) const = 0;
};

class Recipe {
 public:
  /// `scaling`: replaces that of precision.fp8_recipe.
  Recipe(const config::PrecisionConfig& precision, int num_layers,
         std::unique_ptr<Scaling> scaling = nullptr);
  Recipe(const Recipe&) = delete;

  /// Creates the quantizer of an operand; config::linear_precision determines its precision in this layer. `group`: of
  /// the linear's weight. Without `trained`, wgrad does not run or, for an adapter, reads high precision: inputs and
  /// output gradients have no columnwise layout. `experts`: of the operands of that many experts in one tensor, of
  /// which `id` is the first.
  Quantizer quantizer(const LinearId& id, OperandRole role, GradientGroup group = GradientGroup::dense,
                      bool trained = true, int experts = 0);

  /// True if operands are quantized to FP8.
  bool quantizes() const { return precision_.fp8 != config::Fp8Mode::off; }
  /// The widest type of quantized values as stored.
  DType widest_values() const { return widest_values_; }
  /// True if tensors may be requantized, because their scales are predicted before the values are known.
  bool requantizes() const;
  /// True if calibration passes must initialize the scales before the first step (begin_calibration()).
  bool needs_calibration() const { return quantizes() && history_len() > 0; }
  /// Until end_calibration(), each operand is quantized with its current scale instead of that of the state, and its
  /// amax is recorded. One pass therefore calibrates a model of any depth. Scales of inputs and gradients are then what
  /// they were before. Call update() afterwards.
  void begin_calibration(const Context& context);
  void end_calibration(const Context& context);

  /// Sets the ranks over which amaxes are reduced, so that all have the same scales: ranks with shards of the same
  /// activations (`tensor`), and all ranks of the same pipeline stage (`stage`), which have the same layers.
  void set_amax_groups(parallel::Communicator& tensor, parallel::Communicator& stage);
  /// Then, for operands of GradientGroup::expert: the ranks that hold the same experts.
  void set_expert_amax_group(parallel::Communicator& copies);

  /// Before the plan: operands get memory for both precisions, so that set_high_precision() can be called.
  void keep_high_precision() { keeps_high_precision_ = true; }
  /// Following passes run as with the recipe `off`; delayed scaling keeps recording amaxes. Call weights_changed() for
  /// all weights afterwards.
  void set_high_precision(bool on);
  bool high_precision() const { return high_precision_; }
  /// For passes in CUDA graphs: quantization does not alternate between two amax buffers (Fp8Requantize), so complete()
  /// quantizes operands with current scaling in one launch. For one rank only; captured operands may have at most
  /// kernels::kMaxSmallElements elements. Before the first pass.
  void use_single_amax_buffer() { single_amax_buffer_ = true; }
  /// For tests of the effect of an outlier on all other values: inputs of linear_fc2 get the scale of a tensor whose
  /// amax is 2^log2 times larger. 0 ends the test. Waits for the device.
  void set_test_outlier(const Context& context, int log2);
  int test_outlier() const { return outlier_log2_; }

  void plan(MemoryPlan& plan);
  void reset(const Context& context);
  /// Called once per optimizer step, after the weight update. *skip != 0 (device flag): the state does not change.
  void update(const Context& context, const int32_t* skip);

  /// Weights that data-parallel ranks quantize in shards, and the ranks that have the shards.
  ShardedWeightQuantizer& sharded_weights() { return sharded_weights_; }
  const AmaxRanks& stage_ranks() const { return stage_ranks_; }
  const AmaxRanks& pass_ranks() const { return pass_ranks_; }  ///< with parts of the same tensors
  /// The observer of the following passes, or null.
  void set_observer(const Observer* observer) { observer_ = observer; }
  const std::vector<ObservedOperand>& observed_operands() const { return observed_; }
  /// Number of values of the largest operand, after the plan.
  int64_t largest_operand() const { return largest_operand_; }
  ScaleTable& table() { return table_; }
  const ScaleTable& table() const { return table_; }

 private:
  friend class Quantizer;
  const Scaling& scaling_of(config::Fp8Recipe recipe);
  int64_t history_len() const;
  template <class Predicate>
  bool any_scaling(Predicate predicate) const {
    return std::ranges::any_of(scalings_,
                               [&](const auto& entry) { return std::invoke(predicate, *entry.second); });
  }
  /// log2 of the factor of the test's outlier.
  int outlier_of(int index) const;
  /// Margin of an operand's scales.
  int margin_of(int index) const { return static_cast<int>(precision_.margin) + outlier_of(index); }
  /// Reduces a column of the table.
  void reduce_table(const Context& context, const AmaxRanks& ranks, const Tensor& amax) const;
  /// InternalError if ranks have different scales of an operand. Waits for the device, so debug builds only.
  void check_scales_agree(const Context& context) const;

  config::PrecisionConfig precision_;
  int num_layers_ = 0;
  std::map<config::Fp8Recipe, std::unique_ptr<Scaling>> scalings_;  ///< several with precision.overrides
  bool calibrating_ = false, keeps_high_precision_ = false, high_precision_ = false,
       single_amax_buffer_ = false;
  std::vector<float> scales_before_calibration_;
  int outlier_log2_ = 0;
  DType widest_values_ = DType::e4m3;
  ScaleTable table_;
  ShardedWeightQuantizer sharded_weights_;
  std::vector<ObservedOperand> observed_;
  int64_t largest_operand_ = 0;
  const Observer* observer_ = nullptr;
  AmaxRanks pass_ranks_, stage_ranks_;
  std::vector<std::pair<int64_t, int64_t>>
      expert_rows_;            ///< first row and number, of each run of expert operands
  PlannedTensor expert_amax_;  ///< fp32: these rows, packed
  PlannedTensor compared_;     ///< [n] fp32, debug builds
};

inline std::unique_ptr<Recipe> make_recipe(const config::PrecisionConfig& precision, int num_layers) {
  return std::make_unique<Recipe>(precision, num_layers);
}

/// The same precision with a recipe without state, for generation and evaluation of any checkpoint.
config::PrecisionConfig stateless_precision(config::PrecisionConfig precision);

}  // namespace te::fp8
