// One transformer layer. Its two passes read top to bottom as numbered steps (transformer_layer.cpp).
//
//   x_in      = residual + delta      the previous layer's MLP output joins the residual stream here
//   x_mid     = x_in + linear_proj(attention(linear_qkv(norm(x_in))))
//   delta_out = linear_fc2(activation(linear_fc1(norm(x_mid))))
//
// The residual add of delta_out happens in the next norm's kernel, so a layer hands on the pair
// (x_mid, delta_out).
#pragma once

#include <string>

#include "model/attention.h"
#include "model/norm.h"
#include "model/parallel_linear.h"

namespace te::model {

/// What one microbatch leaves behind in one layer for the backward pass. Which of these have memory of their
/// own and which share the stage's is decided by training.recompute (plan_activations).
struct LayerActivations {
  Tensor x_in;  ///< [stream, hidden]
  Norm::Statistics norm1, norm2;
  fp8::Operand qkv_input;
  Tensor qkv;               ///< [tokens, (heads + 2 groups) * head_dim], rotated
  Tensor lse;               ///< [batch, heads, seq] fp32
  fp8::Operand proj_input;  ///< hp is the attention output
  Tensor x_mid;             ///< [stream, hidden]
  fp8::Operand fc1_input;
  Tensor fc1_out;  ///< [tokens, fc1 width]
  fp8::Operand fc2_input;
  kernels::KeyValueCache cache;  ///< of passes with cached rows
};

/// Where the gradients of the four linears' outputs are during a backward pass: scratch that all layers share, or,
/// where wgrad is put off (zero-bubble schedules), memory of the layer's own for what wgrad will read.
struct LayerGradients {
  fp8::Operand qkv, proj, fc1, fc2;
};

class TransformerLayer;
/// In a backward pass, the layer whose output is this one's input, and its gradients; none where that is another rank's or
/// the embedding's.
struct LayerBelow {
  const TransformerLayer* layer = nullptr;
  LayerGradients* gradients = nullptr;
  /// For the producer of the gradient of its output, right before that runs.
  GradExtras output_grad_extras(const Pass& pass) const;
};

class TransformerLayer {
 public:
  TransformerLayer(int index, const config::Config& config, parameters::ParameterStore& parameters,
                   fp8::Recipe& recipe, const RopeTables& rope, parallel::TensorParallel& tensor);
  TransformerLayer(const TransformerLayer&) = delete;

  void plan_weights(MemoryPlan& plan, Scratch& scratch);
  /// x_in alone: what recompute: full keeps of a layer.
  void plan_input(MemoryPlan& plan, LayerActivations& activations);
  /// Everything else.
  void plan_activations(MemoryPlan& plan, LayerActivations& activations, Scratch& scratch);
  void plan_gradients(MemoryPlan& plan, LayerGradients& gradients, Scratch& scratch, bool deferred) const;
  /// True when the layer's linears are FP8: layers alike in this can share a set of activations.
  bool fp8() const { return linear_qkv_.fp8(); }

  /// In: the stream as (residual, delta); delta may be empty, then residual must be activations.x_in. Out:
  /// the stream as (activations.x_mid, scratch.delta). delta may be scratch.delta.
  void forward(const Context& context, const Tensor& residual, const Tensor& delta,
               LayerActivations& activations, const Pass& pass, const Scratch& scratch);
  /// For the producer of the gradient of the layer's output.
  GradExtras output_grad_extras(LayerGradients& gradients, const Pass& pass) const;
  /// scratch.d_stream: in, the gradient of the layer's output; out, of its input, with what `below` needs of it.
  /// `deferred`: the weights' gradients are left to wgrad(), with activations and gradients untouched in between.
  void backward(const Context& context, LayerActivations& activations, LayerGradients& gradients,
                const LayerBelow& below, const Pass& pass, const Scratch& scratch, bool deferred = false);
  void wgrad(const Context& context, const LayerActivations& activations,
             const LayerGradients& gradients) const;

  void quantize_weights(const Context& context, bool count_fp8 = false);

 private:
  void forward_attention(const Context&, LayerActivations&, const Pass&, const Scratch&);
  void forward_mlp(const Context&, LayerActivations&, const Pass&, const Scratch&);
  void backward_mlp(const Context&, LayerActivations&, LayerGradients&, const Pass&, const Scratch&,
                    bool deferred);
  void backward_attention(const Context&, LayerActivations&, LayerGradients&, const LayerBelow&, const Pass&,
                          const Scratch&, bool deferred);
  kernels::ActivationKind activation_kind() const;
  void run_activation(const Context&, LayerActivations&, const Pass&);
  void hidden_dropout(const Context&, const Tensor& x, const Tensor& y, uint64_t stream, const Pass&) const;
  Tensor branch_gradient(const Context&, uint64_t stream, const Pass&, const Scratch&) const;
  GradExtras branch_grad_extras(const RowParallelLinear& linear, fp8::Operand& grad, const Pass&) const;

  std::string name_;
  parallel::TensorParallel& tensor_;
  Dimensions dims_;
  config::Recompute recompute_;
  bool swiglu_;
  float dropout_;
  uint64_t attention_stream_, mlp_stream_;  ///< dropout sites
  Norm input_layernorm_;
  ColumnParallelLinear linear_qkv_;
  DotProductAttention attention_;
  RowParallelLinear linear_proj_;
  Norm pre_mlp_layernorm_;
  ColumnParallelLinear linear_fc1_;
  RowParallelLinear linear_fc2_;
};

}  // namespace te::model
