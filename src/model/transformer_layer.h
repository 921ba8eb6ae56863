// One transformer layer: two sublayers, a norm in front of each, and the residual stream past both. Its two passes read
// top to bottom as numbered steps, the backward pass as the mirror of the forward pass (transformer_layer.cpp).
//
//   x_in      = residual + delta      the previous layer's MLP output joins the residual stream here
//   x_mid     = x_in + self_attention(norm(x_in))
//   delta_out = mlp(norm(x_mid))
//
// The residual add of delta_out happens in the next norm's kernel, so a layer hands on the pair (x_mid, delta_out).
//
// Two keys of the config change what a layer computes, and leave the rest as it is:
//   norm_placement: post     the norms are on the sublayers' outputs: x_mid = x_in + norm(self_attention(x_in)),
//                            delta_out = norm(mlp(x_mid)). The stream joins in a kernel of its own.
//   norm_placement: both     a norm in front and another one on the output:
//                            x_mid = x_in + norm(self_attention(norm(x_in))), delta_out = norm(mlp(norm(x_mid))).
//   parallel_residual: true  both sublayers read the same stream: delta_out = mlp(norm(x_in)).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/feed_forward.h"
#include "model/norm.h"
#include "model/self_attention.h"

namespace te::model {

/// What one microbatch leaves behind in one layer for the backward pass. Which of these have memory of their
/// own and which are scratch is decided by training.recompute (plan_activations).
struct LayerActivations {
  Tensor x_in;                              ///< [stream, hidden]
  Norm::Statistics norm1, norm2;            ///< of the norms in front of the sublayers
  Norm::Statistics post_norm1, post_norm2;  ///< of those on their outputs
  SelfAttention::Activations attention;
  Tensor x_mid;  ///< [stream, hidden]
  std::unique_ptr<FeedForward::Activations> feed_forward;
  Tensor delta;  ///< scratch [stream, hidden]: a sublayer's output until the next norm adds it
  Tensor attention_out, mlp_out;  ///< [stream, hidden], norm_placement post or both: what the norms take
};

/// Where the gradients of the linears' outputs are during a backward pass: scratch that all layers share, or, where
/// wgrad is put off (zero-bubble schedules), memory of the layer's own for what wgrad will read.
struct LayerGradients {
  SelfAttention::Gradients attention;
  std::unique_ptr<FeedForward::Gradients> feed_forward;
};

class TransformerLayer;
/// In a backward pass, the layer whose output is this one's input, and its gradients; none where that is another rank's
/// or the embedding's.
struct PreviousLayer {
  const TransformerLayer* layer = nullptr;
  LayerGradients* gradients = nullptr;
  /// For the producer of the gradient of its output, right before that runs.
  Target grad_target(const Pass& pass) const;
};

class TransformerLayer {
 public:
  TransformerLayer(int index, const LayerConfig& config, parameters::ParameterStore& parameters,
                   Recipe& recipe, const RopeTables& rope, parallel::TensorParallel& tensor,
                   const ContextParallel& ranks);
  TransformerLayer(const TransformerLayer&) = delete;

  void plan_weights(MemoryPlan& plan, bool training, bool deferred);
  /// For training and evaluation of whole sequences: what passes use that is in neither of the structs above.
  void plan_scratch(MemoryPlan& plan, const Context& context);
  /// x_in alone: what recompute: full keeps of a layer.
  void plan_input(MemoryPlan& plan, LayerActivations& activations);
  /// Everything else.
  void plan_activations(MemoryPlan& plan, LayerActivations& activations);
  void plan_gradients(MemoryPlan& plan, LayerGradients& gradients, bool deferred) const;
  bool quantized() const { return attention_.quantized(); }
  kernels::AttentionKernels attention_kernels(const Context& context) const {
    return attention_.attention_kernels(context);
  }
  /// All inputs' quantized forms in memory that they share: for passes that keep nothing.
  void share_input_layouts(LayerActivations& activations, const Tensor& values, const Tensor& scales) const {
    attention_.share_input_layouts(activations.attention, values, scales);
    feed_forward_->share_input_layouts(*activations.feed_forward, values, scales);
  }

