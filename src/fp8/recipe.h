// An FP8 recipe decides which operands of the linear layers are FP8, and with which scale. The model asks it
// for a Quantizer per operand and never looks behind it: `off` is just another recipe.
//
//   off         operands stay in the model's dtype; with fp8_calibrate their amax is recorded as by `delayed`
//   delayed     the scale of step n comes from the amaxes of the steps before it, so the kernel that produces
//               an operand casts it in the same pass; what has outgrown that scale is cast again with its own
//   tensorwise  the scale comes from the tensor itself: an amax pass, then the cast; no state
//   rowwise     likewise a scale per token (activations, gradients) and per output channel (weights), and of the
//               columnwise forms per channel and per input channel; no state, nothing to communicate
//   blockwise   likewise per 1 x 128 values (activations, gradients) and 128 x 128 (weights): DeepSeek-V3's recipe
//
// State is updated once per optimizer step (update()), never by evaluation, recomputation or a skipped step.
// Scales are therefore constant within a step, and a recomputed forward pass sees what the first one saw.
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

/// What a pass may do to the state besides reading scales, and which forms it needs.
struct QuantizeMode {
  bool record_amax = false;  ///< training passes only
  bool count = false;        ///< add to the saturation counters
  bool columnwise = true;    ///< false: no GEMM will contract over the rows (evaluation)
  /// False: fprop or dgrad has been run already, and only wgrad will read the operand. complete() looks at it,
  /// producers write what they are asked for.
  bool rowwise = true;
  /// Forms of values that have been cast before and have not changed: their scale is found (Operand::scale where there
  /// is one), their amax recorded.
  bool reuse_scale = false;
  /// A recomputed pass: values that the microbatch's first pass has cast. Where Operand::scale is kept it is
  /// `reuse_scale`.
  bool is_recompute = false;
};

/// What a linear asks for when an operand's quantized form is planned.
struct OperandMemory {
  std::string name;  ///< "layers.0.mlp.linear_fc1.input"
  int64_t rows = 0, cols = 0;
  MemoryKind values = MemoryKind::activations, scales = MemoryKind::activations;
  Lifetime rowwise, columnwise;  ///< of the forms' values; empty: memory of their own
  bool has_columnwise = true;
  bool keeps_scale = false;  ///< a form is made again behind the cast: Operand::scale
  bool has_rowwise = true;   ///< false: the row-wise values are somebody else's memory
};

class Recipe;

/// What the GEMMs that read an operand want of it.
struct OperandLayouts {
  bool rowwise = true, columnwise = true;  ///< quantized
  bool high_precision = false;             ///< high precision, too: not all of its GEMMs are quantized
};

/// One operand of one linear layer, and what its recipe does with it. Cheap to copy.
class Quantizer {
 public:
  Quantizer() = default;
  Quantizer(Recipe* recipe, int index, OperandLayouts layouts, int observer_index)
      : recipe_(recipe), index_(index), layouts_(layouts), observer_index_(observer_index) {}

  /// True when the recipe quantizes the operand in this layer, for one of its GEMMs at least.
  bool enabled() const;
  /// True when the form exists that GEMMs over the rows read (wgrad), likewise over the columns.
  bool columnwise() const { return enabled() && layouts_.columnwise; }
  bool rowwise() const { return enabled() && layouts_.rowwise; }
  /// True when no GEMM reads high precision, and the column-wise form is the row-wise one's transpose.
  bool transposes() const;
  DType format() const;
  /// True when the row-wise form is quantized, with one scale.
  bool has_one_scale() const { return rowwise() && scale_layout() == kernels::ScaleLayout::tensor; }
  /// True when producers of the operand can write its quantized form: then it needs no high-precision copy.
  bool fused() const;
  /// True when passes in high precision may come (Recipe::keep_high_precision): its values are kept as if it were not
  /// cast.
  bool keeps_high_precision() const;
  /// True while the passes of such a run are in high precision.
  bool in_high_precision() const;
  /// True when the ranks of sequence parallelism exchange quantized rows of an operand of so many tokens, false when
  /// high-precision ones.
  bool gathers_quantized(const parallel::TensorParallel& ranks, int64_t tokens) const;

  /// How the operand is cast with the one scale that its own values ask for; empty: otherwise, or not at all.
  struct CurrentScaling {
    int margin = 0;
    bool power_of_two = false;
  };
  std::optional<CurrentScaling> current_scaling() const;

