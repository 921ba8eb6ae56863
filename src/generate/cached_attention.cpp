#include "generate/cached_attention.h"

#include "kernels/rope/rope.h"

namespace te::generate {

CachedAttention::CachedAttention(const config::ModelConfig& model, int tensor_ranks,
                                 const model::RopeTables& rope, const CachedRows& rows)
    : num_heads_(model.num_attention_heads / tensor_ranks),
      num_query_groups_(model.num_query_groups / tensor_ranks),
      head_dim_(model.kv_channels),
      seq_(model.seq_length),
      window_(model.windowed() ? model.sliding_window : 0),
      softmax_scale_(static_cast<float>(model.softmax_scale())),
      rope_(rope),
      rows_(rows) {}

void CachedAttention::plan(MemoryPlan& plan, const std::string& name, DType dtype, int64_t tokens) {
  const Shape shape{tokens, num_query_groups_, head_dim_};
  plan.add({storage_, storage_.k}, name + ".cache.k", MemoryKind::activations, dtype, shape);
  plan.add({storage_, storage_.v}, name + ".cache.v", MemoryKind::activations, dtype, shape);
}

void CachedAttention::resize_cache(int64_t batch, int64_t length) {
  const auto slice = [&](const Tensor& all) {
    return Tensor{all.data, all.dtype, {batch, length, num_query_groups_, head_dim_}};
  };
  cache_ = {slice(storage_.k), slice(storage_.v)};
}

void CachedAttention::copy_prefix(const Context& context, int64_t from, int64_t to, int64_t length) const {
  for (const Tensor& cache : {cache_.k, cache_.v}) {
    const Tensor rows = cache.view({cache.dim(0) * cache.dim(1), cache.dim(2) * cache.dim(3)});
    context.copy(rows.slice_rows(to * cache.dim(1), length), rows.slice_rows(from * cache.dim(1), length));
  }
}

void CachedAttention::forward(const Context& context, const Tensor& qkv, const Tensor&, const Tensor& o,
                              const Tensor&, const model::Pass& pass) const {
  const kernels::AttentionDecode decode{.qkv = qkv,
                                        .sequences = rows_.sequences,
                                        .positions = pass.positions,
                                        .cache = cache_,
                                        .softmax_scale = softmax_scale_,
                                        .o = o,
                                        .window = window_};
  if (rows_.one_token_per_sequence) return kernels::attention_step(context, {decode, rope_.cos, rope_.sin});
  // 1. Rotary embedding, by the position of each token.
  if (rope_.cos)
    kernels::rope(context, {.qkv = qkv,
                            .cos = rope_.cos,
                            .sin = rope_.sin,
                            .seq = seq_,
                            .num_heads = num_heads_,
                            .num_query_groups = num_query_groups_,
                            .head_dim = head_dim_,
                            .positions = pass.positions});
  // 2. Add keys and values to the cache.
  const auto appended = [&](const Tensor& ids) { return Tensor{ids.data, ids.dtype, {rows_.appended}}; };
  kernels::cache_append(context, {.qkv = qkv.slice_rows(0, rows_.appended),
                                  .sequences = appended(rows_.sequences),
                                  .positions = appended(pass.positions),
                                  .cache = cache_});
  // 3. Attention to the cache.
  kernels::attention_decode(context, decode);
}

}  // namespace te::generate
