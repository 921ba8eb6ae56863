#include "model/embedding.h"

#include "core/random.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"

namespace te::model {

void stream_dropout(const Context& context, const Tensor& x, const Tensor& y, float probability,
                    uint64_t stream, const Pass& pass, const Dimensions& dims,
                    const parallel::TensorParallel& tensor) {
  for (const auto& run : tensor.runs(dims.tokens)) {
    kernels::dropout(context, {.x = x.slice_rows(run.local, run.count),
                               .y = y.slice_rows(run.local, run.count),
                               .probability = probability,
                               .seed = pass.dropout_seed,
                               .stream = stream,
                               .first_row = static_cast<uint64_t>(pass.first_sample * dims.seq + run.token)});
  }
}

VocabParallelEmbedding::VocabParallelEmbedding(const config::Config& config,
                                               parameters::ParameterStore& parameters,
                                               parallel::TensorParallel& tensor)
    : tensor_(tensor),
      dims_(Dimensions::of(config, tensor)),
      dropout_(static_cast<float>(config.model.embedding_dropout_rate())) {
  const int64_t vocab = config.model.padded_vocab_size(), hidden = config.model.hidden_size;
  const float std = static_cast<float>(config.model.init_method_std);
  words_ = parameters.add(
      {.name = "embedding.word_embeddings.weight",
       .shard = parameters::ParameterShard::of_rows({vocab, hidden}, {vocab}, tensor.rank(), tensor.size()),
       .std = std,
       .decay = true,
       .copied = config.model.tie_word_embeddings && config.parallel.pipeline > 1});
  if (!config.model.rotary()) {
    positions_ = parameters.add(
        {.name = "embedding.position_embeddings.weight",
         .shard = parameters::ParameterShard::whole({config.model.max_position_embeddings, hidden}),
         .std = std,
         .decay = true,
         .sharing = parameters::Sharing::replicated});
  }
}

void VocabParallelEmbedding::plan(MemoryPlan& plan, const Context& context) {
  const int64_t bytes = kernels::embedding_backward_workspace_bytes(context, dims_.tokens, dims_.hidden);
  if (bytes > 0)
    plan.add(workspace_, "embedding.workspace", MemoryKind::scratch, DType::u8, {bytes},
             live(Step::embedding_backward));
  if (tensor_.sequence())
    plan.add(whole_, "embedding.whole", MemoryKind::scratch, dims_.dtype, {dims_.tokens, dims_.hidden},
             live(Step::embedding) | live(Step::embedding_backward));
}

void VocabParallelEmbedding::forward(const Context& context, const Tensor& tokens, const Tensor& x,
                                     const Pass& pass) {
  pass.enter(context, Step::embedding);
  // 1. Words of this rank's slice; positions enter the sum once.
  const Tensor whole = tensor_.sequence() ? whole_ : x;
  const bool adds_positions = positions_ != nullptr && tensor_.rank() == 0;
  kernels::embedding_forward(context, {.tokens = tokens,
                                       .table = words_->value,
                                       .positions = adds_positions ? positions_->value : Tensor{},
                                       .seq = dims_.seq,
                                       .out = whole,
                                       .first_token = dims_.vocab * tensor_.rank(),
                                       .position_ids = pass.cached.positions});
  // 2. The sum over the ranks; with sequence parallelism, of this rank's tokens.
  tensor_.reduce(context, whole, x, [](int64_t, int64_t) {});
  dropout(context, x, pass);
}

void VocabParallelEmbedding::backward(const Context& context, const Tensor& tokens, const Tensor& d_x,
                                      const Pass& pass) {
  pass.enter(context, Step::embedding_backward);
  dropout(context, d_x, pass);
  const Tensor whole = tensor_.sequence() ? whole_ : d_x;
  tensor_.gather(context, d_x, whole);
  TE_CHECK(!words_->grad_stale, "{}: rows are added before the head's product has written it", words_->name);
  kernels::embedding_backward(context, {.tokens = tokens,
                                        .dout = whole,
                                        .seq = dims_.seq,
                                        .dtable = words_->grad,
                                        .dpositions = positions_ != nullptr ? positions_->grad : Tensor{},
                                        .workspace = workspace_,
                                        .first_token = dims_.vocab * tensor_.rank()});
}

void VocabParallelEmbedding::dropout(const Context& context, const Tensor& x, const Pass& pass) const {
  if (dropout_ == 0.0f || pass.evaluating()) return;
  stream_dropout(context, x, x, dropout_, stream_of("embedding.dropout"), pass, dims_, tensor_);
}

}  // namespace te::model
