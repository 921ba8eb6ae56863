#include "model/attention.h"

#include <algorithm>
#include <vector>

#include "core/random.h"

namespace te::model {

namespace {

void plan_tables(MemoryPlan& plan, Planned<RopeTables>& tables, const std::string& name,
                 const config::ModelConfig& model) {
  const Shape shape{model.seq_length, model.kv_channels / 2};
  plan.add({tables, tables.cos}, name + ".cos", MemoryKind::parameters, DType::f32, shape);
  plan.add({tables, tables.sin}, name + ".sin", MemoryKind::parameters, DType::f32, shape);
}

void fill_tables(const Context& context, const RopeTables& tables, const config::ModelConfig& model) {
  if (!tables.cos) return;
  std::vector<float> cos(static_cast<size_t>(tables.cos.numel())), sin(cos.size());
  kernels::rope_tables(model.seq_length, model.kv_channels, model.rope_theta, cos.data(), sin.data(),
                       model.rope_scaling, model.rotary_pairs());
  context.copy_to_device(tables.cos, cos.data());
  context.copy_to_device(tables.sin, sin.data());
  context.synchronize();  // the host vectors must outlive the copies
}

}  // namespace

void RotaryEmbedding::plan(MemoryPlan& plan, const config::ModelConfig& model) {
  if (!model.rotary()) return;
  plan_tables(plan, others_, "rope", model);
  if (model.local_rope()) plan_tables(plan, windowed_, "rope.windowed", model);
}

void RotaryEmbedding::fill(const Context& context, const config::ModelConfig& model) const {
  fill_tables(context, others_, model);
  fill_tables(context, windowed_, model.with_local_rope());
}

namespace {

/// The attention shape for the heads of this rank.
kernels::AttentionShape shape_of(const LayerConfig& config, const parallel::TensorParallel& tensor,
                                 const ContextParallel& ranks) {
  const bool exchanges_heads = ranks.exchange() == ContextExchange::heads;
  const int64_t parts = tensor.size() * (exchanges_heads ? ranks.size() : 1);
  const int64_t part = exchanges_heads ? tensor.rank() * ranks.size() + ranks.rank() : tensor.rank();
  kernels::AttentionShape shape;
  shape.batch = config.dims.batch;
  shape.seq = config.model.seq_length;
  shape.num_heads = config.model.num_attention_heads / parts;
  shape.num_query_groups = config.model.num_query_groups / parts;
  shape.first_head = shape.num_heads * part;
  shape.total_heads = config.model.num_attention_heads;
  shape.head_dim = config.model.kv_channels;
  shape.softmax_scale = static_cast<float>(config.model.softmax_scale());
  shape.dropout = static_cast<float>(config.model.attention_dropout);
  shape.window = config.model.windowed() ? config.model.sliding_window : 0;
  shape.max_documents = config.max_documents;
  return shape;
}

}  // namespace

DotProductAttention::DotProductAttention(const std::string& name, const LayerConfig& config,
                                         const RopeTables& rope, const parallel::TensorParallel& tensor,
                                         const ContextParallel& ranks)
    : name_(name),
      dims_(config.dims),
      ranks_(ranks),
      num_heads_(config.model.num_attention_heads / tensor.size()),
      num_query_groups_(config.model.num_query_groups / tensor.size()),
      shape_(shape_of(config, tensor, ranks)),
      rope_(rope),
      stream_(stream_of(name + ".attention_dropout")) {
  if (ranks.exchange() == ContextExchange::heads) heads_ = std::make_unique<HeadAllToAll>(dims_, ranks);
  if (ranks.exchange() == ContextExchange::keys)
    keys_ = std::make_unique<KeyValueAllGather>(dims_, ranks, dims_.qkv - dims_.attention);
}

// --- memory ------------------------------------------------------------------------------------------------

void DotProductAttention::plan_scratch(MemoryPlan& plan, const Context& context) {
  int64_t bytes = 0;
  for (const Pass& pass : {Pass{.kind = PassKind::train}, Pass{.kind = PassKind::evaluate}})
    for (const kernels::AttentionShape& shape : shapes(pass))
      bytes = std::max(bytes, kernels::attention_workspace_bytes(context, shape, dims_.dtype));
  const Lifetime backward = live(Step::attention_backward), both = live(Step::attention) | backward;
  if (bytes > 0)
    plan.add(workspace_, name_ + ".workspace", MemoryKind::scratch, DType::u8, {bytes},
             {Buffer::workspace, both});
  if (keys_) keys_->plan(plan, name_);
  if (!heads_) return;
  heads_->plan(plan, name_);
  const auto add = [&](PlannedTensor& slot, const char* what, Buffer buffer, int64_t width,
                       Lifetime lifetime) {
    plan.add(slot, name_ + what, MemoryKind::scratch, dims_.dtype,
             {ranks_.size() * dims_.tokens, width / ranks_.size()}, {buffer, lifetime});
  };
  add(heads_o_, ".heads_o", Buffer::heads_o, dims_.attention, both);
  add(heads_d_o_, ".heads_d_o", Buffer::heads_d_o, dims_.attention, backward);
  add(heads_dqkv_, ".heads_dqkv", Buffer::heads_dqkv, dims_.qkv, backward);
}

kernels::AttentionKernels DotProductAttention::kernels(const Context& context) const {
  auto slowest = kernels::AttentionKernels::flash;
  for (const kernels::AttentionShape& shape : shapes({.kind = PassKind::train}))
    slowest = std::max(slowest, kernels::attention_kernels(context, shape, dims_.dtype));
  return slowest;
}

Shape DotProductAttention::kept_shape() const {
  if (!heads_) return {dims_.tokens, dims_.qkv};
  return {ranks_.size() * dims_.tokens, dims_.qkv / ranks_.size()};
}

Shape DotProductAttention::lse_shape() const {
  return {shape_.batch, shape_.num_heads, keys_ ? ranks_.split().local() : shape_.seq};
}

// --- parts of a pass ---------------------------------------------------------------------------------------

kernels::Rope DotProductAttention::rotation(const Tensor& qkv, bool backward) const {
  return {.qkv = qkv,
          .cos = rope_.cos,
          .sin = rope_.sin,
          .seq = shape_.seq,
          .num_heads = num_heads_,
          .num_query_groups = num_query_groups_,
          .head_dim = shape_.head_dim,
          .backward = backward,
          .positions = ranks_.positions()};
}

// One seed per layer and microbatch, because the kernels count positions from the microbatch's first sample.
uint64_t DotProductAttention::dropout_seed(const Pass& pass) const {
  const Philox4 random = philox(pass.dropout_seed, stream_, static_cast<uint64_t>(pass.first_sample));
  return (static_cast<uint64_t>(random.word[0]) << 32) | random.word[1];
}

kernels::AttentionShape DotProductAttention::shape_for(const Pass& pass) const {
  kernels::AttentionShape shape = shape_;
  if (pass.evaluating()) shape.dropout = 0.0f;
  return shape;
}

// The part of one range in the lse of all ranges, which are contiguous.
Tensor DotProductAttention::lse_of_range(const Tensor& lse, const parallel::TokenRange& range) const {
  const int64_t heads = shape_.batch * shape_.num_heads;
  return lse.view({lse.numel(), 1})
      .slice_rows(heads * range.local, heads * range.count)
      .view({shape_.batch, shape_.num_heads, range.count});
}

std::vector<kernels::AttentionShape> DotProductAttention::shapes(const Pass& pass) const {
  if (!keys_) return {shape_for(pass)};
  std::vector<kernels::AttentionShape> all;
  for (const parallel::TokenRange& range : ranks_.split().ranges())
    all.push_back(shape_of_range(pass, range));
  return all;
}

kernels::AttentionShape DotProductAttention::shape_of_range(const Pass& pass,
                                                            const parallel::TokenRange& range) const {
  kernels::AttentionShape shape = shape_for(pass);
  shape.range = {
      .count = range.count, .position = range.begin, .rows = ranks_.split().local(), .first = range.local};
  return shape;
}

// --- forward -----------------------------------------------------------------------------------------------

void DotProductAttention::forward(const Context& context, const Tensor& qkv, const Tensor& kept_qkv,
                                  const Tensor& o, const Tensor& lse, const Pass& pass) const {
  // 1. Rotary embedding, by the position of each token.
  if (rope_.cos) kernels::rope(context, rotation(qkv, false));
  // 2. Attention: with some queries and all keys, or with some heads of all tokens.
  if (keys_) return forward_ranges(context, qkv, o, lse, pass);
  if (!heads_) return forward_full(context, qkv, o, lse, pass);
  const int64_t keys = (dims_.qkv - dims_.attention) / 2;
  heads_->to_heads(context, qkv, {dims_.attention, keys, keys}, kept_qkv);
  forward_full(context, kept_qkv, heads_o_, lse, pass);
  // 3. Exchange back to all heads of the rank's tokens.
  heads_->to_tokens(context, heads_o_, {dims_.attention}, o);
}

void DotProductAttention::forward_full(const Context& context, const Tensor& qkv, const Tensor& o,
                                       const Tensor& lse, const Pass& pass) const {
  kernels::attention_forward(context, {.shape = shape_for(pass),
                                       .qkv = qkv,
                                       .o = o,
                                       .lse = lse,
                                       .workspace = workspace_,
                                       .dropout_seed = dropout_seed(pass),
                                       .document_start = pass.document_start});
}

void DotProductAttention::forward_ranges(const Context& context, const Tensor& qkv, const Tensor& o,
                                         const Tensor& lse, const Pass& pass) const {
  keys_->gather(context, qkv);
  for (const parallel::TokenRange& range : ranks_.split().ranges())
    kernels::attention_forward(context, {.shape = shape_of_range(pass, range),
                                         .qkv = qkv,
                                         .o = o,
                                         .lse = lse_of_range(lse, range),
                                         .workspace = workspace_,
                                         .dropout_seed = dropout_seed(pass),
                                         .document_start = pass.document_start,
                                         .kv = keys_->kv()});
}

// --- backward ----------------------------------------------------------------------------------------------

ProducedOperand DotProductAttention::backward(const Context& context, const Tensor& kept_qkv, const Tensor& o,
                                              const Tensor& lse, const Tensor& d_o,
                                              const OperandRequest& dqkv, const Pass& pass) const {
  const auto attention_backward = heads_  ? &DotProductAttention::backward_heads
                                  : keys_ ? &DotProductAttention::backward_ranges
                                          : &DotProductAttention::backward_full;
  (this->*attention_backward)(context, kept_qkv, o, lse, d_o, dqkv.high_precision, pass);
  ProducedOperand produced{.high_precision = dqkv.high_precision};
  if (!rope_.cos) return produced;
  // Works in place, and computes column sums only together with quantization.
  kernels::Rope rope = rotation(dqkv.high_precision, true);
  if (dqkv.fp8.wants_data()) produced = dqkv.quantized_or_values(true);
  rope.out = produced.fp8;
  rope.dbias = produced.sums.into;
  rope.scratch = produced.sums.scratch;
  kernels::rope(context, rope);
  return produced;
}

void DotProductAttention::backward_full(const Context& context, const Tensor& qkv, const Tensor& o,
                                        const Tensor& lse, const Tensor& d_o, const Tensor& dqkv,
                                        const Pass& pass) const {
  kernels::attention_backward(context, {.shape = shape_for(pass),
                                        .qkv = qkv,
                                        .o = o,
                                        .lse = lse,
                                        .d_o = d_o,
                                        .dqkv = dqkv,
                                        .workspace = workspace_,
                                        .dropout_seed = dropout_seed(pass),
                                        .document_start = pass.document_start});
}

// The output is exchanged again instead of saved, because linear_proj's input saves it for all heads of the rank's
// tokens.
void DotProductAttention::backward_heads(const Context& context, const Tensor& kept_qkv, const Tensor& o,
                                         const Tensor& lse, const Tensor& d_o, const Tensor& dqkv,
                                         const Pass& pass) const {
  heads_->to_heads(context, o, {dims_.attention}, heads_o_);
  heads_->to_heads(context, d_o, {dims_.attention}, heads_d_o_);
  backward_full(context, kept_qkv, heads_o_, lse, heads_d_o_, heads_dqkv_, pass);
  const int64_t keys = (dims_.qkv - dims_.attention) / 2;
  heads_->to_tokens(context, heads_dqkv_, {dims_.attention, keys, keys}, dqkv);
}

void DotProductAttention::backward_ranges(const Context& context, const Tensor& qkv, const Tensor& o,
                                          const Tensor& lse, const Tensor& d_o, const Tensor& dqkv,
                                          const Pass& pass) const {
  keys_->gather(context, qkv);
  for (const parallel::TokenRange& range : ranks_.split().ranges()) {
    kernels::attention_backward(context, {.shape = shape_of_range(pass, range),
                                          .qkv = qkv,
                                          .o = o,
                                          .lse = lse_of_range(lse, range),
                                          .d_o = d_o,
                                          .dqkv = dqkv,
                                          .workspace = workspace_,
                                          .dropout_seed = dropout_seed(pass),
                                          .document_start = pass.document_start,
                                          .kv = keys_->kv(),
                                          .dkv = keys_->dkv()});
    keys_->add(context, range.begin + range.count, range.local == 0);
  }
  keys_->scatter(context, dqkv);
}

}  // namespace te::model
