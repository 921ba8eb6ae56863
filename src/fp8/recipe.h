// An FP8 recipe determines which operands of the linear layers are FP8, and with which scales. The model gets a
// Quantizer per operand and does not depend on the recipe; `off` is a recipe, too.
//
//   off         operands stay in the model's dtype; with fp8_calibrate their amax is recorded as by `delayed`
//   delayed     the scale of step n comes from the amaxes of earlier steps, so the kernel that produces an operand can
//               quantize it in the same pass; a tensor that overflows the scale is requantized with its current scale
//   tensorwise  the scale comes from the tensor's current amax: an amax pass, then quantization; no state
//   rowwise     as tensorwise, with a scale per token (activations, gradients) and per output channel (weights); for
//               columnwise layouts per channel and per input channel; no state, no communication
//   blockwise   as tensorwise, with a scale per 1 x 128 values (activations, gradients) and per 128 x 128 values
//               (weights), as in DeepSeek-V3
//
// State changes once per optimizer step (update()), never in evaluation, recomputation or a skipped step. Scales are
// therefore constant within a step, and a recomputed forward pass uses those of the first one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/precision_overrides.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "fp8/gathered_groups.h"
#include "fp8/observer.h"
#include "fp8/operand.h"
#include "fp8/scale_table.h"
#include "fp8/sharded_weight_quantizer.h"
#include "parallel/communicator.h"
#include "parallel/tensor_parallel.h"

namespace te::fp8 {

/// How a pass changes the FP8 state, and which layouts it needs.
struct QuantizeMode {
  bool record_amax = false;  ///< only in training passes
  bool count = false;        ///< add to the saturation counters
  bool columnwise = true;    ///< false: no GEMM contracts over the rows (evaluation)
  /// False: only wgrad will read the operand, because fprop or dgrad has already run. complete() uses it; producers
  /// write the requested outputs.
  bool rowwise = true;
  /// Unchanged values are quantized again with the scale of the first time (Operand::scale, if any); their amax has
  /// been recorded.
  bool reuse_scale = false;
  /// A recomputed pass: the microbatch's first pass has quantized the same values. Implies `reuse_scale` for operands
  /// with Operand::scale.
  bool is_recompute = false;
};

/// Parameters for planning the quantized layouts of an operand.
struct OperandMemory {
  std::string name;  ///< "layers.0.mlp.linear_fc1.input"
  int64_t rows = 0, cols = 0;
  MemoryKind values = MemoryKind::activations, scales = MemoryKind::activations;
  Lifetime rowwise, columnwise;  ///< of the layouts' values; empty: not shared with other tensors
  bool has_columnwise = true;
  bool keeps_scale = false;  ///< a layout is quantized again later, with Operand::scale
  bool has_rowwise = true;   ///< false: the caller provides the memory of the row-wise values
};

class Recipe;

/// The layouts of an operand that its GEMMs read.
struct OperandLayouts {
  bool rowwise = true, columnwise = true;  ///< quantized
  bool high_precision = false;             ///< also high precision: not all of its GEMMs are quantized
};

/// Quantizes one operand of one linear layer by its recipe. Cheap to copy.
class Quantizer {
 public:
  Quantizer() = default;
  Quantizer(Recipe* recipe, int index, OperandLayouts layouts, int observer_index)
      : recipe_(recipe), index_(index), layouts_(layouts), observer_index_(observer_index) {}

  /// True if the recipe quantizes the operand in this layer for at least one of its GEMMs.
  bool enabled() const;
  /// True if the layout exists that GEMMs contracting over the rows read (wgrad); rowwise(): over the columns.
  bool columnwise() const { return enabled() && layouts_.columnwise; }
  bool rowwise() const { return enabled() && layouts_.rowwise; }
  /// True if no GEMM reads high precision and the column-wise layout is the transpose of the row-wise one.
  bool transposes() const;
  DType format() const;
  /// True if the row-wise layout is quantized with one scale per tensor.
  bool has_one_scale() const { return rowwise() && scale_layout() == kernels::ScaleLayout::tensor; }
  /// True if producers of the operand can quantize it; it then needs no high-precision copy.
  bool fused() const;
  /// True if some passes may run in high precision (Recipe::keep_high_precision): high-precision values are kept, too.
  bool keeps_high_precision() const;
  /// True while passes of such a run are in high precision.
  bool in_high_precision() const;
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

  /// The row-wise layout of [rows, cols] in memory of the caller; empty if GEMMs read high precision.
  kernels::Matrix rowwise_in(const Tensor& values, const Tensor& scales, int64_t rows, int64_t cols) const;
  /// Plans the quantized layouts; nothing if the recipe keeps high precision.
  void plan(MemoryPlan& plan, Operand& operand, const OperandMemory& memory) const;
  /// Starts the operand of a pass and returns where its producer writes. `sums`: bias gradient that the producer may
  /// add.
  Target target(Operand& operand, QuantizeMode mode, const ColumnSums& sums = {}) const;
  /// The same for a producer that has only some of the operand's rows: it can add their sums but cannot quantize.
  static Target target_of_shard(Operand& operand, const ColumnSums& sums);
  /// Computes the outputs that the producer has not written: quantizes, adds the column sums, records the amax when
  /// calibrating. Then GEMMs may read the operand.
  void complete(const Context& context, Operand& operand, QuantizeMode mode,
                const ColumnSums& sums = {}) const;

