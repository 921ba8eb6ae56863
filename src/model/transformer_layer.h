// One transformer layer: two sublayers with a norm before each, and the residual connections around them. In
// transformer_layer.cpp, forward and backward pass have numbered steps; the backward pass mirrors the forward pass.
//
//   x_in      = residual + delta      adds the previous layer's MLP output to the residual stream
//   x_mid     = x_in + self_attention(norm(x_in))
//   delta_out = mlp(norm(x_mid))
//
// The next norm's kernel adds delta_out to the residual stream, so a layer outputs the pair (x_mid, delta_out).
//
// Two keys of the config change what a layer computes:
//   norm_placement: post     the norms follow the sublayers: x_mid = x_in + norm(self_attention(x_in)),
//                            delta_out = norm(mlp(x_mid)). A separate kernel adds to the residual stream.
//   norm_placement: both     norms before and after the sublayers:
//                            x_mid = x_in + norm(self_attention(norm(x_in))), delta_out = norm(mlp(norm(x_mid))).
//   parallel_residual: true  both sublayers read the same input: delta_out = mlp(norm(x_in)).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/feed_forward.h"
#include "model/norm.h"
#include "model/self_attention.h"

namespace te::model {

/// Tensors of one layer that the backward pass of a microbatch reads. training.recompute determines which of them are
/// saved and which are scratch (plan_activations).
struct LayerActivations {
  PlannedTensor x_in;                                ///< [residual_rows, hidden]
  Planned<Norm::Statistics> norm1, norm2;            ///< of the norms before the sublayers
  Planned<Norm::Statistics> post_norm1, post_norm2;  ///< of the norms after the sublayers
  SelfAttention::Activations attention;
  PlannedTensor x_mid;  ///< [residual_rows, hidden]
  std::unique_ptr<FeedForward::Activations> feed_forward;
  PlannedTensor delta;  ///< scratch [residual_rows, hidden]: a sublayer's output until the next norm adds it
  PlannedTensor attention_out,
      mlp_out;  ///< [residual_rows, hidden], norm_placement post or both: inputs of the norms
};

/// The gradients of the linear layers' outputs during a backward pass: scratch that all layers share. If wgrad is
/// deferred (zero-bubble schedules), each layer keeps the tensors that wgrad will read.
struct LayerGradients {
  SelfAttention::Gradients attention;
  std::unique_ptr<FeedForward::Gradients> feed_forward;
};

class TransformerLayer;
/// The layer whose output is the input of another layer, and its gradients, for the backward pass. Empty if the input
/// comes from another rank, another chunk or the embedding.
struct PreviousLayer {
  const TransformerLayer* layer = nullptr;
  LayerGradients* gradients = nullptr;
  /// For the producer of the gradient of its output, immediately before that runs.
  OperandRequest grad_request(const Pass& pass) const;
};

class TransformerLayer {
 public:
  TransformerLayer(int index, const LayerConfig& config, parameters::ParameterStore& parameters,
                   Recipe& recipe, const RopeTables& rope, parallel::TensorParallel& tensor,
                   const ContextParallel& ranks,
                   const FeedForwardFactory& make_feed_forward = model::make_feed_forward);
  TransformerLayer(const TransformerLayer&) = delete;

  int index() const { return index_; }  ///< in the model

  void plan_weights(MemoryPlan& plan, bool training, bool deferred);
  /// Plans scratch of passes that is in neither of the structs above, for training and evaluation of full sequences.
  void plan_scratch(MemoryPlan& plan, const Context& context);
  /// Plans x_in, which recompute: full saves.
  void plan_input(MemoryPlan& plan, LayerActivations& activations);
  /// Plans all other activations.
  void plan_activations(MemoryPlan& plan, LayerActivations& activations);
  void plan_gradients(MemoryPlan& plan, LayerGradients& gradients, bool deferred) const;
  bool quantized() const { return attention_.quantized(); }
  kernels::AttentionKernels attention_kernels(const Context& context) const {
    return attention_.attention_kernels(context);
  }
  /// Places all inputs' quantized layouts in shared memory, for passes that save nothing.
  void share_input_layouts(LayerActivations& activations, const Tensor& values, const Tensor& scales) const {
    attention_.share_input_layouts(activations.attention, values, scales);
    feed_forward_->share_input_layouts(*activations.feed_forward, values, scales);
  }

