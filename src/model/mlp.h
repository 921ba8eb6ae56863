// The MLP sublayer of a transformer layer, between its norm and the residual add:
//   y = linear_fc2(activation(linear_fc1(x)))
//
// The activation is linear_fc2's operand, and its gradient linear_fc1's. Beside a high-precision GEMM it is part of
// that GEMM's epilogue (kernels/gemm/gemm_activation.h). Behind a quantized one it is, too, where an operand has one
// scale, and casts what it makes there (ColumnParallelLinear::takes_activation()); its gradient in front of a quantized
// one is a pass of its own (fuses_activation()). Both are asked pass by pass: BF16 steps of an FP8 run are those of a
// BF16 run.
#pragma once

#include <string>

#include "model/self_attention.h"

namespace te::model {

class Mlp {
 public:
  Mlp(const std::string& layer_name, int index, const LayerConfig& config,
      parameters::ParameterStore& parameters, Recipe& recipe, parallel::TensorParallel& tensor);

  /// What a microbatch leaves for the backward pass.
  struct Activations {
    Operand fc1_input;
    Tensor fc1_out;  ///< [tokens, fc1 width]
    Operand fc2_input;
    /// The inputs' quantized forms have one memory, so that of fc2 is made when fc1's GEMM has ended.
    bool inputs_share_memory = false;
  };
  /// The gradients of the linears' outputs during a backward pass.
  struct Gradients {
    Operand fc1, fc2;
    bool fc1_in_place =
        false;  ///< fc1.high_precision is the memory of fc1_out, which nobody reads after the activation's gradient
  };
  void plan_weights(MemoryPlan& plan, bool training);
  void plan_scratch(MemoryPlan& plan);
  void plan_activations(MemoryPlan& plan, Activations& activations) const;
  void plan_gradients(MemoryPlan& plan, Gradients& gradients, bool deferred) const;
  void quantize_weights(const Context& context, bool count);
  /// The inputs' quantized forms in memory that they share: for passes that keep nothing.
  void share_input_forms(Activations& a, const Tensor& values, const Tensor& scales) const;

  /// For the producer of x.
  Target input_target(Activations& a, const Pass& pass) {
    return linear_fc1_.input_target(a.fc1_input, pass);
  }
  /// y [stream, hidden] from the input that was written to the target.
  void forward(const Context& context, Activations& a, const Tensor& y, const Pass& pass);

  /// linear_fc1 with the activation.
  kernels::MegakernelGemm megakernel_fc1() const;
  kernels::MegakernelGemm megakernel_fc2() const { return linear_fc2_.megakernel_gemm(); }

  /// For the producer of dy, which keeps it itself.
  Target grad_target(Gradients& g, const Pass& pass) const { return linear_fc2_.grad_target(g.fc2, pass); }
  /// dx [stream, hidden] from dy [stream, hidden]; begins in Step::fc2_backward.
  void backward(const Context& context, const Tensor& dy, Activations& a, Gradients& g, const Tensor& dx,
                const Pass& pass, bool deferred, const RecomputeInput& recompute_input);
  void wgrad(const Context& context, const Activations& a, const Gradients& g) const;

 private:
  static bool fuses_activation(const Linear& linear) { return !linear.runs_quantized(); }
  /// In some passes of the run at least, for which memory is planned.
  static bool can_fuse_activation(const Linear& linear) { return linear.may_run_unquantized(); }
  void run_activation(const Context& context, const Activations& a, Target y) const;
  LinearUse fc1_use() const;
  LinearUse fc2_use() const;

  std::string name_;
  Dimensions dims_;
  config::Recompute recompute_;
  config::Fp8KeptWeights kept_weights_;
  kernels::ActivationKind kind_;
  float clamp_;  ///< of a clamped kind
  ColumnParallelLinear linear_fc1_;
  RowParallelLinear linear_fc2_;
  Tensor d_act_;  ///< scratch [tokens, ffn]: gradient of linear_fc2's input
};

}  // namespace te::model
