// A linear layer y = x W^T + b on this rank's part of W. Its quantizers determine the precision of the three GEMMs
// (fprop, dgrad, wgrad). parallel_linear.h combines the parts of the ranks.
//
// The producer of x serves an input_request(), so that it can quantize x in the same kernel; the producer of dy serves
// a grad_request() (fp8/operand.h). The linear layer completes the rest before its GEMM and returns the operand for
// wgrad.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "fp8/recipe.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm/decode_megakernel.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/quantize.h"
#include "model/dimensions.h"
#include "model/lora_adapter.h"
#include "model/pass.h"
#include "parameters/parameter_store.h"

namespace te::model {

using fp8::ColumnSums;
using fp8::Operand;
using fp8::OperandRequest;
using fp8::ProducedOperand;
using fp8::ReadyOperand;
using fp8::Recipe;

/// Recomputes the input of a sublayer. Empty: the input was saved.
using RecomputeInput = std::function<ProducedOperand(const OperandRequest&)>;

/// The activation in the epilogue of a GEMM (kernels/gemm/gemm_activation.h): applied to the result of linear_fc1's
/// fprop, or its backward pass applied to the result of linear_fc2's dgrad. Empty: none.
struct EpilogueActivation {
  ActivationKind kind = ActivationKind::swiglu;
  ProducedOperand
      y;     ///< out [tokens, ffn]: the activation's result; in the backward pass optional, not quantized
  Tensor x;  ///< backward [tokens, fc1]: the activation's input
  ProducedOperand dx;  ///< backward: out [tokens, fc1] and its column sums
  float clamp = 0;     ///< for clamped kinds
  bool forward() const { return (y.high_precision || y.fp8) && !x; }
  bool backward() const { return static_cast<bool>(x); }
};

/// The GEMMs of y = x W^T without their outputs: rows [first, first + count) of y and of dx = dy W, and dW = dy^T x.
/// Only fprop uses fast accumulation.
kernels::Gemm fprop(const ReadyOperand& input, const ReadyOperand& weight, int64_t first, int64_t count);
kernels::Gemm dgrad(const ReadyOperand& grad, const ReadyOperand& weight, int64_t first, int64_t count);
kernels::Gemm wgrad(const ReadyOperand& grad, const ReadyOperand& input);

/// How a layer uses a linear layer; determines the lifetimes of its operands.
struct LinearUse {
  const Dimensions& dims;
  ScratchTag tag;  ///< of the linear layer: those with the same tag share scratch
  config::Recompute recompute;
  Step input;  ///< produces x
  Step forward;
  Lifetime grad;  ///< of dy
  Step backward;
  config::Fp8KeptWeights weights = config::Fp8KeptWeights::both;
  int64_t rows = 0;      ///< of x and dy, if not one per token
  bool repeats = false;  ///< the backward pass may run the forward pass again (expert_dispatch.h)

  int64_t row_count() const { return rows > 0 ? rows : dims.tokens; }
  /// Lifetime of the parts of x that are not saved for the backward pass.
  Lifetime input_life() const;
  /// Lifetime of the parts of x that the backward pass reads; empty: not scratch.
  Lifetime saved_life() const;
};

class Linear {
 public:
  struct Spec {
    LinearId id;
    std::string name = id.name();
    parameters::ParameterShard weight;  ///< of [out, in]
    std::vector<int64_t> matrices{};    ///< as in ParameterSpec
    int experts = 0;  ///< number of experts whose weights are stacked in this rank's part of W, or 0
    std::optional<ExpertPartition> partition{};  ///< of the experts, or of the shared expert
    GradientGroup group = GradientGroup::dense;
    bool bias = false;
    parameters::ParameterShard bias_shard;  ///< of [out]
    parameters::Sharing bias_sharing = parameters::Sharing::sharded;
    float init_std = 0.02f;
    bool row_parallel = false;
    config::AdapterConfig adapter{};
    const ContextParallel* ranks = nullptr;  ///< null: one rank
    /// Of `matrices`, of one expert: those with an adapter; empty: the layer has none.
    std::vector<size_t> adapted{};
  };
  Linear(const Spec& spec, parameters::ParameterStore& parameters, fp8::Recipe& recipe,
         parallel::TensorParallel& tensor);
  /// The same with an existing weight (the spec's shapes are ignored) and without bias.
  Linear(Spec spec, parameters::Parameter* weight, fp8::Recipe& recipe, parallel::TensorParallel& tensor);
  Linear(const Linear&) = delete;

