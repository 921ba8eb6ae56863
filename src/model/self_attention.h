// The attention sublayer of a transformer layer, between its norm and the residual add:
//   y = linear_proj(attention(rotary(linear_qkv(x))))
#pragma once

#include <functional>
#include <string>

#include "model/attention.h"
#include "model/parallel_linear.h"

namespace te::model {

/// Makes a sublayer's input again, in a recomputed pass. Empty: the input was kept.
using RemakeInput = std::function<void(Target)>;

class SelfAttention {
 public:
  SelfAttention(const std::string& layer_name, int index, const config::Config& config,
                parameters::ParameterStore& parameters, Recipe& recipe, const RopeTables& rope,
                parallel::TensorParallel& tensor);

  /// What a microbatch leaves for the backward pass.
  struct Activations {
    Operand qkv_input;
    Tensor qkv;                    ///< [tokens, (heads + 2 groups) * head_dim], rotated
    Tensor lse;                    ///< [batch, heads, seq] fp32
    Operand proj_input;            ///< hp is the attention output
    kernels::KeyValueCache cache;  ///< of passes with cached rows
  };
  /// The gradients of the linears' outputs during a backward pass.
  struct Gradients {
    Operand qkv, proj;
  };
  void plan_weights(MemoryPlan& plan, Scratch& scratch);
  /// `saved`: what the norm and attention produced is kept, else made again.
  void plan_activations(MemoryPlan& plan, Activations& activations, Scratch& scratch, bool saved) const;
  void plan_gradients(MemoryPlan& plan, Gradients& gradients, Scratch& scratch, bool deferred) const;
  void quantize_weights(const Context& context, bool count);
  bool quantized() const { return linear_qkv_.quantized(); }

  /// For the producer of x.
  Target input_target(Activations& a, const Pass& pass) {
    return linear_qkv_.input_target(a.qkv_input, pass);
  }
  /// y [stream, hidden] from the input that was written to the target.
  void forward(const Context& context, Activations& a, const Tensor& y, const Pass& pass,
               const Scratch& scratch);

  /// For the producer of dy, which keeps it itself.
  Target grad_target(Gradients& g, const Pass& pass, const Scratch& scratch) const {
    return linear_proj_.grad_target(g.proj, pass, scratch);
  }
  /// dx [stream, hidden] from dy [stream, hidden].
  void backward(const Context& context, const Tensor& dy, Activations& a, Gradients& g, const Tensor& dx,
                const Pass& pass, const Scratch& scratch, bool deferred, const RemakeInput& remake_input);
  void wgrad(const Context& context, const Activations& a, const Gradients& g) const;

 private:
  std::string name_;
  Dimensions dims_;
  ColumnParallelLinear linear_qkv_;
  DotProductAttention attention_;
  RowParallelLinear linear_proj_;
};

}  // namespace te::model