  /// Input: the residual stream as (residual, delta); if delta is empty, residual must be activations.x_in. Output: the
  /// residual stream as (activations.x_mid, activations.delta). delta may be that of the previous layer.
  void forward(const Context& context, const Tensor& residual, const Tensor& delta,
               LayerActivations& activations, const Pass& pass);
  /// The GEMMs of the layer for the decode megakernel (kernels/gemm/decode_megakernel.h), with the norms before
  /// linear_qkv and linear_fc1. Empty with another norm placement or parallel residual.
  struct MegakernelGemms {
    kernels::MegakernelGemm qkv, proj, fc1, fc2;
  };
  std::optional<MegakernelGemms> megakernel_gemms(const LayerActivations& activations) const;
  /// `all`: of all layers of the model.
  void bind_routing(const RoutingStatistics& all) {
    const auto row = [this](const Tensor& tensor) {
      return tensor.slice_rows(index_, 1).view({tensor.cols()});
    };
    feed_forward_->bind_routing({row(all.counts), row(all.sums), all.rounds + index_});
  }
  void update_router_bias(const Context& context, const parameters::ParameterStore& store,
                          const int32_t* skip) const {
    feed_forward_->update_router_bias(context, store, skip);
  }
  const FeedForward& feed_forward() const { return *feed_forward_; }
  /// The operations between linear_qkv and linear_proj: from activations.attention.qkv to proj_input.high_precision.
  void attend(const Context& context, LayerActivations& activations, const Pass& pass) const {
    SelfAttention::Activations& a = activations.attention;
    attention_.attend(context, a, a.qkv, a.proj_input.high_precision, pass);
  }
  /// For the producer of the gradient of the layer's output.
  OperandRequest grad_request(LayerGradients& gradients, const Pass& pass) const;
  /// d_output: the gradient of the layer's output, whose values [residual_rows, hidden] are overwritten by the gradient
  /// of its input. Returns that, with what `previous_layer` has requested. `deferred`: wgrad() will compute the weight
  /// gradients; activations and gradients must not change before that.
  ProducedOperand backward(const Context& context, LayerActivations& activations, LayerGradients& gradients,
                           const PreviousLayer& previous_layer, const ProducedOperand& d_output,
                           const Pass& pass, bool deferred = false);
  void wgrad(const Context& context, const LayerActivations& activations,
             const LayerGradients& gradients) const;

  void quantize_weights(const Context& context, bool count = false);

 private:
  /// A sublayer's norms; null: none.
  struct Norms {
    std::unique_ptr<Norm> before, after;
  };
  Norms make_norms(ParameterRole before, ParameterRole after, int layer, const LayerConfig& config,
                   parameters::ParameterStore& parameters);
  /// The parameters of a sublayer in one pass.
  struct Branch {
    const Norms& norms;
    const Norm::Statistics &before, &after;
    uint64_t dropout_id;  ///< stream of random numbers for its dropout
  };
  Branch attention_branch(const LayerActivations& a) const {
    return {attention_norms_, a.norm1, a.post_norm1, attention_dropout_id_};
  }
  Branch mlp_branch(const LayerActivations& a) const {
    return {mlp_norms_, a.norm2, a.post_norm2, mlp_dropout_id_};
  }
  /// The input of the MLP's branch.
  const Tensor& mlp_source(const LayerActivations& a) const { return parallel_ ? a.x_in : a.x_mid; }
  /// Where a sublayer writes: the input of the norm after it, or delta.
  const Tensor& output(const LayerActivations& a, const Tensor& kept) const { return post_ ? kept : a.delta; }

  ProducedOperand begin_branch(const Context&, const Branch&, const Tensor& x, const Tensor& delta,
                               const Tensor& sum, const OperandRequest&) const;
  void end_branch(const Context&, const Branch&, const Tensor& out, const Tensor& delta, const Pass&) const;
  ProducedOperand end_branch_backward(const Context&, const Branch&, const Tensor& d_residual,
                                      const Tensor& out, const OperandRequest&, const Pass&) const;
  ProducedOperand begin_branch_backward(const Context&, const Branch&, const Tensor& x,
                                        const Tensor& d_residual, const Tensor& dx,
                                        const OperandRequest&) const;
  void dropout(const Context&, const Tensor& x, const Tensor& y, uint64_t dropout_id, const Pass&) const;
  /// True if the gradient of a sublayer's output differs from that of the residual stream.
  bool has_branch_gradient() const { return post_ || dropout_ != 0.0f; }

  enum class Buffer : uint8_t {
    norm1,
    norm2,
    post_norm1,
    post_norm2,
    x_mid,
    attention_out,
    mlp_out,
    delta,
    d_branch,
    d_output,
    d_parallel
  };
  int index_;
  std::string name_;
  parallel::TensorParallel& tensor_;
  const ContextParallel& ranks_;
  Dimensions dims_;
  config::Recompute recompute_;
  bool pre_, post_;  ///< there are norms before, after the sublayers
  bool parallel_;
  float dropout_;
  uint64_t attention_dropout_id_, mlp_dropout_id_;  ///< streams of random numbers for the two dropouts
  Norms attention_norms_;
  SelfAttention attention_;
  Norms mlp_norms_;
  std::unique_ptr<FeedForward> feed_forward_;
  // Scratch [residual_rows, hidden]:
  PlannedTensor d_branch_;  ///< gradient of a sublayer's input
  PlannedTensor d_output_;  ///< with has_branch_gradient(): gradient of its output
  PlannedTensor
      d_parallel_;  ///< parallel_residual: d_residual plus the MLP's gradient, while attention still reads d_residual
};

}  // namespace te::model