  /// The row-wise form of [rows, cols] in memory that somebody else owns; empty where GEMMs read high precision.
  kernels::Matrix rowwise_in(const Tensor& values, const Tensor& scales, int64_t rows, int64_t cols) const;
  /// Storage of the quantized forms; nothing where the recipe keeps high precision.
  void plan(MemoryPlan& plan, Operand& operand, const OperandMemory& memory) const;
  /// A pass begins to make the operand: where its producer writes. `sums`: what the producer may do for the bias.
  Target target(Operand& operand, QuantizeMode mode, const ColumnSums& sums = {}) const;
  /// The same for a producer that has only a part of the operand's rows: it can add its rows' sums, not cast.
  static Target target_of_shard(Operand& operand, const ColumnSums& sums);
  /// Does what the producer has not done: casts, adds the column sums, records the amax when calibrating. Then GEMMs
  /// may read the operand.
  void complete(const Context& context, Operand& operand, QuantizeMode mode,
                const ColumnSums& sums = {}) const;

  /// Makes one form of a completed operand again, whose values have not changed: the same bits. With `from_rowwise` its
  /// row-wise form is there and saves a cast where the column-wise one is its transpose.
  void recompute_rowwise(const Context& context, Operand& operand) const;
  void recompute_columnwise(const Context& context, Operand& operand, bool from_rowwise) const;

  /// Before the plan of ShardedWeightQuantizer: the operand is a weight that the data ranks cast together. Returns its
  /// number there.
  int register_sharded() const;
  /// In place of complete(), of such a weight: its row-wise form has been gathered.
  void complete_gathered(const Context& context, Operand& weight, int number, QuantizeMode mode) const;

  /// With sequence parallelism: scratch for gathers of an operand [tokens, cols]; none where high-precision rows
  /// travel. Where the operand keeps high-precision values (keeps_high_precision()), which passes in FP8 do not need,
  /// forms with scales of 128 values travel in their memory.
  void plan_shard(MemoryPlan& plan, ShardMemory& memory, const std::string& name,
                  const parallel::TensorParallel& ranks, int64_t tokens, int64_t cols,
                  Lifetime lifetime) const;
  /// This rank's rows of `full`: values high_precision, and memory for their cast.
  Operand shard_of(const Operand& full, const Tensor& high_precision, const parallel::TensorParallel& ranks,
                   ShardMemory& memory) const;
  /// Completes `full`, [tokens, cols], from the tensor ranks' shares, and runs `work` on its rows as they arrive.
  /// Without work the mode may ask for the column-wise form alone.
  void gather(const Context& context, parallel::TensorParallel& ranks, const ShardMemory& memory,
              Operand& shard, Operand& full, QuantizeMode mode, const parallel::TensorParallel::Work& work,
              const ColumnSums& sums = {}) const;

 private:
  kernels::ScaleLayout scale_layout() const;
  QuantizeMode mode_of(const Operand& operand, QuantizeMode mode) const;
  void quantize_layout(const Context& context, const Operand& operand, kernels::Matrix Operand::*form,
                       QuantizeMode mode, const ColumnSums& sums) const;

  Recipe* recipe_ = nullptr;
  int index_ = -1;  ///< row of the ScaleTable; -1 = not FP8 and not calibrated
  OperandLayouts layouts_;
  int observer_index_ = -1;  ///< the observer's number of the operand
};

class Recipe {
 public:
  virtual ~Recipe() = default;

  /// In place of a layer's index: the output layer, which is FP8 if fp8_output_layer says so.
  static constexpr int kOutputLayer = -1;

  /// The quantizer of an operand; config::linear_precision says what of it is quantized in this layer, and how.
  Quantizer quantizer(const std::string& linear_name, int layer, OperandRole role);

  virtual const char* name() const = 0;
  /// True when operands are cast to FP8 at all.
  virtual bool quantizes() const = 0;
  virtual bool fused() const { return false; }
  /// True when a rank of sequence parallelism can cast its tokens, of so many of all ranks, by itself: with one scale a
  /// tensor, on which ranks agree, or of groups that lie within a rank's tokens (fp8/gathered_groups.h).
  virtual bool gathers_quantized(const parallel::TensorParallel& /*ranks*/, int64_t /*tokens*/) const {
    return true;
  }
  /// True when casts may have to be made again, because their scales are found or guessed before the values.
  virtual bool requantizes() const { return false; }
  /// Which values of an operand's forms share a scale.
  virtual kernels::ScaleLayout scale_layout(OperandRole) const { return kernels::ScaleLayout::tensor; }
  /// True when the first scales have to be found by passes before the first step (begin_calibration).
  virtual bool needs_calibration() const { return false; }
  /// Until end_calibration() each operand is cast with the scale that its own values ask for, whatever the state says,
  /// and its amax is recorded: one pass finds the scales of a model of any depth. Then update().
  virtual void begin_calibration() { calibrating_ = true; }
  virtual void end_calibration() { calibrating_ = false; }

  /// The ranks with which this one shares tensors: parts of one tensor (`tensor`), and all that run the same layers
  /// (`stage`). An amax is that of the whole tensor, so scales agree on all of them. Ranks of other pipeline stages
  /// have other layers and take no part.
  void set_amax_groups(parallel::Communicator& tensor, parallel::Communicator& stage);

