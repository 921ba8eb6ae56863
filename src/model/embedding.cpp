#include "model/embedding.h"

#include "core/random.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"

namespace te::model {

Embedding::Embedding(const config::Config& config, ParameterStore& parameters)
    : dims_(Dimensions::of(config)), dropout_(static_cast<float>(config.model.hidden_dropout)) {
  const float std = static_cast<float>(config.model.init_method_std);
  words_ = parameters.add(
      {.name = "embedding.word_embeddings.weight",
       .shard = ParameterShard::whole({config.model.padded_vocab_size(), config.model.hidden_size}),
       .std = std,
       .decay = true});
  if (config.model.family == config::Family::gpt) {
    positions_ = parameters.add(
        {.name = "embedding.position_embeddings.weight",
         .shard = ParameterShard::whole({config.model.max_position_embeddings, config.model.hidden_size}),
         .std = std,
         .decay = true});
  }
}

void Embedding::plan(MemoryPlan& plan, const Context& context) {
  const int64_t bytes = kernels::embedding_backward_workspace_bytes(context, dims_.tokens, dims_.hidden);
  if (bytes > 0) plan.add(workspace_, "embedding.workspace", MemoryKind::scratch, DType::u8, {bytes});
}

void Embedding::forward(const Context& context, const Tensor& tokens, const Tensor& x,
                        const Pass& pass) const {
  kernels::embedding_forward(context, {.tokens = tokens,
                                       .table = words_->value,
                                       .positions = positions_ != nullptr ? positions_->value : Tensor{},
                                       .seq = dims_.seq,
                                       .out = x});
  dropout(context, x, pass);
}

void Embedding::backward(const Context& context, const Tensor& tokens, const Tensor& d_x,
                         const Pass& pass) const {
  dropout(context, d_x, pass);
  kernels::embedding_backward(context, {.tokens = tokens,
                                        .dout = d_x,
                                        .seq = dims_.seq,
                                        .dtable = words_->grad,
                                        .dpositions = positions_ != nullptr ? positions_->grad : Tensor{},
                                        .workspace = workspace_});
}

void Embedding::dropout(const Context& context, const Tensor& x, const Pass& pass) const {
  if (dropout_ == 0.0f || pass.evaluating()) return;
  kernels::dropout(context, {.x = x,
                             .y = x,
                             .probability = dropout_,
                             .seed = pass.dropout_seed,
                             .stream = stream_of("embedding.dropout"),
                             .first_row = static_cast<uint64_t>(pass.first_sample * dims_.seq)});
}

}  // namespace te::model
