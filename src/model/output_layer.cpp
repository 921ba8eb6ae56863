#include "model/output_layer.h"

#include <algorithm>

#include "core/profile.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gemm/gemm.h"

namespace te::model {
namespace {

// Large enough to fill a GPU with one product, small enough that logits stay below 1 GiB for the largest
// vocabularies.
constexpr int64_t kChunkTokens = 8192;

Tensor vector_rows(const Tensor& vector, int64_t first, int64_t count) {
  return vector.view({vector.numel(), 1}).slice_rows(first, count).view({count});
}

}  // namespace

OutputLayer::OutputLayer(const config::Config& config, ParameterStore& parameters, Parameter* tied,
                         parallel::TensorParallel& tensor)
    : tensor_(tensor),
      dims_(Dimensions::of(config, tensor)),
      vocab_(config.model.vocab_size),
      chunk_(std::min(dims_.tokens, kChunkTokens)),
      weight_(tied) {
  if (weight_ != nullptr) return;
  const int64_t rows = config.model.padded_vocab_size();
  const bool copy = config.model.tie_word_embeddings;
  weight_ = parameters.add(
      {.name = copy ? "embedding.word_embeddings.weight" : "output_layer.weight",
       .shard = ParameterShard::of_rows({rows, dims_.hidden}, {rows}, tensor.rank(), tensor.size()),
       .std = static_cast<float>(config.model.init_method_std),
       .decay = true,
       .copy = copy});
}

void OutputLayer::plan(MemoryPlan& plan) {
  plan.add(logits_, "output_layer.logits", MemoryKind::scratch, dims_.dtype, {chunk_, dims_.vocab});
  plan.add(losses_, "output_layer.losses", MemoryKind::data, DType::f32, {dims_.tokens});
  if (tensor_.size() == 1) return;
  plan.add(statistics_, "output_layer.statistics", MemoryKind::scratch, DType::f32,
           {tensor_.size(), 3 * chunk_});
}

void OutputLayer::logits(const Context& context, const Tensor& h, const Tensor& out) const {
  const ProfileLabel label("head fprop");
  kernels::gemm(context, {.a = h, .b = weight_->value, .out = out, .trans_b = true});
}

void OutputLayer::losses(const Context& context, const Tensor& logits, const Tensor& targets,
                         const Tensor& losses, float grad_scale) const {
  if (tensor_.size() == 1) {
    return kernels::cross_entropy(
        context,
        {.logits = logits, .targets = targets, .losses = losses, .vocab = vocab_, .grad_scale = grad_scale});
  }
  const int64_t ranks = tensor_.size(), rows = logits.rows(), first = dims_.vocab * tensor_.rank();
  const Tensor all{statistics_.data, DType::f32, {ranks, 3 * rows}};
  const Tensor own = all.slice_rows(tensor_.rank(), 1).view({3, rows});
  kernels::cross_entropy_statistics(
      context, {.logits = logits, .targets = targets, .first = first, .vocab = vocab_, .statistics = own});
  tensor_.group().all_gather(context, own, all);
  kernels::cross_entropy_from_statistics(context, {.logits = logits,
                                                   .targets = targets,
                                                   .first = first,
                                                   .vocab = vocab_,
                                                   .statistics = all.view({ranks, 3, rows}),
                                                   .losses = losses,
                                                   .grad_scale = grad_scale});
}

void OutputLayer::run(const Context& context, const Tensor& h, const Tensor& targets, float grad_scale,
                      const Tensor& loss_sum, const Scratch& scratch) {
  // 1. The hidden states of all tokens.
  const Tensor whole = tensor_.sequence() ? scratch.whole : h;
  tensor_.gather(context, h, whole);
  for (int64_t begin = 0; begin < dims_.tokens; begin += chunk_) {
    const int64_t rows = std::min(chunk_, dims_.tokens - begin);
    const Tensor states = whole.slice_rows(begin, rows), chunk = logits_.slice_rows(0, rows);
    // 2. Logits of the chunk.
    logits(context, states, chunk);
    // 3. Loss per token; in training the logits become their gradient.
    losses(context, chunk, vector_rows(targets, begin, rows), vector_rows(losses_, begin, rows), grad_scale);
    if (grad_scale == 0.0f) continue;
    // 4. Gradient of the head, then of the states, in their place.
    {
      const ProfileLabel label("head wgrad");
      kernels::gemm(context,
                    {.a = chunk, .b = states, .out = weight_->grad, .trans_a = true, .accumulate = true});
    }
    const ProfileLabel label("head dgrad");
    kernels::gemm(context, {.a = chunk, .b = weight_->value, .out = states});
  }
  if (grad_scale != 0.0f) tensor_.reduce(context, whole, h, [](int64_t, int64_t) {});
  if (tensor_.rank() == 0) kernels::accumulate_sum(context, losses_, loss_sum);
}

}  // namespace te::model
