// Quantizes one operand of one linear layer by its recipe: format, layouts and scaling of the operand, and its row of
// the model's FP8 state. The model gets a Quantizer per operand (Recipe::quantizer()) and does not depend on the
// recipe.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/memory_plan.h"
#include "fp8/operand.h"
#include "fp8/scaling.h"

namespace te::fp8 {

class Recipe;

/// The layouts of an operand that its GEMMs read.
struct OperandLayouts {
  bool rowwise = false, columnwise = false;  ///< quantized
  bool high_precision = true;                ///< also high precision: not all of its GEMMs are quantized
  DType format = DType::e4m3;
  DType values = DType::e4m3;  ///< as stored: the format, or that of high precision with an emulated recipe
  kernels::ScaleLayout scales = kernels::ScaleLayout::none;  ///< which values share a stored scale

  bool quantized() const { return rowwise || columnwise; }
  bool emulated() const { return quantized() && values != format; }
  bool one_scale() const { return quantized() && scales == kernels::ScaleLayout::tensor; }
  /// True if no GEMM reads high precision and the column-wise layout is the transpose of the row-wise one.
  bool transposes() const { return one_scale() && !high_precision; }
};

/// Parameters for planning the quantized layouts of an operand.
struct OperandMemory {
  std::string name;  ///< "layers.0.mlp.linear_fc1.input"
  int64_t rows = 0, cols = 0;
  MemoryKind values = MemoryKind::activations, scales = MemoryKind::activations;
  ScratchTag tag{};  ///< of the operand
  /// Of the layouts' values, and of scales of vectors; empty: not shared with other tensors.
  Lifetime rowwise, columnwise;
  bool has_columnwise = true;
  bool keeps_scale = false;      ///< a layout is quantized again later, with Operand::scale
  bool plans_rowwise = true;     ///< false: the caller provides the memory of the row-wise values
  bool plans_columnwise = true;  ///< likewise of the column-wise values
};

/// Cheap to copy. The quantizer of the experts of a layer (Recipe::quantizer) has a row of the state per expert; a
/// tensor with their operands, one after another, has one scale per expert instead of one.
class Quantizer {
 public:
  Quantizer() = default;

  /// The layouts in passes that are not in high precision.
  const OperandLayouts& layouts() const { return layouts_; }
  /// True if some passes may run in high precision (Recipe::keep_high_precision): high-precision values are kept, too.
  bool keeps_high_precision() const;
  /// True while passes of such a run are in high precision.
  bool in_high_precision() const;
  /// True for an operand of experts that can be quantized from tokens (Operand::source).
  bool reads_tokens() const {
    return experts_ > 0 && layouts_.quantized() && !layouts_.high_precision &&
           (layouts_.one_scale() || layouts_.scales == kernels::ScaleLayout::vectors);
  }
  /// True if it is always: memory for its rows in high precision is not needed.
  bool always_reads_tokens() const { return reads_tokens() && !keeps_high_precision(); }
  /// True for an operand of experts that the ranks of its tokens quantize and send as FP8 (kernels/moe/send_fp8.h):
  /// both layouts have the same codes, and memory is not planned for rows in high precision anyway.
  bool quantized_by_senders() const { return always_reads_tokens() && layouts_.one_scale(); }
  /// True if the ranks of sequence parallelism gather quantized rows of an operand with this many tokens, false if they
  /// gather high-precision rows.
  bool gathers_quantized(const parallel::TensorParallel& ranks, int64_t tokens) const;
  /// Parameters of current scaling with one scale per tensor; empty if the operand is quantized otherwise or not at
  /// all.
  struct CurrentScaling {
    int margin = 0;
    bool power_of_two = false;
  };
  std::optional<CurrentScaling> current_scaling() const;

  /// Plans the quantized layouts and their scales; both layouts share a scale per tensor.
  void plan(MemoryPlan& plan, Planned<Operand>& operand, const OperandMemory& memory) const;
  /// What the producer of the operand is asked to write in a pass. `sums`: bias gradient that the producer may add.
  OperandRequest request(const Operand& operand, QuantizeMode mode, const ColumnSums& sums = {}) const;
  /// For an operand of experts: what complete() would quantize in this mode.
  ExpertsRequest experts_request(const Operand& operand, QuantizeMode mode) const;
  /// Computes what the producer has not written: quantizes, adds the column sums, records the amax when calibrating.
  ReadyOperand complete(const Context& context, Operand operand, const ProducedOperand& produced,
                        QuantizeMode mode, const ColumnSums& sums = {}) const;
  /// The same for an operand whose producer has written a layout for each GEMM of the mode.
  static ReadyOperand complete_quantized(const Operand& operand, const QuantizeMode& mode);
  /// complete() in two parts for an operand with quantized_by_senders(): the outputs for finalize_expert_scales(), and
  /// complete() for the values that senders have quantized with its scales.
  kernels::Fp8Output sent_output(const Operand& operand, QuantizeMode mode) const;
  ReadyOperand complete_received(const Context& context, const Operand& operand, const Tensor& received,
                                 QuantizeMode mode) const;
  /// Computes one layout of a completed operand whose values have not changed, with the same scale. Nothing in
  /// high-precision passes. `from_rowwise`: the row-wise layout is valid, so that a columnwise layout that is its
  /// transpose needs no quantization. Without high-precision values, columnwise scales of blocks are valid, too.
  void add_rowwise(const Context& context, Operand operand, ReadyOperand& ready) const;
  void add_columnwise(const Context& context, Operand operand, ReadyOperand& ready, bool from_rowwise) const;

  /// Registers a weight that the data-parallel ranks quantize in shards, before the plan of ShardedWeightQuantizer.
  /// Returns its number there.
  int register_sharded() const;
  /// Replaces complete() for such a weight after its row-wise layout has been gathered.
  ReadyOperand complete_gathered(const Context& context, const Operand& weight, int number,
                                 QuantizeMode mode) const;

 private:
  friend class Recipe;
  bool observed() const;
  bool producers_quantize() const;
  ScaleSource source() const;
  /// Where the amax for a current scale is stored; fp32 [1].
  float* current_amax() const;
  QuantizeMode mode_of(const Operand& operand, QuantizeMode mode) const;
  kernels::Fp8Output output_of(const Operand& operand, QuantizeMode mode) const;
  void quantize(const Context& context, const Operand& operand, QuantizeMode mode,
                const ColumnSums& sums) const;
  std::function<void(const Context&, const Tensor&)> amax_reduction() const;
  void quantize_layout(const Context& context, Operand operand, kernels::Matrix Operand::*layout,
                       QuantizeMode mode, const ColumnSums& sums) const;
  bool quantize_small(const Context& context, const Operand& operand, QuantizeMode mode) const;
  void quantize_experts(const Context& context, const Operand& operand, QuantizeMode mode) const;
  /// `row_blocks`: of rows of experts, not of weights.
  kernels::QuantizeGroups groups_of(const Operand& operand, const QuantizeMode& mode, bool row_blocks) const;
  void bypass(const Context& context, const Operand& operand, QuantizeMode mode,
              const ColumnSums& sums) const;

  Recipe* recipe_ = nullptr;
  const Scaling* scaling_ = nullptr;  ///< null: neither quantized nor calibrated, as with index_ = -1
  int index_ = -1;                    ///< row of the ScaleTable; of experts the first row
  int experts_ = 0;                   ///< 0: not of experts
  OperandLayouts layouts_;
  int observer_index_ = -1;  ///< index in the observer; -1: not observed, as experts
};

}  // namespace te::fp8
