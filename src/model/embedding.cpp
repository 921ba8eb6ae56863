#include "model/embedding.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/float_types.h"
#include "core/random.h"
#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"

namespace te::model {

namespace {

/// The scale of model.scale_embedding, rounded to the compute dtype as in transformers.
float scale_of(const LayerConfig& config) {
  if (!config.model.scale_embedding) return 1.0f;
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(config.model.hidden_size)));
  float rounded = scale;
  visit_high_precision(config.dims.dtype,
                       [&](auto zero) { rounded = to_float(from_float<decltype(zero)>(scale)); });
  return rounded;
}

}  // namespace

void for_residual_rows(const Dimensions& dims, const parallel::TensorParallel& tensor,
                       const ContextParallel& ranks,
                       const std::function<void(int64_t row, int64_t full, int64_t count)>& work) {
  for (const auto& shard : tensor.ranges(dims.tokens))
    ranks.for_whole_ranges(shard.begin, shard.count, [&](int64_t token, int64_t full, int64_t count) {
      work(shard.local + token - shard.begin, full, count);
    });
}

void residual_dropout(const Context& context, const Tensor& x, const Tensor& y, float probability,
                      uint64_t stream, const Pass& pass, const Dimensions& dims,
                      const parallel::TensorParallel& tensor, const ContextParallel& ranks) {
  for_residual_rows(dims, tensor, ranks, [&](int64_t row, int64_t full, int64_t count) {
    kernels::dropout(context, {.x = x.slice_rows(row, count),
                               .y = y.slice_rows(row, count),
                               .probability = probability,
                               .seed = pass.dropout_seed,
                               .stream = stream,
                               .first_row = static_cast<uint64_t>(pass.first_sample * dims.seq + full)});
  });
}

VocabParallelEmbedding::VocabParallelEmbedding(const LayerConfig& config,
                                               parameters::ParameterStore& parameters,
                                               parallel::TensorParallel& tensor, const ContextParallel& ranks)
    : tensor_(tensor),
      ranks_(ranks),
      dims_(config.dims),
      scale_(scale_of(config)),
      dropout_(static_cast<float>(config.model.hidden_dropout)),
      noise_(static_cast<float>(
          config.neftune_noise_alpha /
          std::sqrt(static_cast<double>(config.dims.seq) * static_cast<double>(config.dims.hidden)))) {
  const int64_t vocab = config.model.padded_vocab_size(), hidden = config.model.hidden_size;
  const float std = static_cast<float>(config.model.embedding_init_std());
  const bool decay =
      config.model.embedding_init_method_std == 0.0;  // weight decay would undo the larger initial values
  words_ = parameters.add(
      {.id = {ParameterRole::word_embeddings},
       .shard = parameters::ParameterShard::of_rows({vocab, hidden}, {vocab}, tensor.rank(), tensor.size()),
       .std = std,
       .decay = decay});
  if (!config.model.rotary()) {
    positions_ = parameters.add(
        {.id = {ParameterRole::position_embeddings},
         .shard = parameters::ParameterShard::full({config.model.max_position_embeddings, hidden}),
         .std = std,
         .decay = decay,
         .sharing = parameters::Sharing::replicated});
  }
  if (config.model.embedding_norm)
    norm_ = std::make_unique<Norm>(ParameterRole::embedding_norm, kNoLayer, config.model, parameters, tensor);
}

void VocabParallelEmbedding::plan_activations(MemoryPlan& plan, PlannedTensor& raw,
                                              Planned<Norm::Statistics>& statistics) const {
  if (!norm_) return;
  plan.add(raw, "embedding.raw", MemoryKind::activations, dims_.dtype, {dims_.residual_rows, dims_.hidden});
  norm_->plan_statistics(plan, statistics, dims_.residual_rows);
}

void VocabParallelEmbedding::plan(MemoryPlan& plan, const Context& context) {
  const int64_t bytes = kernels::embedding_backward_workspace_bytes(context, dims_.tokens, dims_.hidden);
  if (bytes > 0)
    plan.add(workspace_, "embedding.workspace", MemoryKind::scratch, DType::u8, {bytes},
             {Buffer::workspace, live(Step::embedding_backward)});
  if (norm_) norm_->plan_scratch(plan, Step::embedding_backward);
  if (tensor_.sequence())
    plan.add(full_, "embedding.full", MemoryKind::scratch, dims_.dtype, {dims_.tokens, dims_.hidden},
             {Buffer::full, live(Step::embedding) | live(Step::embedding_backward)});
  if (positions_ != nullptr && ranks_.size() > 1)
    plan.add(d_positions_, "embedding.d_positions", MemoryKind::scratch, DType::f32,
             {ranks_.split().local(), dims_.hidden}, {Buffer::d_positions, live(Step::embedding_backward)});
}

