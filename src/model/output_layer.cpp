#include "model/output_layer.h"

#include <algorithm>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gemm/gemm.h"

namespace te::model {
namespace {

// Large enough to fill a GPU with one product, small enough that logits stay below 1 GiB for the largest
// vocabularies.
constexpr int64_t kChunkTokens = 8192;

}  // namespace

OutputLayer::OutputLayer(const config::Config& config, ParameterStore& parameters, Parameter* tied)
    : vocab_(config.model.vocab_size),
      padded_vocab_(config.model.padded_vocab_size()),
      tokens_(config.training.micro_batch_size * config.model.seq_length),
      chunk_(std::min(tokens_, kChunkTokens)),
      dtype_(Dimensions::of(config).dtype),
      weight_(tied) {
  if (weight_ == nullptr) {
    weight_ = parameters.add({.name = "output_layer.weight",
                              .shard = ParameterShard::whole({padded_vocab_, config.model.hidden_size}),
                              .std = static_cast<float>(config.model.init_method_std),
                              .decay = true});
  }
}

void OutputLayer::plan(MemoryPlan& plan) {
  plan.add(logits_, "output_layer.logits", MemoryKind::scratch, dtype_, {chunk_, padded_vocab_});
  plan.add(losses_, "output_layer.losses", MemoryKind::data, DType::f32, {tokens_});
}

void OutputLayer::logits(const Context& context, const Tensor& h, const Tensor& out) const {
  kernels::gemm(context, {.a = h, .b = weight_->value, .out = out, .trans_b = true});
}

void OutputLayer::run(const Context& context, const Tensor& h, const Tensor& targets, float grad_scale,
                      const Tensor& loss_sum, const Tensor& d_h) const {
  for (int64_t begin = 0; begin < tokens_; begin += chunk_) {
    const int64_t rows = std::min(chunk_, tokens_ - begin);
    const Tensor h_chunk = h.slice_rows(begin, rows);
    const Tensor chunk = logits_.slice_rows(0, rows);
    // 1. Logits of the chunk.
    logits(context, h_chunk, chunk);
    // 2. Loss per token; in training the logits become their gradient.
    kernels::cross_entropy(context,
                           {.logits = chunk,
                            .targets = targets.view({tokens_, 1}).slice_rows(begin, rows).view({rows}),
                            .losses = losses_.view({tokens_, 1}).slice_rows(begin, rows).view({rows}),
                            .vocab = vocab_,
                            .grad_scale = grad_scale});
    if (grad_scale == 0.0f) continue;
    // 3. Gradient of h, and of the head.
    kernels::gemm(context, {.a = chunk, .b = weight_->value, .out = d_h.slice_rows(begin, rows)});
    kernels::gemm(context,
                  {.a = chunk, .b = h_chunk, .out = weight_->grad, .trans_a = true, .accumulate = true});
  }
  kernels::accumulate_sum(context, losses_, loss_sum);
}

}  // namespace te::model