  /// After the store's plan. Plans the quantized layouts of the weight: kept, or scratch in the steps whose GEMM reads
  /// them. Without training there is no column-wise layout, and the row-wise one is kept.
  void plan_weights(MemoryPlan& plan, const LinearUse& use, bool training);
  /// Computes the weight's scale and quantizes it to the layouts that are kept; nothing if the weight is not trained
  /// and has not changed. Must be called after every change of the weight, before the first pass that uses it, and
  /// between layers. `count`: add to the saturation counters. A weight that is gathered as bytes has already been
  /// quantized and counted (ModelStage::quantize_sharded_weights).
  void quantize_weight(const Context& context, bool count = false);
  /// dW += dy^T x in the main gradient, unless the weight is not trained; the first GEMM of a step overwrites it.
  void wgrad(const Context& context, const ReadyOperand& grad, const ReadyOperand& input) const;

  /// True if one of the GEMMs reads quantized operands.
  bool quantized() const {
    return input_quantizer_.layouts().quantized() || weight_quantizer_.layouts().quantized() ||
           grad_quantizer_.layouts().quantized();
  }
  /// The same for the current passes of a run with both precisions.
  bool runs_quantized() const {
    return quantized() && !input_quantizer_.in_high_precision() && !weight_quantizer_.in_high_precision() &&
           !grad_quantizer_.in_high_precision();
  }
  /// True if some passes may run without quantization; memory is then planned for both precisions.
  bool can_run_unquantized() const {
    return !quantized() || input_quantizer_.keeps_high_precision() ||
           weight_quantizer_.keeps_high_precision() || grad_quantizer_.keeps_high_precision();
  }
  /// The input's quantized layout in memory that inputs of several linear layers share; empty if fprop reads high
  /// precision.
  kernels::Matrix input_layout(const Tensor& values, const Tensor& scales, int64_t rows) const;
  /// For decode_megakernel(): a GEMM like fprop's, without input, norm, activation and result. Its weight is empty if
  /// the input is quantized other than with one current scale.
  kernels::MegakernelGemm megakernel_gemm() const;
  /// True if an epilogue can compute the activation's gradient after dgrad in the current passes, and in some passes of
  /// the run, for which memory is planned. An adapter adds to the results of the GEMMs before an activation reads them.
  bool fuses_backward_activation() const { return !adapter_ && !runs_quantized(); }
  bool can_fuse_backward_activation() const { return !adapter_ && can_run_unquantized(); }
  parameters::Parameter* weight() const { return weight_; }
  parameters::Parameter* bias() const { return bias_; }
  int64_t in() const { return weight_->shape[1]; }
  int64_t out() const { return weight_->shape[0] / std::max(spec_.experts, 1); }  ///< of each expert

 protected:
  enum class Buffer : uint8_t { weight, input, grad_output, high_precision, column_sums, adapter };
  /// Plans an input of all tokens. `high_precision_exists`: the caller has already planned input.high_precision, or it
  /// is not needed.
  void plan_operand(MemoryPlan& plan, Planned<Operand>& input, const LinearUse& use,
                    bool high_precision_exists) const;
  /// Plans dy. `deferred`: the operands of wgrad are not scratch. `high_precision`: no other tensor has the
  /// high-precision values of dy.
  void plan_grad_operand(MemoryPlan& plan, Planned<Operand>& grad, const LinearUse& use, bool deferred,
                         bool high_precision) const;
  /// `sums`: lifetime of the partial sums of b's gradient.
  void plan_column_sums(MemoryPlan& plan, const LinearUse& use, Lifetime sums);

