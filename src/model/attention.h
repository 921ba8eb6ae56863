// The operations between linear_qkv and linear_proj: rotary embedding and causal attention on the packed output of
// linear_qkv. DotProductAttention works on full sequences and includes the communication of context parallelism;
// generation has another implementation, which attends to a KV cache (generate/cached_attention.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/attention/attention.h"
#include "kernels/rope/rope.h"
#include "model/attention_exchange.h"
#include "model/context_parallel.h"
#include "model/layer_config.h"
#include "model/linear.h"
#include "model/pass.h"

namespace te::model {

/// Rotary tables of a group of layers; empty if positions are learned.
struct RopeTables {
  Tensor cos, sin;  ///< [seq, head_dim / 2] fp32
};

/// The rotary tables of the model: one pair for all layers, and a second pair if layers with a window have other
/// frequencies.
class RotaryEmbedding {
 public:
  void plan(MemoryPlan& plan, const config::ModelConfig& model);
  void fill(const Context& context, const config::ModelConfig& model) const;
  /// `layer`: the result of ModelConfig::of_layer().
  const RopeTables& of(const config::ModelConfig& layer) const {
    return layer.local_rope() ? windowed_ : others_;
  }

 private:
  Planned<RopeTables> others_, windowed_;
};

class CoreAttention {
 public:
  virtual ~CoreAttention() = default;
  /// Rotates q and k inside qkv, then o = attention(q, k, v). kept_qkv and lse: for DotProductAttention::backward.
  virtual void forward(const Context& context, const Tensor& qkv, const Tensor& kept_qkv, const Tensor& o,
                       const Tensor& lse, const Pass& pass) const = 0;
};

class DotProductAttention final : public CoreAttention {
 public:
  DotProductAttention(const std::string& name, const LayerConfig& config, const RopeTables& rope,
                      const parallel::TensorParallel& tensor, const ContextParallel& ranks);

  /// Also creates the plans of the kernels, so that no step has to.
  void plan_scratch(MemoryPlan& plan, const Context& context);
  /// The slowest kernels that a training pass uses.
  kernels::AttentionKernels kernels(const Context& context) const;

  /// Shapes of the tensors that forward() saves for the backward pass. qkv: all heads of this tensor-parallel rank for
  /// its tokens; if context-parallel ranks exchange heads, a part of these heads for all tokens, and forward's qkv is
  /// another buffer.
  Shape kept_shape() const;
  Shape lse_shape() const;
  bool keeps_heads() const { return heads_ != nullptr; }

  /// kept_qkv is qkv itself, unless keeps_heads().
  void forward(const Context& context, const Tensor& qkv, const Tensor& kept_qkv, const Tensor& o,
               const Tensor& lse, const Pass& pass) const override;
  /// Computes the gradient of qkv from d_o. kept_qkv: as forward() left it (rotated). The backward pass of the rotary
  /// embedding, if any, is the last kernel and can quantize its result.
  ProducedOperand backward(const Context& context, const Tensor& kept_qkv, const Tensor& o, const Tensor& lse,
                           const Tensor& d_o, const OperandRequest& dqkv, const Pass& pass) const;

 private:
  kernels::Rope rotation(const Tensor& qkv, bool backward) const;
  uint64_t dropout_seed(const Pass& pass) const;
  kernels::AttentionShape shape_for(const Pass& pass) const;
  /// The shape of the only call, or, if context-parallel ranks exchange keys, the shapes for all ranges.
  std::vector<kernels::AttentionShape> shapes(const Pass& pass) const;
  kernels::AttentionShape shape_of_range(const Pass& pass, const parallel::TokenRange& range) const;
  Tensor lse_of_range(const Tensor& lse, const parallel::TokenRange& range) const;
  void forward_full(const Context& context, const Tensor& qkv, const Tensor& o, const Tensor& lse,
                    const Pass& pass) const;
  void forward_ranges(const Context& context, const Tensor& qkv, const Tensor& o, const Tensor& lse,
                      const Pass& pass) const;
  void backward_full(const Context& context, const Tensor& qkv, const Tensor& o, const Tensor& lse,
                     const Tensor& d_o, const Tensor& dqkv, const Pass& pass) const;
  void backward_heads(const Context& context, const Tensor& kept_qkv, const Tensor& o, const Tensor& lse,
                      const Tensor& d_o, const Tensor& dqkv, const Pass& pass) const;
  void backward_ranges(const Context& context, const Tensor& qkv, const Tensor& o, const Tensor& lse,
                       const Tensor& d_o, const Tensor& dqkv, const Pass& pass) const;

  enum class Buffer : uint8_t { workspace, heads_o, heads_d_o, heads_dqkv };
  std::string name_;
  Dimensions dims_;
  const ContextParallel& ranks_;
  int64_t num_heads_, num_query_groups_;  ///< in linear_qkv's output
  kernels::AttentionShape shape_;         ///< of the kernels; has fewer heads if heads are exchanged
  const RopeTables& rope_;
  uint64_t stream_;
  std::unique_ptr<HeadAllToAll> heads_;      ///< null unless context-parallel ranks exchange heads
  std::unique_ptr<KeyValueAllGather> keys_;  ///< null unless they exchange keys and values
  PlannedTensor workspace_;                  ///< scratch of the kernels
  PlannedTensor heads_o_, heads_d_o_,
      heads_dqkv_;  ///< scratch [batch * seq, width / context-parallel ranks] of exchanged heads
};

}  // namespace te::model