  /// Recomputes one layout of a completed operand whose values have not changed, with the same bits. `from_rowwise`:
  /// the row-wise layout is valid, so that a columnwise layout that is its transpose needs no quantization.
  void recompute_rowwise(const Context& context, Operand& operand) const;
  void recompute_columnwise(const Context& context, Operand& operand, bool from_rowwise) const;

  /// Registers a weight that the data-parallel ranks quantize in shards, before the plan of ShardedWeightQuantizer.
  /// Returns its number there.
  int register_sharded() const;
  /// Replaces complete() for such a weight after its row-wise layout has been gathered.
  void complete_gathered(const Context& context, Operand& weight, int number, QuantizeMode mode) const;

  /// Sequence parallelism: plans scratch for gathering an operand [tokens, cols]; none if high-precision rows are
  /// gathered. If the operand keeps high-precision values (keeps_high_precision()), FP8 passes do not need them, so
  /// layouts with one scale per 128 values are gathered in their memory.
  void plan_shard(MemoryPlan& plan, ShardMemory& memory, const std::string& name,
                  const parallel::TensorParallel& ranks, int64_t tokens, int64_t cols,
                  Lifetime lifetime) const;
  /// This rank's rows of `full`: `high_precision` values and memory for their quantized layouts.
  Operand shard_of(const Operand& full, const Tensor& high_precision, const parallel::TensorParallel& ranks,
                   ShardMemory& memory) const;
  /// Completes `full` [tokens, cols] from the tensor-parallel ranks' shards and runs `work` on its rows as they arrive.
  /// Without work, the mode may request the column-wise layout only.
  void gather(const Context& context, parallel::TensorParallel& ranks, const ShardMemory& memory,
              Operand& shard, Operand& full, QuantizeMode mode, const parallel::TensorParallel::Work& work,
              const ColumnSums& sums = {}) const;

 private:
  kernels::ScaleLayout scale_layout() const;
  QuantizeMode mode_of(const Operand& operand, QuantizeMode mode) const;
  void quantize_layout(const Context& context, const Operand& operand, kernels::Matrix Operand::*form,
                       QuantizeMode mode, const ColumnSums& sums) const;

  Recipe* recipe_ = nullptr;
  int index_ = -1;  ///< row of the ScaleTable; -1: neither quantized nor calibrated
  OperandLayouts layouts_;
  int observer_index_ = -1;  ///< index in the observer
};

class Recipe {
 public:
  virtual ~Recipe() = default;

  /// Creates the quantizer of an operand; config::linear_precision determines its precision in this layer.
  Quantizer quantizer(const LinearId& linear, OperandRole role);

  virtual const char* name() const = 0;
  /// True if the recipe quantizes operands to FP8.
  virtual bool quantizes() const = 0;
  virtual bool fused() const { return false; }
  /// True if a rank of sequence parallelism can quantize its share of the `tokens` tokens: with one scale per tensor,
  /// from an all-reduced amax, or with scales that each cover values of one rank (fp8/gathered_groups.h).
  virtual bool gathers_quantized(const parallel::TensorParallel& /*ranks*/, int64_t /*tokens*/) const {
    return true;
  }
  /// True if tensors may be requantized, because their scales are predicted before the values are known.
  virtual bool requantizes() const { return false; }
  /// Which values of an operand share a scale.
  virtual kernels::ScaleLayout scale_layout(OperandRole) const { return kernels::ScaleLayout::tensor; }
  /// True if calibration passes must initialize the scales before the first step (begin_calibration()).
  virtual bool needs_calibration() const { return false; }
  /// Until end_calibration(), each operand is quantized with its current scale instead of that of the state, and its
  /// amax is recorded. One pass therefore calibrates a model of any depth. Call update() afterwards.
  virtual void begin_calibration() { calibrating_ = true; }
  virtual void end_calibration() { calibrating_ = false; }

  /// Sets the ranks over which amaxes are reduced, so that all have the same scales: ranks with shards of the same
  /// activations (`tensor`), and all ranks of the same pipeline stage (`stage`), which have the same layers.
  void set_amax_groups(parallel::Communicator& tensor, parallel::Communicator& stage);

  /// Before the plan: operands get memory for both precisions, so that set_high_precision() can be called.
  void keep_high_precision() { shared_->keeps_high_precision = true; }
  /// Following passes run as with the recipe `off`; delayed scaling keeps recording amaxes. Call weights_changed() for
  /// all weights afterwards.
  void set_high_precision(bool on);
  /// For passes in CUDA graphs: quantization does not alternate between two amax buffers (Fp8Requantize), so complete()
  /// quantizes operands with current scaling in one launch. For one rank only; captured operands may have at most
  /// kernels::kMaxSmallElements elements. Before the first pass.
  void use_single_amax_buffer() { shared_->single_amax_buffer = true; }
  bool high_precision() const { return shared_->high_precision; }
  /// For tests of the effect of an outlier on all other values: inputs of linear_fc2 get the scale of a tensor whose
  /// amax is 2^log2 times larger. 0 ends the test. Waits for the device.
  void set_test_outlier(const Context& context, int log2);
  int test_outlier() const { return shared_->outlier_log2; }