  /// In: the stream as (residual, delta); delta may be empty, then residual must be activations.x_in. Out:
  /// the stream as (activations.x_mid, activations.delta). delta may be that of the layer below.
  void forward(const Context& context, const Tensor& residual, const Tensor& delta,
               LayerActivations& activations, const Pass& pass);
  /// The layer for passes of few rows that are not evaluated op by op (kernels/gemm/decode_megakernel.h): its linears,
  /// with the norms in front of linear_qkv and linear_fc1. Empty where norms or branches are placed otherwise.
  struct MegakernelGemms {
    kernels::MegakernelGemm qkv, proj, fc1, fc2;
  };
  std::optional<MegakernelGemms> megakernel_gemms(const LayerActivations& activations) const;
  const FeedForward& feed_forward() const { return *feed_forward_; }
  /// Between linear_qkv and linear_proj: from activations.attention.qkv to proj_input.high_precision.
  void attend(const Context& context, LayerActivations& activations, const Pass& pass) const {
    SelfAttention::Activations& a = activations.attention;
    attention_.attend(context, a, a.qkv, a.proj_input.high_precision, pass);
  }
  /// For the producer of the gradient of the layer's output.
  Target grad_target(LayerGradients& gradients, const Pass& pass) const;
  /// d_residual [stream, hidden]: in, the gradient of the layer's output; out, of its input, with what `previous_layer`
  /// needs of it. `deferred`: the weights' gradients are left to wgrad(), with activations and gradients untouched in
  /// between.
  void backward(const Context& context, LayerActivations& activations, LayerGradients& gradients,
                const PreviousLayer& previous_layer, const Tensor& d_residual, const Pass& pass,
                bool deferred = false);
  void wgrad(const Context& context, const LayerActivations& activations,
             const LayerGradients& gradients) const;

  void quantize_weights(const Context& context, bool count = false);

 private:
  /// A sublayer's norms, null where it has none.
  struct Norms {
    std::unique_ptr<Norm> before, after;
  };
  Norms make_norms(const char* before, const char* after, const LayerConfig& config,
                   parameters::ParameterStore& parameters);
  /// With what is particular to the sublayer in one pass.
  struct Branch {
    const Norms& norms;
    const Norm::Statistics &before, &after;
    uint64_t dropout_id;  ///< stream of random numbers of its dropout
  };
  Branch attention_branch(const LayerActivations& a) const {
    return {attention_norms_, a.norm1, a.post_norm1, attention_dropout_id_};
  }
  Branch mlp_branch(const LayerActivations& a) const {
    return {mlp_norms_, a.norm2, a.post_norm2, mlp_dropout_id_};
  }
  /// What the MLP's branch begins with.
  const Tensor& mlp_source(const LayerActivations& a) const { return parallel_ ? a.x_in : a.x_mid; }
  /// Where a sublayer writes: memory that its norm will take, or delta itself.
  const Tensor& output(const LayerActivations& a, const Tensor& kept) const { return post_ ? kept : a.delta; }

  void begin_branch(const Context&, const Branch&, const Tensor& x, const Tensor& delta, const Tensor& sum,
                    Target) const;
  void end_branch(const Context&, const Branch&, const Tensor& out, const Tensor& delta, const Pass&) const;
  Tensor end_branch_backward(const Context&, const Branch&, const Tensor& d_residual, const Tensor& out,
                             Target, const Pass&) const;
  void begin_branch_backward(const Context&, const Branch&, const Tensor& x, const Tensor& d_residual,
                             const Tensor& dx, Target) const;
  void dropout(const Context&, const Tensor& x, const Tensor& y, uint64_t dropout_id, const Pass&) const;
  /// Sublayers have gradients of their own, other than the stream's.
  bool has_branch_gradient() const { return post_ || dropout_ != 0.0f; }

  std::string name_;
  parallel::TensorParallel& tensor_;
  const ContextParallel& ranks_;
  Dimensions dims_;
  config::Recompute recompute_;
  bool pre_, post_;  ///< norms are in front of the sublayers, on their outputs
  bool parallel_;
  float dropout_;
  uint64_t attention_dropout_id_, mlp_dropout_id_;  ///< streams of random numbers of the two dropouts
  Norms attention_norms_;
  SelfAttention attention_;
  Norms mlp_norms_;
  std::unique_ptr<FeedForward> feed_forward_;
  // Scratch [stream, hidden]:
  Tensor d_branch_;  ///< gradient of a sublayer's input
  Tensor d_output_;  ///< with has_branch_gradient(): of its output
  Tensor
      d_parallel_;  ///< parallel: of the stream through the MLP's branch, while attention's still reads d_residual
};

}  // namespace te::model