  /// The layouts of an input that a pass needs: an input that is recomputed before wgrad reads it needs no column-wise
  /// layout before that.
  fp8::QuantizeMode input_mode(const Pass& pass) const;
  /// The mode for an input that is recomputed for wgrad only.
  static fp8::QuantizeMode wgrad_input_mode(const Pass& pass) {
    fp8::QuantizeMode mode = pass.quantize_mode();
    mode.rowwise = false;
    return mode;
  }
  /// Points the operand to the codes of a weight whose bytes are gathered.
  void set_gathered_values();
  void quantize_written(const Context& context);
  /// Adds the layout that fprop or dgrad reads to weight_ready_, if it is not kept. Must be called in the step given to
  /// plan_weights().
  void prepare_fprop_weight(const Context& context);
  void prepare_dgrad_weight(const Context& context);

  /// Rows [first, first + count) of y = x W^T (+ b) and of dx = dy W. With an activation, fprop also computes these
  /// rows of its output (all rows at once if the output is quantized). dgrad also computes the gradient of the
  /// activation, in high precision only; dx is then scratch.
  void fprop(const Context& context, const ReadyOperand& input, const Tensor& y, int64_t first, int64_t count,
             bool with_bias, const EpilogueActivation& activation = {}) const;
  void dgrad(const Context& context, const ReadyOperand& grad, const Tensor& dx, int64_t first, int64_t count,
             const EpilogueActivation& activation = {}) const;
  /// The adapter's part of y, dx and the gradients, if there is one; the operands as for fprop, dgrad and wgrad.
  void adapter_fprop(const Context& context, const ReadyOperand& input, const Tensor& y, int64_t first,
                     int64_t count, const Pass& pass, const AdapterRows& rows = {}) const {
    if (adapter_) adapter_->forward(context, input.high_precision, y, first, count, pass, rows);
  }
  void adapter_dgrad(const Context& context, const ReadyOperand& grad, const Tensor& dx, int64_t first,
                     int64_t count, const Pass& pass, const AdapterRows& rows = {}) const {
    if (adapter_) adapter_->dgrad(context, grad.high_precision, dx, first, count, pass, rows);
  }
  void adapter_wgrad(const Context& context, const ReadyOperand& grad, const ReadyOperand& input,
                     const Pass& pass, const AdapterRows& rows = {}) const {
    if (adapter_) adapter_->wgrad(context, grad.high_precision, input.high_precision, pass, rows);
  }
  /// True if the backward pass reads the input.
  bool keeps_input() const { return weight_->trainable || adapter_; }
  /// b's gradient += column sums of dy.
  ColumnSums bias_sums() const {
    return bias_ != nullptr && bias_->trainable ? ColumnSums{bias_->grad, column_sums_} : ColumnSums{};
  }

  Spec spec_;
  parallel::TensorParallel& tensor_;
  parameters::Parameter* weight_ = nullptr;
  parameters::Parameter* bias_ = nullptr;
  std::unique_ptr<LoraAdapter> adapter_;  ///< null: none
  fp8::Quantizer input_quantizer_, weight_quantizer_, grad_quantizer_;
  Planned<Operand> weight_operand_;
  ReadyOperand weight_ready_;  ///< since quantize_weight()
  /// The weight's layouts that are kept from one quantize_weight() to the next.
  bool keeps_rowwise_ = true, keeps_columnwise_ = true;
  bool recomputes_input_ = false;  ///< in the backward pass
  bool early_weight_ = false;      ///< the weight changes between passes only: Gemm::early_b
  PlannedTensor column_sums_;      ///< scratch: partial sums of b's gradient
};

}  // namespace te::model
