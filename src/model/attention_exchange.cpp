#include "model/attention_exchange.h"

#include <numeric>

#include "kernels/elementwise/elementwise.h"
#include "kernels/rearrange/rearrange.h"
#include "model/layer_steps.h"

namespace te::model {
namespace {

const Lifetime kBackward = live(Step::attention_backward);
const Lifetime kBoth = live(Step::attention) | kBackward;

}  // namespace

// --- heads -------------------------------------------------------------------------------------------------

void HeadAllToAll::plan(MemoryPlan& plan, const std::string& name) {
  const Shape shape{dims_.tokens, dims_.qkv};
  plan.add(sent_, name + ".heads_sent", MemoryKind::scratch, dims_.dtype, shape, {Buffer::sent, kBoth});
  plan.add(received_, name + ".heads_received", MemoryKind::scratch, dims_.dtype, shape,
           {Buffer::received, kBoth});
}

void HeadAllToAll::chunks(const Context& context, const Tensor& tokens, const Blocks& blocks,
                          const Tensor& parts, bool join) const {
  int64_t begin = 0;
  for (const int64_t block : blocks) {
    kernels::column_chunks(context, {.full = tokens,
                                     .parts = parts,
                                     .begin = begin,
                                     .at = begin / ranks_.size(),
                                     .cols = block / ranks_.size(),
                                     .join = join});
    begin += block;
  }
}

void HeadAllToAll::to_heads(const Context& context, const Tensor& tokens, const Blocks& blocks,
                            const Tensor& heads) const {
  const int64_t width = std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) / ranks_.size();
  const Tensor sent{sent_.data, dims_.dtype, {ranks_.size(), dims_.tokens, width}};
  const Tensor received{received_.data, dims_.dtype, {ranks_.size() * dims_.tokens, width}};
  chunks(context, tokens, blocks, sent, false);
  ranks_.group().all_to_all(context, sent, received);
  ranks_.in_order(context, received, heads);
}

void HeadAllToAll::to_tokens(const Context& context, const Tensor& heads, const Blocks& blocks,
                             const Tensor& tokens) const {
  const int64_t width = std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) / ranks_.size();
  const Tensor sent{sent_.data, dims_.dtype, {ranks_.size() * dims_.tokens, width}};
  const Tensor received{received_.data, dims_.dtype, {ranks_.size(), dims_.tokens, width}};
  ranks_.by_rank(context, heads, sent);
  ranks_.group().all_to_all(context, sent, received);
  chunks(context, tokens, blocks, received, true);
}

// --- keys and values ---------------------------------------------------------------------------------------

void KeyValueAllGather::plan(MemoryPlan& plan, const std::string& name) {
  const auto add = [&](PlannedTensor& slot, const char* what, Buffer buffer, int64_t rows,
                       Lifetime lifetime) {
    plan.add(slot, name + what, MemoryKind::scratch, dims_.dtype, {rows, width_}, {buffer, lifetime});
  };
  const int64_t all = ranks_.size() * dims_.tokens;
  add(own_, ".kv_own", Buffer::own, dims_.tokens, kBoth);
  add(by_rank_, ".kv_by_rank", Buffer::by_rank, all, kBoth);
  add(kv_, ".kv", Buffer::kv, all, kBoth);
  add(dkv_, ".dkv", Buffer::dkv, all, kBackward);
  add(sum_, ".dkv_sum", Buffer::sum, all, kBackward);
}

void KeyValueAllGather::own_columns(const Context& context, const Tensor& qkv, bool join) const {
  kernels::column_chunks(context, {.full = qkv,
                                   .parts = own_.view({1, dims_.tokens, width_}),
                                   .begin = dims_.qkv - width_,
                                   .at = 0,
                                   .cols = width_,
                                   .join = join});
}

void KeyValueAllGather::gather(const Context& context, const Tensor& qkv) const {
  own_columns(context, qkv, false);
  ranks_.group().all_gather(context, own_, by_rank_);
  ranks_.in_order(context, by_rank_, kv_);
}

void KeyValueAllGather::add(const Context& context, int64_t keys, bool first) const {
  if (first) context.zero(sum_);
  for (int64_t sample = 0; sample < dims_.batch; ++sample) {
    const Tensor sum = sum_.slice_rows(sample * dims_.seq, keys);
    kernels::add(context, sum, dkv_.slice_rows(sample * dims_.seq, keys), sum);
  }
}

void KeyValueAllGather::scatter(const Context& context, const Tensor& dqkv) const {
  ranks_.by_rank(context, sum_, by_rank_);
  ranks_.group().reduce_scatter(context, by_rank_, own_);
  own_columns(context, dqkv, true);
}

}  // namespace te::model
