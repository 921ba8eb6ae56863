// A linear layer y = x W^T + b, whose three GEMMs (fprop, dgrad, wgrad) run in the precision its quantizers give
// them, on this rank's part of W. How the parts make a whole is in parallel_linear.h.
//
// The producer of x asks input_target() where to write, so that it can write FP8 in its own pass; the same holds for
// the producer of dy and grad_target() (fp8/operand.h). What a producer cannot do, the linear completes before its
// GEMM.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/device.h"
#include "fp8/recipe.h"
#include "kernels/activation/activation.h"
#include "kernels/gemm/decode_megakernel.h"
#include "kernels/quantize/quantize.h"
#include "model/dimensions.h"
#include "model/pass.h"
#include "parameters/parameter_store.h"

namespace te::model {

using fp8::ColumnSums;
using fp8::Operand;
using fp8::Output;
using fp8::Recipe;
using fp8::Target;

/// Writes a sublayer's input again, in a recomputed pass. Empty: the input was kept.
using RecomputeInput = std::function<void(Target)>;

/// The activation beside a GEMM (kernels/gemm/gemm_activation.h): behind linear_fc1's fprop, whose result it takes, or
/// in front of linear_fc2's dgrad, whose result is its gradient. Empty: none.
struct EpilogueActivation {
  kernels::ActivationKind kind = kernels::ActivationKind::swiglu;
  Output y;         ///< out [tokens, ffn]: the activation's result; backward optional, and not cast
  Tensor x;         ///< backward [tokens, fc1]: what the activation took
  Output dx;        ///< backward: out [tokens, fc1] and its column sums
  float clamp = 0;  ///< of a clamped kind
  bool forward() const { return (y.high_precision || y.fp8) && !x; }
  bool backward() const { return static_cast<bool>(x); }
};

/// How a layer uses a linear, from which follows what of its operands lives how long.
struct LinearUse {
  const Dimensions& dims;
  config::Recompute recompute;
  Step input;  ///< x is made
  Step forward;
  Lifetime grad;  ///< dy is made and used
  Step backward;
  config::Fp8KeptWeights weights = config::Fp8KeptWeights::both;

  /// What of x is used up at once, in either pass.
  Lifetime input_life() const;
  /// What of x the backward pass reads; empty: memory of its own.
  Lifetime saved_life() const;
};

class Linear {
 public:
  struct Spec {
    std::string name;  ///< "layers.3.mlp.linear_fc1"
    int layer = 0;
    parameters::ParameterShard weight;  ///< of [out, in]
    std::vector<int64_t> matrices{};    ///< as ParameterSpec has them
    bool bias = false;
    parameters::ParameterShard bias_shard;  ///< of [out]
    parameters::Sharing bias_sharing = parameters::Sharing::sharded;
    float init_std = 0.02f;
  };
  Linear(const Spec& spec, parameters::ParameterStore& parameters, fp8::Recipe& recipe,
         parallel::TensorParallel& tensor);
  /// The same with a weight that exists already (the spec's shapes are not looked at), and no bias.
  Linear(Spec spec, parameters::Parameter* weight, fp8::Recipe& recipe, parallel::TensorParallel& tensor);
  Linear(const Linear&) = delete;

  /// After the store's plan. Quantized forms of the weight: kept, or scratch of the steps whose GEMM reads them.
  /// Without training there are no column-wise ones, and the others are kept.
  void plan_weights(MemoryPlan& plan, const LinearUse& use, bool training);
  /// Finds the weight's scale and casts it to the forms that are kept; after every change of it, before the first pass
  /// that uses it, and between layers. `count`: add to the saturation counters. A weight that travels as bytes has been
  /// cast, and counted, before it was gathered (ModelStage::quantize_sharded_weights).
  void quantize_weight(const Context& context, bool count = false);
  /// dW += dy^T x, straight into the main gradient, which the first GEMM of a step writes; both operands complete.
  void wgrad(const Context& context, const Operand& grad, const Operand& input) const;

