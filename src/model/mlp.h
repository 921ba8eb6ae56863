// The MLP sublayer of a transformer layer, between its norm and the residual add:
//   y = linear_fc2(activation(linear_fc1(x)))
//
// The activation's output is linear_fc2's input, and its gradient is linear_fc1's dy. High-precision GEMMs compute the
// activation and its gradient in their epilogue (kernels/gemm/gemm_activation.h). A quantized fprop also computes and
// quantizes the activation in its epilogue if its operands have one scale per tensor
// (ColumnParallelLinear::fuses_forward_activation()); after a quantized dgrad, the gradient of the activation is a
// separate kernel (Linear::fuses_backward_activation()). The choice is made per pass, so BF16 steps of an FP8 run equal
// those of a BF16 run.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "model/feed_forward.h"
#include "model/parallel_linear.h"

namespace te::model {

ActivationKind activation_kind(const config::ModelConfig& model);

class Mlp final : public FeedForward {
 public:
  Mlp(const std::string& layer_name, int index, const LayerConfig& config,
      parameters::ParameterStore& parameters, Recipe& recipe, parallel::TensorParallel& tensor);

  /// Tensors that a microbatch saves for the backward pass.
  struct Activations final : FeedForward::Activations {
    Planned<Operand> fc1_input, fc2_input;
    ReadyOperand fc1_ready, fc2_ready;  ///< the inputs, for wgrad
    PlannedTensor fc1_out;              ///< [tokens, fc1 width]
    /// Both inputs' quantized layouts share memory, so fc2's input is quantized after fc1's GEMM.
    bool inputs_share_memory = false;
  };
  /// The gradients of the linears' outputs during a backward pass.
  struct Gradients final : FeedForward::Gradients {
    Planned<Operand> fc1, fc2;
    ReadyOperand fc1_ready, fc2_ready;  ///< for a deferred wgrad
    bool fc1_in_place =
        false;  ///< fc1's values use the memory of fc1_out, which only the activation's gradient reads
  };
  static Activations& own(FeedForward::Activations& a) { return static_cast<Activations&>(a); }
  static const Activations& own(const FeedForward::Activations& a) {
    return static_cast<const Activations&>(a);
  }
  static Gradients& own(FeedForward::Gradients& g) { return static_cast<Gradients&>(g); }
  static const Gradients& own(const FeedForward::Gradients& g) { return static_cast<const Gradients&>(g); }

  std::unique_ptr<FeedForward::Activations> make_activations() const override {
    return std::make_unique<Activations>();
  }
  std::unique_ptr<FeedForward::Gradients> make_gradients() const override {
    return std::make_unique<Gradients>();
  }
  void plan_weights(MemoryPlan& plan, bool training) override;
  void plan_scratch(MemoryPlan& plan) override;
  void plan_activations(MemoryPlan& plan, FeedForward::Activations& activations) const override;
  void plan_gradients(MemoryPlan& plan, FeedForward::Gradients& gradients, bool deferred) const override;
  void plan_inference(MemoryPlan& plan, FeedForward::Activations& activations, int64_t rows) const override;
  std::unique_ptr<FeedForward::Activations> first_rows(const FeedForward::Activations& activations,
                                                       const Tensor& input, int64_t rows) const override;
  int64_t max_input_width() const override { return std::max(dims_.hidden, dims_.ffn); }
  void share_input_layouts(FeedForward::Activations& activations, const Tensor& values,
                           const Tensor& scales) const override;

  void quantize_weights(const Context& context, bool count) override;
  OperandRequest input_request(FeedForward::Activations& activations, const Pass& pass) override {
    return linear_fc1_.input_request(own(activations).fc1_input, pass);
  }
  void forward(const Context& context, FeedForward::Activations& activations, const ProducedOperand& x,
               const Tensor& y, const Pass& pass) override;
  OperandRequest grad_request(FeedForward::Gradients& gradients, const Pass& pass) const override {
    return linear_fc2_.grad_request(own(gradients).fc2, pass);
  }
  void backward(const Context& context, const ProducedOperand& dy, FeedForward::Activations& activations,
                FeedForward::Gradients& gradients, const Tensor& dx, const Pass& pass, bool deferred,
                const RecomputeInput& recompute_input) override;
  void wgrad(const Context& context, const FeedForward::Activations& activations,
             const FeedForward::Gradients& gradients) const override;
  std::optional<MegakernelGemms> megakernel_gemms(const FeedForward::Activations& activations) const override;

 private:
  ProducedOperand run_activation(const Context& context, const Activations& a,
                                 const OperandRequest& request) const;
  enum class Buffer : uint8_t { linear_fc1, linear_fc2, fc1_out, d_act };
  LinearUse fc1_use() const;
  LinearUse fc2_use() const;

  std::string name_;
  Dimensions dims_;
  config::Recompute recompute_;
  config::Fp8KeptWeights kept_weights_;
  ActivationKind kind_;
  float clamp_;  ///< for clamped kinds
  ColumnParallelLinear linear_fc1_;
  RowParallelLinear linear_fc2_;
  PlannedTensor d_act_;  ///< scratch [tokens, ffn]: gradient of linear_fc2's input
};

}  // namespace te::model