  /// Before the plan: operands get the memory of both precisions, so that set_high_precision() is possible.
  void keep_high_precision() { shared_->keeps_high_precision = true; }
  /// From here on passes run as with the recipe `off`, and state that hangs on amaxes goes on from these. All weights
  /// must be announced as changed.
  void set_high_precision(bool on);
  /// For passes whose launches are recorded and repeated: no cast takes turns with another (Fp8Requantize), so operands
  /// with scales of their own are cast by complete(), in one launch. One rank; only operands of
  /// kernels::kMaxSmallElements at most may be recorded. Before the first pass.
  void use_single_amax_buffer() { shared_->single_amax_buffer = true; }
  bool high_precision() const { return shared_->high_precision; }
  /// For tests of what an outlier does to all other values: scales of the inputs of linear_fc2 are those of a tensor
  /// with a value 2^log2 times as large as its largest. 0: no more. Waits for the device.
  void set_test_outlier(const Context& context, int log2);
  int test_outlier() const { return shared_->outlier_log2; }

  void plan(MemoryPlan& plan);
  void reset(const Context& context) {
    shared_->table.reset(context);
    shared_->sharded_weights.bind(context);
  }
  /// Once per optimizer step, after the update of the weights. *skip != 0 (device flag) leaves the state
  /// as it was.
  virtual void update(const Context& context, const int32_t* skip);

  /// Weights that data ranks cast together, and the ranks that have parts of them.
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

  /// In place of cast() while passes run in high precision: what it leaves to the state, and the column sums.
  virtual void bypass_quantization(const Context& context, int index, Operand& operand, QuantizeMode mode,
                                   const ColumnSums& sums);
  /// Of an operand's scales.
  int margin_of(int index) const;
  /// Plans the scales of the operand's forms, whose values are planned. One scale of the whole tensor serves both
  /// forms.
  void plan_scales(MemoryPlan& plan, int index, OperandLayouts layouts, Operand& operand,
                   const OperandMemory& memory) const;
  /// What the next cast of the operand does about its scale (kernels/quantize/fp8_output.h, Fp8Requantize): takes the
  /// one that it is given, corrects that, or finds it.
  enum class CastScale : uint8_t { given, corrected, current };
  virtual CastScale cast_scale(int) const { return CastScale::given; }
  /// True when scales of tensors' own are powers of two, and the last one is the next one's guess.
  virtual bool has_power_of_two_scales() const { return false; }
  /// Where an amax is left that has been found for a scale of the tensor's own.
  virtual Tensor current_amax_of(int index) const { return table().amax_of(index); }
  /// True when there are casts of two launches.
  bool has_cast_states() const {
    return quantizes() && scale_layout(OperandRole::input) == kernels::ScaleLayout::tensor;
  }
  /// The scale with which the operand has been cast last, where it has one of the tensor.
  const float* last_scale(int index) const {
    return cast_scale(index) == CastScale::corrected ? &table().cast_state_of(index)->scale
                                                     : table().scale_of(index).as<float>();
  }
  /// What a producer or a cast of a tensor with one scale writes. A scale of its own is left in the table's row; all
  /// tensor ranks, which hold parts of it, agree on that.
  kernels::Fp8Output output_of(int index, const Operand& operand, QuantizeMode mode) const;
  void cast_tensor(const Context& context, int index, Operand& operand, QuantizeMode mode,
                   const ColumnSums& sums);
  bool cast_small(const Context& context, int index, Operand& operand, QuantizeMode mode);
  /// Makes the quantized forms from operand.high_precision and adds its column sums, if they are asked for.
  virtual void cast(const Context& context, int index, Operand& operand, QuantizeMode mode,
                    const ColumnSums& sums) = 0;
  virtual int history_len() const { return 0; }
  /// amax = its maximum over the group; infinities and NaN survive.
  static void reduce_amax(const Context& context, parallel::Communicator* group, const Tensor& amax);
  /// The update of recipes without state: the step's amaxes go to the log, which names those of whole tensors.
  void log_amaxes(const Context& context);
  /// InternalError when the ranks of the stage hold different scales. It waits for the device: debug builds only.
  void check_scales_agree(const Context& context) const;

  config::PrecisionConfig precision_;
  int num_layers_ = 0;
  bool calibrating_ = false;
  /// Who casts the operands of a linear: this recipe, or the one that an override names.
  virtual Recipe& recipe_of(config::Fp8Recipe) { return *this; }

  /// What the recipes of one model have in common.
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

/// The same precision with a recipe that needs no state: for generation and evaluation of any checkpoint.
config::PrecisionConfig stateless_precision(config::PrecisionConfig precision);

}  // namespace te::fp8