  /// True when one of the GEMMs reads quantized operands.
  bool quantized() const {
    return input_quantizer_.enabled() || weight_quantizer_.enabled() || grad_quantizer_.enabled();
  }
  /// The same of the passes that run now, of a run of both precisions.
  bool runs_quantized() const {
    return quantized() && !input_quantizer_.in_high_precision() && !weight_quantizer_.in_high_precision() &&
           !grad_quantizer_.in_high_precision();
  }
  /// True when passes may come in which it is not quantized: planning is for both.
  bool can_run_unquantized() const {
    return !quantized() || input_quantizer_.keeps_high_precision() ||
           weight_quantizer_.keeps_high_precision() || grad_quantizer_.keeps_high_precision();
  }
  /// The input's quantized form in memory that inputs of several linears share; empty where fprop reads high precision.
  kernels::Matrix input_layout(const Tensor& values, const Tensor& scales, int64_t rows) const {
    return input_quantizer_.rowwise_in(values, scales, rows, in());
  }
  /// For decode_megakernel(), without input, norm, activation and result: a GEMM like fprop's. Its weight is empty
  /// where the input is cast otherwise than with one scale of its own.
  kernels::MegakernelGemm megakernel_gemm() const;
  parameters::Parameter* weight() const { return weight_; }
  parameters::Parameter* bias() const { return bias_; }
  int64_t in() const { return weight_->shape[1]; }
  int64_t out() const { return weight_->shape[0]; }

 protected:
  /// Storage of an input of all tokens. `high_precision_exists`: the caller has already planned input.high_precision,
  /// or nobody needs it.
  void plan_operand(MemoryPlan& plan, Operand& input, const LinearUse& use, bool high_precision_exists) const;
  /// Storage of dy; `deferred`: what wgrad needs has memory of its own. `high_precision`: nobody else has its
  /// high-precision form.
  void plan_grad_operand(MemoryPlan& plan, Operand& grad, const LinearUse& use, bool deferred,
                         bool high_precision) const;
  /// `sums`: when b's gradient may be added up.
  void plan_column_sums(MemoryPlan& plan, const Dimensions& dims, Lifetime sums);

  /// What a pass asks for of an input: one that is made again before wgrad reads it needs no column-wise form until
  /// then.
  fp8::QuantizeMode input_mode(const Pass& pass) const;
  /// And of an input that is made again for wgrad alone.
  static fp8::QuantizeMode wgrad_input_mode(const Pass& pass) {
    fp8::QuantizeMode mode = pass.quantize_mode();
    mode.rowwise = false;
    return mode;
  }
  /// Makes the form that fprop reads, and the one of dgrad, where it is not kept; in the step that plan_weights() was
  /// told.
  void prepare_fprop_weight(const Context& context);
  void prepare_dgrad_weight(const Context& context);

  /// Rows [first, first + count) of y = x W^T (+ b); and of dx = dy W. With an activation also those of its output, all
  /// rows at once where that is cast; or, of high-precision GEMMs, those of its gradient, and dx is then scratch.
  void fprop(const Context& context, const Operand& input, const Tensor& y, int64_t first, int64_t count,
             bool with_bias, const EpilogueActivation& activation = {}) const;
  void dgrad(const Context& context, const Operand& grad, const Tensor& dx, int64_t first, int64_t count,
             const EpilogueActivation& activation = {}) const;
  /// b's gradient += column sums of dy.
  ColumnSums bias_sums() const {
    return bias_ != nullptr ? ColumnSums{bias_->grad, column_sums_} : ColumnSums{};
  }

  Spec spec_;
  parallel::TensorParallel& tensor_;
  parameters::Parameter* weight_ = nullptr;
  parameters::Parameter* bias_ = nullptr;
  fp8::Quantizer input_quantizer_, weight_quantizer_, grad_quantizer_;
  Operand weight_operand_;
  /// The weight's forms that stay from one quantize_weight() to the next.
  bool keeps_rowwise_ = true, keeps_columnwise_ = true;
  bool recomputes_input_ = false;  ///< in the backward pass
  bool early_weight_ = false;      ///< it changes between passes only: Gemm::early_b
  Tensor column_sums_;             ///< scratch: partial sums of b's gradient
};

}  // namespace te::model