  void plan(MemoryPlan& plan);
  void reset(const Context& context) {
    shared_->table.reset(context);
    shared_->sharded_weights.bind(context);
  }
  /// Called once per optimizer step, after the weight update. *skip != 0 (device flag): the state does not change.
  virtual void update(const Context& context, const int32_t* skip);

  /// Weights that data-parallel ranks quantize in shards, and the ranks that have the shards.
  ShardedWeightQuantizer& sharded_weights() { return shared_->sharded_weights; }
  parallel::Communicator* stage_ranks() const { return shared_->stage; }
  Observer& observer() { return shared_->observer; }
  ScaleTable& table() { return shared_->table; }
  const ScaleTable& table() const { return shared_->table; }

 protected:
  friend class Quantizer;
  friend class MixedRecipe;
  Recipe(const config::PrecisionConfig& precision, int num_layers)
      : precision_(precision),
        num_layers_(num_layers),
        shared_(std::make_shared<Shared>(Shared{.observer = Observer(precision)})) {}

  /// Replaces cast() while passes run in high precision: records amaxes if the recipe needs them, and adds the column
  /// sums.
  virtual void bypass_quantization(const Context& context, int index, Operand& operand, QuantizeMode mode,
                                   const ColumnSums& sums);
  /// Margin of an operand's scales.
  int margin_of(int index) const;
  /// Plans the scales of the operand's layouts after their values. Both layouts share a scale per tensor.
  void plan_scales(MemoryPlan& plan, int index, OperandLayouts layouts, Operand& operand,
                   const OperandMemory& memory) const;
  /// How quantization of the operand gets its scale (kernels/quantize/fp8_output.h, Fp8Requantize): uses a given scale,
  /// corrects a given scale that overflows, or computes the current scale.
  enum class CastScale : uint8_t { given, corrected, current };
  virtual CastScale cast_scale(int) const { return CastScale::given; }
  /// True if current scales are powers of two, so that the last scale predicts the next one.
  virtual bool has_power_of_two_scales() const { return false; }
  /// Where the amax for a current scale is stored.
  virtual Tensor current_amax_of(int index) const { return table().amax_of(index); }
  /// True if quantization may need two launches.
  bool has_cast_states() const {
    return quantizes() && scale_layout(OperandRole::input) == kernels::ScaleLayout::tensor;
  }
  /// The scale with which the operand was last quantized, if it has one per tensor.
  const float* last_scale(int index) const {
    return cast_scale(index) == CastScale::corrected ? &table().cast_state_of(index)->scale
                                                     : table().scale_of(index).as<float>();
  }
  /// The FP8 output of a kernel for a tensor with one scale. A current scale is stored in the table's row and is equal
  /// on all tensor-parallel ranks, which have parts of the tensor.
  kernels::Fp8Output output_of(int index, const Operand& operand, QuantizeMode mode) const;
  void cast_tensor(const Context& context, int index, Operand& operand, QuantizeMode mode,
                   const ColumnSums& sums);
  bool cast_small(const Context& context, int index, Operand& operand, QuantizeMode mode);
  /// Quantizes operand.high_precision to its layouts and adds its column sums, if requested.
  virtual void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                    const ColumnSums& sums) = 0;
  virtual int history_len() const { return 0; }
  /// amax = its maximum over the group; infinities and NaN are preserved.
  static void reduce_amax(const Context& context, parallel::Communicator* group, const Tensor& amax);
  /// The update of recipes without state: reduces the step's amaxes over the tensor-parallel ranks, for the log.
  void log_amaxes(const Context& context);
  /// InternalError if the ranks of the stage have different scales. Waits for the device, so debug builds only.
  void check_scales_agree(const Context& context) const;

  config::PrecisionConfig precision_;
  int num_layers_ = 0;
  bool calibrating_ = false;
  /// The recipe that quantizes the operands of a linear layer: this one, or that of an override.
  virtual Recipe& recipe_of(config::Fp8Recipe) { return *this; }

  /// State that the recipes of one model share.
  struct Shared {
    bool keeps_high_precision = false, high_precision = false, single_amax_buffer = false;
    int outlier_log2 = 0;
    ScaleTable table;
    ShardedWeightQuantizer sharded_weights;
    Observer observer;
    parallel::Communicator *tensor = nullptr, *stage = nullptr;  ///< null: one rank
  };
  bool has_test_outlier(int index) const;
  std::shared_ptr<Shared> shared_;
  Tensor compared_;  ///< [n] fp32, debug builds
};

std::unique_ptr<Recipe> make_recipe(const config::PrecisionConfig& precision, int num_layers);

/// The same precision with a recipe without state, for generation and evaluation of any checkpoint.
config::PrecisionConfig stateless_precision(config::PrecisionConfig precision);

}  // namespace te::fp8
