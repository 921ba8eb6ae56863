// An FP8 recipe decides which operands of the linear layers are FP8, and with which scale. The model asks it
// for a Quantizer per operand and never looks behind it: `off` is just another recipe.
//
//   off         operands stay in the model's dtype; with fp8_calibrate their amax is recorded as by `delayed`
//   delayed     the scale of step n comes from the amaxes of the steps before it, so the kernel that produces
//               an operand casts it in the same pass
//   tensorwise  the scale comes from the tensor itself: an amax pass, then the cast; no state
//
// State is updated once per optimizer step (update()), never by evaluation, recomputation or a skipped step.
// Scales are therefore constant within a step, and a recomputed forward pass sees what the first one saw.
#pragma once

#include <memory>
#include <string>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "fp8/operand.h"
#include "fp8/scale_table.h"
#include "parallel/communicator.h"

namespace te::fp8 {

/// What a pass may do to the state besides reading scales.
struct QuantizeMode {
  bool record_amax = false;  ///< training passes only
  bool count = false;        ///< add to the saturation counters
};

class Recipe;

/// One operand of one linear layer. Cheap to copy.
class Quantizer {
 public:
  Quantizer() = default;
  Quantizer(Recipe* recipe, int index) : recipe_(recipe), index_(index) {}

  /// True when the operand is FP8 in this recipe and layer.
  bool enabled() const;
  DType format() const;
  /// True when the producer of the operand can write FP8 itself: then it needs no high-precision copy.
  bool fused() const;
  /// What the producer shall write besides (or instead of) the high-precision values; empty when not fused().
  kernels::Fp8Output producer_output(const QuantizedTensor& storage, QuantizeMode mode) const;
  /// Makes `operand` ready for its product: casts hp to q unless the producer did, or records the amax when
  /// calibrating. dbias (optional, fp32 [cols]) += column sums of hp; scratch as in kernels::Quantize.
  void complete(const Context& context, Operand& operand, QuantizeMode mode, const Tensor& dbias = {},
                const Tensor& scratch = {}) const;

 private:
  Recipe* recipe_ = nullptr;
  int index_ = -1;  ///< row of the ScaleTable; -1 = not FP8 and not calibrated
};

class Recipe {
 public:
  virtual ~Recipe() = default;

  /// In place of a layer's index: the output layer, which is FP8 if fp8_output_layer says so.
  static constexpr int kOutputLayer = -1;

  /// The quantizer of an operand. `layer` decides about first_layers_bf16 and last_layers_bf16.
  Quantizer quantizer(const std::string& linear_name, int layer, OperandRole role);

  virtual const char* name() const = 0;
  /// True when operands are cast to FP8 at all.
  virtual bool quantizes() const = 0;
  virtual bool fused() const = 0;

  /// The ranks with which this one shares tensors: parts of one tensor (`tensor`), and all that run the same layers
  /// (`stage`). An amax is that of the whole tensor, so scales agree on all of them. Ranks of other pipeline stages have
  /// other layers and take no part.
  void share(parallel::Communicator& tensor, parallel::Communicator& stage);

  void plan(MemoryPlan& plan);
  void reset(const Context& context) { table_.reset(context); }
  /// Once per optimizer step, after the update of the weights. *skip != 0 (device flag) leaves the state
  /// as it was.
  virtual void update(const Context& context, const int32_t* skip);

  ScaleTable& table() { return table_; }
  const ScaleTable& table() const { return table_; }

 protected:
  friend class Quantizer;
  Recipe(const config::PrecisionConfig& precision, int num_layers)
      : precision_(precision), num_layers_(num_layers) {}

  virtual kernels::Fp8Output producer_output(int index, const QuantizedTensor& storage, QuantizeMode mode);
  virtual void complete(const Context& context, int index, Operand& operand, QuantizeMode mode,
                        const Tensor& dbias, const Tensor& scratch) = 0;
  virtual int history_len() const { return 0; }
  /// amax = its maximum over the group; infinities and NaN survive.
  static void reduce_amax(const Context& context, parallel::Communicator* group, const Tensor& amax);
  /// InternalError when the ranks of the stage hold different scales. It waits for the device: debug builds only.
  void check_scales_agree(const Context& context) const;

  config::PrecisionConfig precision_;
  int num_layers_ = 0;
  ScaleTable table_;
  Tensor compared_;                                              ///< [n] fp32, debug builds
  parallel::Communicator *tensor_ = nullptr, *stage_ = nullptr;  ///< null: one rank
};

std::unique_ptr<Recipe> make_recipe(const config::PrecisionConfig& precision, int num_layers);

}  // namespace te::fp8
