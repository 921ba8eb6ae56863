// A linear layer y = x W^T + b, whose three products (fprop, dgrad, wgrad) run in the precision its quantizers give
// them, on this rank's part of W. How the parts make a whole is in parallel_linear.h.
//
// The producer of x asks input_target() where to write, so that it can write FP8 in its own pass; the same holds for
// the producer of dy and grad_target(). What a producer cannot do, the linear completes before its product.
#pragma once

#include <string>

#include "core/device.h"
#include "fp8/recipe.h"
#include "kernels/activation/activation.h"
#include "kernels/quantize/quantize.h"
#include "model/pass.h"
#include "model/scratch.h"
#include "parameters/parameter_store.h"

namespace te::model {

/// Where a producer writes an operand: the high-precision tensor may be empty.
struct OperandTarget {
  Tensor hp;
  kernels::Fp8Output fp8;
};

/// What the producer of a gradient dy can do in its pass for the linear whose dy it is, besides writing it. Empty: nothing.
struct GradExtras {
  Tensor dbias;            ///< += column sums of dy as it is stored
  kernels::Fp8Output fp8;  ///< dy as it is stored, cast
};

/// The activation behind a product y = x W^T + b (kernels/gemm/gemm_activation.h). Empty: none.
struct ActivationOutput {
  kernels::ActivationKind kind = kernels::ActivationKind::swiglu;
  Tensor out;  ///< [tokens, ffn]: the activation of y
  explicit operator bool() const { return static_cast<bool>(out); }
};
/// The gradient of the activation in front of a linear, as part of the linear's dgrad. Empty: none.
struct ActivationGradient {
  kernels::ActivationKind kind = kernels::ActivationKind::swiglu;
  Tensor x;        ///< [tokens, fc1]: what the activation took
  Tensor dx;       ///< out [tokens, fc1]
  Tensor dbias;    ///< optional [fc1]: += column sums of dx
  Tensor scratch;  ///< for dbias, as in kernels::GemmActivationBackward
  Tensor y;        ///< optional out [tokens, ffn]: the activation's result again, from x
  explicit operator bool() const { return static_cast<bool>(dx); }
};

class Linear {
 public:
  struct Spec {
    std::string name;  ///< "layers.3.mlp.linear_fc1"
    int layer = 0;
    parameters::ParameterShard weight;  ///< of [out, in]
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

  /// FP8 copies of the weight, in both orientations.
  void plan_weights(MemoryPlan& plan);
  /// Casts the weight; after every change of it, before the first pass that uses it. `count`: add to the saturation
  /// counters.
  void quantize_weight(const Context& context, bool count = false);
  /// dW += dy^T x, straight into the main gradient, which the first product of a step writes; both operands complete.
  void wgrad(const Context& context, const fp8::Operand& grad, const fp8::Operand& input) const;

  /// True when the products run in FP8.
  bool fp8() const { return input_quantizer_.enabled(); }
  parameters::Parameter* weight() const { return weight_; }
  parameters::Parameter* bias() const { return bias_; }
  int64_t in() const { return weight_->shape[1]; }
  int64_t out() const { return weight_->shape[0]; }

 protected:
  /// Storage of an input of all tokens. `saved`: keep what wgrad needs until the backward pass, else everything is
  /// scratch. `hp_exists`: the caller has already planned input.hp.
  void plan_operand(MemoryPlan& plan, fp8::Operand& input, const Dimensions& dims, Scratch& scratch,
                    bool saved, bool hp_exists) const;
  /// Storage of dy's FP8 form; `deferred`: what wgrad needs has memory of its own.
  void plan_grad_operand(MemoryPlan& plan, fp8::Operand& grad, const Dimensions& dims, Scratch& scratch,
                         bool deferred) const;

  /// Rows [first, first + count) of y = x W^T (+ b); and of dx = dy W. With an activation, which FP8 products do not have,
  /// also those of its output; or those of its gradient, and dx is then scratch.
  void fprop(const Context& context, const fp8::Operand& input, const Tensor& y, int64_t first, int64_t count,
             bool with_bias, const ActivationOutput& activation = {}) const;
  void dgrad(const Context& context, const fp8::Operand& grad, const Tensor& dx, int64_t first, int64_t count,
             const ActivationGradient& activation = {}) const;
  Tensor bias_gradient() const { return bias_ != nullptr ? bias_->grad : Tensor{}; }

  Spec spec_;
  parallel::TensorParallel& tensor_;
  parameters::Parameter* weight_ = nullptr;
  parameters::Parameter* bias_ = nullptr;
  fp8::Quantizer input_quantizer_, weight_quantizer_, grad_quantizer_;
  fp8::Operand weight_operand_;
};

}  // namespace te::model
