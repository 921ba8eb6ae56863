#include "model/output_layer.h"

#include <algorithm>
#include <string>

#include "core/profile.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"

namespace te::model {

namespace {

// Large enough for efficient GEMMs, small enough to bound the memory of the logits: 4 GiB in BF16 with 262144 tokens.
constexpr int64_t kChunkTokens = 8192;

Tensor vector_rows(const Tensor& vector, int64_t first, int64_t count) {
  return vector.view({vector.numel(), 1}).slice_rows(first, count).view({count});
}

/// The tied embedding if this rank has it, else a separate weight.
parameters::Parameter* head_weight(const config::ModelConfig& model, parameters::ParameterStore& parameters,
                                   parameters::Parameter* tied, const parallel::TensorParallel& tensor) {
  if (tied != nullptr) return tied;
  const int64_t rows = model.padded_vocab_size();
  const bool copy = model.tie_word_embeddings;
  return parameters.add({.id = {copy ? ParameterRole::word_embeddings : ParameterRole::output_layer},
                         .shard = parameters::ParameterShard::of_rows({rows, model.hidden_size}, {rows},
                                                                      tensor.rank(), tensor.size()),
                         .std = model.starts_with_zeros(LinearKind::output_layer)
                                    ? 0.0f
                                    : static_cast<float>(model.init_method_std),
                         .decay = true,
                         .copy = copy});
}

}  // namespace

OutputLayer::OutputLayer(const LayerConfig& config, parameters::ParameterStore& parameters,
                         parameters::Parameter* tied, Recipe& recipe, parallel::TensorParallel& tensor)
    : Linear({.id = {static_cast<int>(config.model.num_layers), LinearKind::output_layer}},
             head_weight(config.model, parameters, tied, tensor), recipe, tensor),
      dims_(config.dims),
      kept_weights_(config.kept_weights),
      vocab_(config.model.vocab_size),
      chunk_(std::min(dims_.tokens, kChunkTokens)),
      z_loss_(config.z_loss),
      soft_cap_(static_cast<float>(config.model.final_logit_softcapping)) {}

void OutputLayer::plan(MemoryPlan& plan, bool training) {
  const LinearUse use{.dims = dims_,
                      .tag = Chunk::linear,
                      .recompute = config::Recompute::none,
                      .input = Step::output_layer,
                      .forward = Step::output_layer,
                      .grad = live(Step::output_layer),
                      .backward = Step::output_layer,
                      .weights = kept_weights_};
  plan_weights(plan, use, training);
  const auto add = [&](PlannedTensor& slot, const char* name, Chunk tag, DType dtype, Shape shape) {
    plan.add(slot, spec_.name + name, MemoryKind::scratch, dtype, shape, {tag, live(Step::output_layer)});
  };
  add(logits_, ".logits", Chunk::logits, dims_.dtype, {chunk_, dims_.vocab});
  add(losses_, ".losses", Chunk::losses, DType::f32, {dims_.tokens});
  if (z_loss_ != 0.0f) add(z_losses_, ".z_losses", Chunk::z_losses, DType::f32, {dims_.tokens});
  if (tensor_.size() > 1)
    add(statistics_, ".statistics", Chunk::statistics, DType::f32, {tensor_.size(), 3 * chunk_});
  if (tensor_.sequence()) add(full_, ".full", Chunk::full, dims_.dtype, {dims_.tokens, dims_.hidden});
  const auto storage = [&](const fp8::Quantizer& quantizer, Planned<Operand>& operand, const char* name,
                           Buffer tag, int64_t width) {
    quantizer.plan(plan, operand,
                   {.name = spec_.name + name,
                    .rows = chunk_,
                    .cols = width,
                    .scales = MemoryKind::scratch,
                    .tag = use.tag / tag,
                    .rowwise = live(Step::output_layer),
                    .columnwise = live(Step::output_layer)});
  };
  storage(input_quantizer_, input_, ".input", Buffer::input, dims_.hidden);
  storage(grad_quantizer_, grad_, ".grad_output", Buffer::grad_output, dims_.vocab);
}

void OutputLayer::logits(const Context& context, const Tensor& h, const Tensor& out) const {
  const ProfileLabel label(spec_.name, "fprop");
  kernels::gemm(context, {.a = h, .b = weight_->value, .out = out, .trans_b = true, .early_b = true});
  cap_logits(context, out);
}

void OutputLayer::cap_logits(const Context& context, const Tensor& logits) const {
  if (soft_cap_ != 0.0f) kernels::soft_cap(context, logits, soft_cap_);
}

void OutputLayer::losses(const Context& context, const Tensor& logits, const Tensor& targets,
                         const Tensor& losses, const Tensor& z_losses, float grad_scale) const {
  if (tensor_.size() == 1) {
    return kernels::cross_entropy(context, {.logits = logits,
                                            .targets = targets,
                                            .losses = losses,
                                            .vocab = vocab_,
                                            .grad_scale = grad_scale,
                                            .z_loss = z_loss_,
                                            .soft_cap = soft_cap_,
                                            .z_losses = z_losses});
  }
  const int64_t ranks = tensor_.size(), rows = logits.rows(), first = dims_.vocab * tensor_.rank();
  const Tensor all{statistics_.data, DType::f32, {ranks, 3 * rows}};
  const Tensor own = all.slice_rows(tensor_.rank(), 1).view({3, rows});
  kernels::cross_entropy_statistics(context, {.logits = logits,
                                              .targets = targets,
                                              .first = first,
                                              .vocab = vocab_,
                                              .statistics = own,
                                              .soft_cap = soft_cap_});
  tensor_.group().all_gather(context, own, all);
  kernels::cross_entropy_from_statistics(context, {.logits = logits,
                                                   .targets = targets,
                                                   .first = first,
                                                   .vocab = vocab_,
                                                   .statistics = all.view({ranks, 3, rows}),
                                                   .losses = losses,
                                                   .grad_scale = grad_scale,
                                                   .z_loss = z_loss_,
                                                   .soft_cap = soft_cap_,
                                                   .z_losses = z_losses});
}

// The last chunk may be shorter.
ReadyOperand OutputLayer::complete(const Context& context, const fp8::Quantizer& quantizer,
                                   const Tensor& values, const Operand& storage, const Pass& pass) const {
  const ProfileLabel label(spec_.name);
  return quantizer.complete(context, storage.first_rows(values.rows()), {.high_precision = values},
                            pass.quantize_mode());
}

void OutputLayer::run(const Context& context, const Tensor& h, const Tensor& targets, float grad_scale,
                      const Tensor& loss_sum, const Pass& pass) {
  const bool training = grad_scale != 0.0f, sums_z = z_losses_ && pass.z_loss_sum;
  prepare_fprop_weight(context);
  if (training) prepare_dgrad_weight(context);
  // 1. The hidden states of all tokens.
  const Tensor full = tensor_.sequence() ? full_ : h;
  tensor_.gather(context, h, full);
  for (int64_t begin = 0; begin < dims_.tokens; begin += chunk_) {
    const int64_t rows = std::min(chunk_, dims_.tokens - begin);
    const Tensor states = full.slice_rows(begin, rows), chunk = logits_.slice_rows(0, rows);
    // 2. Logits of the chunk.
    const ReadyOperand input = complete(context, input_quantizer_, states, input_, pass);
    fprop(context, input, chunk, 0, rows, false);
    // 3. Loss per token; in training the logits are replaced by their gradient.
    losses(context, chunk, vector_rows(targets, begin, rows), vector_rows(losses_, begin, rows),
           sums_z ? vector_rows(z_losses_, begin, rows) : Tensor{}, grad_scale);
    if (!training) continue;
    // 4. Weight gradient, then the gradient of the states, in place.
    const ReadyOperand grad = complete(context, grad_quantizer_, chunk, grad_, pass);
    wgrad(context, grad, input);
    dgrad(context, grad, states, 0, rows);
  }
  if (training) tensor_.reduce(context, full, h, [](int64_t, int64_t) {});
  if (tensor_.rank() != 0) return;
  kernels::accumulate_sum(context, losses_, loss_sum);
  if (sums_z) kernels::accumulate_sum(context, z_losses_, pass.z_loss_sum);
  // 5. The loss per sequence, if requested.
  const int64_t sequences = pass.sequence_losses ? pass.sequence_losses.numel() : 0;
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t length = dims_.tokens / sequences;
    kernels::accumulate_sum(context, vector_rows(losses_, i * length, length),
                            vector_rows(pass.sequence_losses, i, 1));
  }
}

}  // namespace te::model
