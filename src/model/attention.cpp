#include "model/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/random.h"

namespace te::model {

void RopeTables::plan(MemoryPlan& plan, const config::ModelConfig& model) {
  if (!model.rotary()) return;
  const Shape shape{model.seq_length, model.kv_channels / 2};
  plan.add(cos, "rope.cos", MemoryKind::parameters, DType::f32, shape);
  plan.add(sin, "rope.sin", MemoryKind::parameters, DType::f32, shape);
}

namespace {

kernels::RopeScaling rope_scaling(const config::ModelConfig& model) {
  kernels::RopeScaling scaling;
  if (model.rope_scaling == config::RopeScaling::none) return scaling;
  scaling.kind = model.rope_scaling == config::RopeScaling::linear   ? kernels::RopeScalingKind::linear
                 : model.rope_scaling == config::RopeScaling::llama3 ? kernels::RopeScalingKind::llama3
                                                                     : kernels::RopeScalingKind::yarn;
  scaling.factor = model.rope_scaling_factor;
  scaling.low_freq_factor = model.rope_scaling_low_freq_factor;
  scaling.high_freq_factor = model.rope_scaling_high_freq_factor;
  scaling.original_max_position_embeddings = model.rope_scaling_original_max_position_embeddings;
  scaling.beta_fast = model.rope_scaling_beta_fast;
  scaling.beta_slow = model.rope_scaling_beta_slow;
  scaling.attention_factor = model.rope_scaling_attention_factor;
  scaling.truncate = model.rope_scaling_truncate;
  return scaling;
}

}  // namespace

void RopeTables::fill(const Context& context, const config::ModelConfig& model) {
  if (!cos) return;
  std::vector<float> host_cos(static_cast<size_t>(cos.numel())), host_sin(host_cos.size());
  kernels::rope_tables(model.seq_length, model.kv_channels, model.rope_theta, host_cos.data(),
                       host_sin.data(), rope_scaling(model), model.rotary_pairs());
  context.copy_to_device(cos, host_cos.data());
  context.copy_to_device(sin, host_sin.data());
  context.synchronize();  // the host vectors must outlive the copies
}

namespace {

/// Of the heads that this rank holds.
kernels::AttentionShape shape_of(const config::Config& config, const parallel::TensorParallel& tensor) {
  kernels::AttentionShape shape;
  shape.batch = config.training.micro_batch_size;
  shape.seq = config.model.seq_length;
  shape.num_heads = config.model.num_attention_heads / tensor.size();
  shape.num_query_groups = config.model.num_query_groups / tensor.size();
  shape.first_head = shape.num_heads * tensor.rank();
  shape.total_heads = config.model.num_attention_heads;
  shape.head_dim = config.model.kv_channels;
  shape.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  shape.dropout = static_cast<float>(config.model.attention_dropout);
  shape.window = config.model.windowed() ? config.model.sliding_window : 0;
  if (config.data.document_mask) shape.max_documents = shape.batch * config.data.max_documents;
  return shape;
}

}  // namespace

DotProductAttention::DotProductAttention(const std::string& name, const config::Config& config,
                                         const RopeTables& rope, const parallel::TensorParallel& tensor)
    : name_(name),
      shape_(shape_of(config, tensor)),
      rope_(rope),
      stream_(stream_of(name + ".attention_dropout")) {}

void DotProductAttention::plan_scratch(MemoryPlan& plan, const Context& context, DType dtype) {
  const auto bytes_for = [&](const Pass& pass) {
    return kernels::attention_workspace_bytes(context, shape_for(pass), dtype);
  };
  const int64_t bytes =
      std::max(bytes_for({.kind = PassKind::train}), bytes_for({.kind = PassKind::evaluate}));
  if (bytes == 0) return;
  plan.add(workspace_, name_ + ".workspace", MemoryKind::scratch, DType::u8, {bytes},
           live(Step::attention) | live(Step::attention_backward));
}

kernels::Rope DotProductAttention::rotation(const Tensor& qkv, bool backward) const {
  return {.qkv = qkv,
          .cos = rope_.cos,
          .sin = rope_.sin,
          .seq = shape_.seq,
          .num_heads = shape_.num_heads,
          .num_query_groups = shape_.num_query_groups,
          .head_dim = shape_.head_dim,
          .backward = backward};
}

// One seed per layer and microbatch: the kernels count positions from the microbatch's first sample.
uint64_t DotProductAttention::dropout_seed(const Pass& pass) const {
  const Philox4 random = philox(pass.dropout_seed, stream_, static_cast<uint64_t>(pass.first_sample));
  return (static_cast<uint64_t>(random.word[0]) << 32) | random.word[1];
}

kernels::AttentionShape DotProductAttention::shape_for(const Pass& pass) const {
  kernels::AttentionShape shape = shape_;
  if (pass.evaluating()) shape.dropout = 0.0f;
  return shape;
}

void DotProductAttention::forward(const Context& context, const Tensor& qkv, const Tensor& o,
                                  const Tensor& lse, const Pass& pass) const {
  if (rope_.cos) kernels::rope(context, rotation(qkv, false));
  kernels::attention_forward(context, {.shape = shape_for(pass),
                                       .qkv = qkv,
                                       .o = o,
                                       .lse = lse,
                                       .workspace = workspace_,
                                       .dropout_seed = dropout_seed(pass),
                                       .document_start = pass.document_start});
}

void DotProductAttention::forward_cached(const Context& context, const Tensor& qkv, const Tensor& o,
                                         const kernels::KeyValueCache& cache, const Pass& pass) const {
  const CachedRows& rows = pass.cached;
  if (rope_.cos) {
    kernels::Rope rope = rotation(qkv, false);
    rope.positions = rows.positions;
    kernels::rope(context, rope);
  }
  const auto appended = [&](const Tensor& ids) { return Tensor{ids.data, ids.dtype, {rows.appended}}; };
  kernels::cache_append(context, {.qkv = qkv.slice_rows(0, rows.appended),
                                  .sequences = appended(rows.sequences),
                                  .positions = appended(rows.positions),
                                  .cache = cache});
  kernels::attention_decode(context, {.qkv = qkv,
                                      .sequences = rows.sequences,
                                      .positions = rows.positions,
                                      .cache = cache,
                                      .softmax_scale = shape_.softmax_scale,
                                      .o = o,
                                      .window = shape_.window});
}

void DotProductAttention::backward(const Context& context, const Tensor& qkv, const Tensor& o,
                                   const Tensor& lse, const Tensor& d_o, Target dqkv,
                                   const Pass& pass) const {
  kernels::attention_backward(context, {.shape = shape_for(pass),
                                        .qkv = qkv,
                                        .o = o,
                                        .lse = lse,
                                        .d_o = d_o,
                                        .dqkv = dqkv.memory(),
                                        .workspace = workspace_,
                                        .dropout_seed = dropout_seed(pass),
                                        .document_start = pass.document_start});
  if (!rope_.cos) return void(dqkv.values());
  kernels::Rope rope = rotation(dqkv.memory(), true);
  const Output output = dqkv.cast_in_place();
  rope.out = output.fp8;
  rope.dbias = output.sums.into;
  rope.scratch = output.sums.scratch;
  kernels::rope(context, rope);
}

}  // namespace te::model
