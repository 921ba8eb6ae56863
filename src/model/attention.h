// DotProductAttention: rotary embedding and causal attention on the packed output of linear_qkv.
#pragma once

#include <string>

#include "core/device.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/decode.h"
#include "kernels/rope/rope.h"
#include "model/linear.h"
#include "model/pass.h"

namespace te::model {

/// Rotary tables, one for the whole model; empty where positions are learned.
struct RopeTables {
  Tensor cos, sin;  ///< [seq, head_dim / 2] fp32
  void plan(MemoryPlan& plan, const config::ModelConfig& model);
  void fill(const Context& context, const config::ModelConfig& model);
};

class DotProductAttention {
 public:
  DotProductAttention(const std::string& name, const config::Config& config, const RopeTables& rope,
                      const parallel::TensorParallel& tensor);

  /// Makes the kernels' plans, too, so that no step does.
  void plan_scratch(MemoryPlan& plan, const Context& context, DType dtype);

  int64_t heads() const { return shape_.num_heads; }

  /// Rotates q and k inside qkv, then o = attention(q, k, v); lse is kept for the backward pass.
  void forward(const Context& context, const Tensor& qkv, const Tensor& o, const Tensor& lse,
               const Pass& pass) const;
  /// The same in a pass of cached rows: their keys and values enter the layer's cache, and o = attention against it.
  void forward_cached(const Context& context, const Tensor& qkv, const Tensor& o,
                      const kernels::KeyValueCache& cache, const Pass& pass) const;
  /// The gradient of qkv from d_o; qkv is as forward() left it (rotated). The rotary embedding, where there is one, ends
  /// the pass, and can cast its result.
  void backward(const Context& context, const Tensor& qkv, const Tensor& o, const Tensor& lse,
                const Tensor& d_o, Target dqkv, const Pass& pass) const;

 private:
  kernels::Rope rotation(const Tensor& qkv, bool backward) const;
  uint64_t dropout_seed(const Pass& pass) const;
  kernels::AttentionShape shape_for(const Pass& pass) const;
  std::string name_;
  kernels::AttentionShape shape_;
  const RopeTables& rope_;
  uint64_t stream_;
  Tensor workspace_;  ///< scratch of the kernels
};

}  // namespace te::model
