// The attention sublayer of a transformer layer, between its norm and the residual add:
//   y = linear_proj(attention(rotary(qk_norm(linear_qkv(x)))))
#pragma once

#include <memory>
#include <string>

#include "model/attention.h"
#include "model/parallel_linear.h"
#include "model/qk_norm.h"

namespace te::model {

class SelfAttention {
 public:
  SelfAttention(const std::string& layer_name, int index, const LayerConfig& config,
                parameters::ParameterStore& parameters, Recipe& recipe, const RopeTables& rope,
                parallel::TensorParallel& tensor, const ContextParallel& ranks);

  /// Tensors that a microbatch saves for the backward pass.
  struct Activations {
    Planned<Operand> qkv_input;
    ReadyOperand qkv_ready, proj_ready;  ///< the linear layers' inputs, for wgrad
    PlannedTensor qkv;  ///< DotProductAttention::kept_shape(): q | k | v, normalized and rotated
    QkNorm::Activations qk_norm;
    PlannedTensor lse;            ///< fp32, DotProductAttention::lse_shape()
    Planned<Operand> proj_input;  ///< high_precision is the attention output
    /// The attention implementation of qkv and lse; plan_activations() sets that of this layer.
    const CoreAttention* core = nullptr;
  };
  /// The gradients of the linears' outputs during a backward pass.
  struct Gradients {
    Planned<Operand> qkv, proj;
    ReadyOperand qkv_ready, proj_ready;  ///< for a deferred wgrad
  };
  void plan_weights(MemoryPlan& plan, bool training, bool deferred);
  void plan_scratch(MemoryPlan& plan, const Context& context);
  void plan_activations(MemoryPlan& plan, Activations& activations) const;
  void plan_gradients(MemoryPlan& plan, Gradients& gradients, bool deferred) const;
  void quantize_weights(const Context& context, bool count);
  bool quantized() const { return linear_qkv_.quantized(); }
  kernels::AttentionKernels attention_kernels(const Context& context) const {
    return attention_.kernels(context);
  }
  /// Places the inputs' quantized layouts in shared memory, for passes that save nothing.
  void share_input_layouts(Activations& a, const Tensor& values, const Tensor& scales) const;

  /// For the producer of x.
  OperandRequest input_request(const Activations& a, const Pass& pass) {
    return linear_qkv_.input_request(a.qkv_input, pass);
  }
  /// y [residual_rows, hidden] from x.
  void forward(const Context& context, Activations& a, const ProducedOperand& x, const Tensor& y,
               const Pass& pass);

  /// The operations between linear_qkv, which writes qkv, and linear_proj, which reads o.
  void attend(const Context& context, Activations& a, const Tensor& qkv, const Tensor& o,
              const Pass& pass) const;
  kernels::MegakernelGemm megakernel_qkv() const { return linear_qkv_.megakernel_gemm(); }
  kernels::MegakernelGemm megakernel_proj() const { return linear_proj_.megakernel_gemm(); }

  /// For the producer of dy, which keeps dy in its own memory.
  OperandRequest grad_request(const Gradients& g, const Pass& pass) const {
    return linear_proj_.grad_request(g.proj, pass);
  }
  /// dx [residual_rows, hidden] from dy [residual_rows, hidden]; starts in Step::proj_backward.
  void backward(const Context& context, const ProducedOperand& dy, Activations& a, Gradients& g,
                const Tensor& dx, const Pass& pass, bool deferred, const RecomputeInput& recompute_input);
  void wgrad(const Context& context, const Activations& a, const Gradients& g) const;

 private:
  enum class Buffer : uint8_t { linear_qkv, linear_proj, qkv, qkv_of_tokens, lse, out, d_out };
  LinearUse qkv_use() const;
  LinearUse proj_use() const;
  ProducedOperand attention_backward(const Context& context, const Activations& a,
                                     const OperandRequest& d_qkv, const Pass& pass) const;

  std::string name_;
  Dimensions dims_;
  config::Recompute recompute_;
  config::Fp8KeptWeights kept_weights_;
  bool requantizes_output_ = false;
  ColumnParallelLinear linear_qkv_;
  std::unique_ptr<QkNorm> qk_norm_;  ///< null: none
  DotProductAttention attention_;
  RowParallelLinear linear_proj_;
  PlannedTensor qkv_;  ///< scratch [tokens, qkv width], only if attention saves qkv in another order
  PlannedTensor d_o_;  ///< scratch [tokens, attention width]: gradient of linear_proj's input
};

}  // namespace te::model