void VocabParallelEmbedding::forward(const Context& context, const Tensor& tokens, const Tensor& x,
                                     const Activations& activations, const Pass& pass) {
  pass.begin_step(context, Step::embedding);
  const Tensor raw = norm_ ? activations.raw : x;
  // 1. Words of this rank's shard; only one rank adds the positions.
  const Tensor full = tensor_.sequence() ? full_ : raw;
  const bool adds_positions = positions_ != nullptr && tensor_.rank() == 0;
  kernels::embedding_forward(context, {.tokens = tokens,
                                       .table = words_->value,
                                       .positions = adds_positions ? positions_->value : Tensor{},
                                       .seq = dims_.seq,
                                       .out = full,
                                       .first_token = dims_.vocab * tensor_.rank(),
                                       .position_ids = pass.positions ? pass.positions : ranks_.positions()});
  // 2. The sum over the ranks; with sequence parallelism, only for this rank's tokens.
  tensor_.reduce(context, full, raw, [](int64_t, int64_t) {});
  if (scale_ != 1.0f) kernels::scale(context, raw, scale_);
  if (norm_) norm_->forward(context, raw, {}, raw, activations.statistics, {.high_precision = x});
  noise(context, x, pass);
  dropout(context, x, pass);
}

void VocabParallelEmbedding::backward(const Context& context, const Tensor& tokens, const Tensor& d_x,
                                      const Activations& activations, const Pass& pass) {
  pass.begin_step(context, Step::embedding_backward);
  const bool trains_positions = positions_ != nullptr && positions_->trainable;
  if (!words_->trainable && !trains_positions) return;
  dropout(context, d_x, pass);
  if (norm_) norm_->backward(context, d_x, activations.raw, activations.statistics, {}, d_x, {});
  if (scale_ != 1.0f) kernels::scale(context, d_x, scale_);
  const Tensor full = tensor_.sequence() ? full_ : d_x;
  tensor_.gather(context, d_x, full);
  TE_CHECK(!words_->grad_stale,
           "{}: rows are added to the gradient before the output layer's GEMM has written it", words_->name);
  const bool shares_positions = trains_positions && ranks_.size() > 1;
  const Tensor own{d_positions_.data, trains_positions ? positions_->grad.dtype : DType::f32,
                   d_positions_.shape};
  if (shares_positions) context.zero(own);
  kernels::embedding_backward(context, {.tokens = tokens,
                                        .dout = full,
                                        .seq = ranks_.split().local(),
                                        .dtable = words_->grad,
                                        .dpositions = shares_positions   ? own
                                                      : trains_positions ? positions_->grad
                                                                         : Tensor{},
                                        .workspace = workspace_,
                                        .first_token = dims_.vocab * tensor_.rank()});
  if (!shares_positions) return;
  for (const parallel::TokenRange& range : ranks_.split().ranges()) {
    const Tensor grad = positions_->grad.slice_rows(range.begin, range.count);
    kernels::add(context, grad, own.slice_rows(range.local, range.count), grad);
  }
}

void VocabParallelEmbedding::dropout(const Context& context, const Tensor& x, const Pass& pass) const {
  if (dropout_ == 0.0f || pass.evaluating()) return;
  residual_dropout(context, x, x, dropout_, stream_of("embedding.dropout"), pass, dims_, tensor_, ranks_);
}

void VocabParallelEmbedding::noise(const Context& context, const Tensor& x, const Pass& pass) const {
  if (noise_ == 0.0f || pass.evaluating()) return;
  for_residual_rows(dims_, tensor_, ranks_, [&](int64_t row, int64_t full, int64_t count) {
    kernels::uniform_noise(context,
                           {.x = x.slice_rows(row, count),
                            .amplitude = noise_,
                            .seed = pass.dropout_seed,
                            .stream = stream_of("embedding.noise"),
                            .first_row = static_cast<uint64_t>(pass.first_sample * dims_.seq + full)});
  });
}

}  // namespace te::model
