// A linear layer y = x W^T + b, whose three products (fprop, dgrad, wgrad) run in the precision its
// quantizers give them.
//
// The producer of x asks input_target() where to write, so that it can write FP8 in its own pass; the same
// holds for the producer of dy and grad_target(). What a producer cannot do, the linear completes before its
// product.
#pragma once

#include <string>

#include "core/device.h"
#include "fp8/recipe.h"
#include "kernels/quantize/quantize.h"
#include "model/parameter_store.h"
#include "model/pass.h"
#include "model/scratch.h"

namespace te::model {

/// Where a producer writes an operand: the high-precision tensor may be empty.
struct OperandTarget {
  Tensor hp;
  kernels::Fp8Output fp8;
};

class Linear {
 public:
  struct Spec {
    std::string name;  ///< "layers.3.mlp.linear_fc1"
    int layer = 0;
    int64_t in = 0;
    int64_t out = 0;
    bool bias = false;
    float init_std = 0.02f;
  };
  Linear(Spec spec, ParameterStore& parameters, fp8::Recipe& recipe);
  Linear(const Linear&) = delete;

  /// FP8 copies of the weight, in both orientations.
  void plan_weights(MemoryPlan& plan);
  /// Storage of an input operand of `tokens` rows. `saved`: keep what wgrad needs until the backward pass,
  /// else everything is scratch. `hp_exists`: the caller has already planned input.hp (attention's output).
  void plan_input(MemoryPlan& plan, fp8::Operand& input, const Dimensions& dims, Scratch& scratch, bool saved,
                  bool hp_exists) const;

  OperandTarget input_target(fp8::Operand& input, const Pass& pass) const;
  /// y [tokens, out] = input W^T + b.
  void forward(const Context& context, fp8::Operand& input, const Tensor& y, const Pass& pass,
               const Scratch& scratch);

  /// The target for the producer of dy [tokens, out]; `hp` is where its high-precision form would go. Tells
  /// in `grad.quantized` whether the producer writes FP8.
  OperandTarget grad_target(fp8::Operand& grad, const Tensor& hp, const Scratch& scratch,
                            const Pass& pass) const;
  /// dx [tokens, in] = dy W; W's gradient += dy^T x; b's gradient += column sums of dy, unless the producer
  /// has added them.
  void backward(const Context& context, fp8::Operand& grad, fp8::Operand& input, const Tensor& dx,
                const Pass& pass, const Scratch& scratch);
  /// For a dy that is simply there, in `dy`.
  void backward(const Context& context, const Tensor& dy, fp8::Operand& input, const Tensor& dx,
                const Pass& pass, const Scratch& scratch);

  /// Completes an input for wgrad when it was recomputed and not run through forward().
  void complete_input(const Context& context, fp8::Operand& input, const Pass& pass) const;
  /// Casts the weight; once per optimizer step, before the first pass that uses it. `count`: add to the
  /// saturation counters.
  void quantize_weight(const Context& context, bool count = false);

  /// True when the products run in FP8.
  bool fp8() const { return input_quantizer_.enabled(); }
  Parameter* weight() const { return weight_; }
  Parameter* bias() const { return bias_; }
  const Spec& spec() const { return spec_; }

 private:
  Spec spec_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
  fp8::Quantizer input_quantizer_, weight_quantizer_, grad_quantizer_;
  fp8::Operand weight_operand_;
};

}  // namespace te::model
