#include "model/model_stage.h"

#include <algorithm>
#include <utility>

#include "core/profile.h"
#include "kernels/elementwise/elementwise.h"
#include "model/pipeline_pieces.h"

namespace te::model {
namespace {

bool full_recompute(const config::Config& config) {
  return config.training.recompute == config::Recompute::full;
}

// True if no BF16 weights are needed, because FP8 weights with a kept layout are quantized from the FP32 master
// weights. Several data-parallel ranks exchange BF16 weights; samples and evaluation tasks during training and BF16
// steps read them.
bool drops_values(const config::Config& config, int data_ranks) {
  return config.precision.dtype == config::ComputeDType::bf16 && data_ranks == 1 &&
         !config.optimizer.store_param_remainders && config.optimizer.offload != config::Offload::state &&
         !config::reads_values_of_fp8_weights(config) &&
         config::fp8_kept_weights(config) != config::Fp8KeptWeights::none;
}

parameters::ShardRanks shard_ranks(const parallel::Groups& groups) {
  parameters::ShardRanks ranks;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const parallel::Communicator& own = groups.gradient_ranks(kGradientGroups[i]);
    ranks[i] = {own.rank(), own.size()};
  }
  return ranks;
}

}  // namespace

// --- construction ------------------------------------------------------------------------------------------

ModelStage::ModelStage(const config::Config& config, const parallel::Groups& groups,
                       std::unique_ptr<fp8::Recipe> recipe)
    : config_(config),
      groups_(&groups),
      tensor_(groups.tensor(), config.parallel.sequence, static_cast<int>(config.parallel.tensor_overlap),
              groups.tensor_peer_transport()),
      context_ranks_(config.model, config.training.micro_batch_size, groups.context(),
                     groups.tensor().size()),
      layer_config_(LayerConfig::of(config, tensor_)),
      recipe_(recipe ? std::move(recipe)
                     : fp8::make_recipe(config.precision, static_cast<int>(config.model.num_layers))) {
  build();
}

ModelStage::ModelStage(const config::Config& config, std::unique_ptr<fp8::Recipe> recipe)
    : config_(config),
      own_groups_(std::make_unique<parallel::Groups>(parallel::Groups::single())),
      groups_(own_groups_.get()),
      tensor_(groups_->tensor(), false, 1),
      context_ranks_(config.model, config.training.micro_batch_size),
      layer_config_(LayerConfig::of(config, tensor_)),
      recipe_(recipe ? std::move(recipe)
                     : fp8::make_recipe(config.precision, static_cast<int>(config.model.num_layers))) {
  build();
}

ModelStage::~ModelStage() = default;

// Registers parameters in the order of the forward pass, so that the gradients of flat ranges finish from the end.
void ModelStage::build() {
  TE_CHECK(config_.parallel.context == context_ranks_.size(),
           "parallel.context is {}, but the context group has {} ranks", config_.parallel.context,
           context_ranks_.size());
  recipe_->set_amax_groups(groups_->microbatch(), groups_->stage());
  const int stages = groups_->grid()[parallel::Axis::pipeline],
            chunks = static_cast<int>(config_.parallel.virtual_stages);
  const auto split = pipeline_pieces(config_, stages);
  size_t first = 0;
  if (groups_->first_stage()) {
    embedding_ =
        std::make_unique<VocabParallelEmbedding>(layer_config_, parameters_, tensor_, context_ranks_);
    embedding_->words()->copied = config_.model.tie_word_embeddings && !groups_->last_stage();
    parameters_.end_layer();
    add_unit(first);
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int piece = chunk * stages + groups_->at()[parallel::Axis::pipeline];
    const auto [layer, count] = split[static_cast<size_t>(piece)];
    chunks_.push_back({layers_.size(), static_cast<size_t>(count), {}});
    for (int i = 0; i < count; ++i) {
      first = parameters_.parameters().size();
      const LayerConfig config = layer_config_.of_layer(layer + i);
      layers_.emplace_back(layer + i, config, parameters_, *recipe_, rope_.of(config.model), tensor_,
                           context_ranks_);
      add_unit(first);
    }
    parameters_.end_chunk();
  }
  if (groups_->last_stage()) {
    first = parameters_.parameters().size();
    final_layernorm_ =
        std::make_unique<Norm>(ParameterRole::final_norm, kNoLayer, config_.model, parameters_, tensor_);
    parameters::Parameter* tied =
        config_.model.tie_word_embeddings && embedding_ ? embedding_->words() : nullptr;
    output_layer_ = std::make_unique<OutputLayer>(layer_config_, parameters_, tied, *recipe_, tensor_);
    parameters_.end_layer();
    add_unit(first);
  }
  fresh_.assign(units_.size(), true);
}

void ModelStage::add_unit(size_t first) {
  units_.push_back({first, parameters_.parameters().size()});
}

// --- memory ------------------------------------------------------------------------------------------------

void ModelStage::plan(MemoryPlan& plan, const Context& context, const StageSlots& slots) {
  // With overlap, one bucket is used while another one is communicated.
  const auto sharded_slots = [&](config::Shard least, bool overlap) {
    const bool shards = slots.training && groups_->data().size() > 1 && config_.parallel.shard >= least;
    return shards ? (overlap ? 2 : 1) : 0;
  };
  parameters_.plan(
      plan,
      {.dtype = dims().dtype,
       .grad_dtype = config_.optimizer.main_grad_dtype == config::GradDType::fp32 ? DType::f32 : DType::bf16,
       .ranks = shard_ranks(*groups_),
       .tensor_rank = tensor_.rank(),
       .bucket_size = config_.parallel.bucket_size,
       .training = slots.training,
       .split = config_.optimizer.store_param_remainders,
       .drop_values = slots.training && drops_values(config_, groups_->data().size()),
       .gather_quantized = slots.training && config::gathers_fp8_weights(config_),
       .offload_mains = slots.training && config_.optimizer.offload == config::Offload::state,
       .grad_slots = sharded_slots(config::Shard::gradients, config_.parallel.overlap_grad_reduce),
       .value_slots = sharded_slots(config::Shard::parameters, config_.parallel.overlap_param_gather)});
  recipe_->plan(plan);
  tensor_.plan(plan, dims().dtype, dims().tokens, dims().hidden);
  rope_.plan(plan, config_.model);
  context_ranks_.plan(plan);
  if (embedding_) embedding_->plan(plan, context);
  // It lives from one pass to the next, and passes of other microbatches may run in between, so it has no lifetime.
  plan.add(d_residual_, "d_stream", MemoryKind::scratch, dims().dtype, {dims().residual_rows, dims().hidden});
  const bool deferred = slots.wgrad > 0;
  TE_CHECK(!deferred || config_.training.recompute == config::Recompute::none,
           "deferred wgrad needs saved inputs, which recomputation does not keep");
  gradients_.resize(static_cast<size_t>(std::max(slots.wgrad, 1)));
  for (auto& layers : gradients_) layers.resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].plan_weights(plan, slots.training, deferred);
    layers_[i].plan_scratch(plan, context);
    if (!deferred) layers_[i].plan_gradients(plan, gradients_[0][i], false);
  }
  if (deferred) plan_deferred_wgrad(plan);
  plan_slots(plan, slots.activations);
  if (output_layer_) {
    final_layernorm_->plan_scratch(plan, Step::final_norm_backward);
    output_layer_->plan(plan, slots.training);
  }
  recipe_->sharded_weights().plan(plan);
}

// A slot has the gradients of one microbatch in one chunk; all chunks share its memory.
void ModelStage::plan_deferred_wgrad(MemoryPlan& plan) {
  for (auto& gradients : gradients_) {
    plan.overlay(num_chunks(), [&](int c) {
      const Chunk& chunk = chunks_[static_cast<size_t>(c)];
      for (size_t i = chunk.first; i < chunk.first + chunk.count; ++i)
        layers_[i].plan_gradients(plan, gradients[i], true);
    });
  }
}

void ModelStage::plan_slots(MemoryPlan& plan, const std::vector<int>& counts) {
  const auto plan_one = [&](int c, size_t slot) {
    Chunk& chunk = chunks_[static_cast<size_t>(c)];
    plan_slot(plan, chunk, chunk.slots[slot], has_head(c));
  };
  const bool shared = counts.size() == 1;
  for (int c = 0; c < num_chunks(); ++c) {
    std::deque<Slot>& own = chunks_[static_cast<size_t>(c)].slots;
    own.resize(static_cast<size_t>(counts.at(shared ? 0 : static_cast<size_t>(c))));
    for (size_t slot = 0; !shared && slot < own.size(); ++slot) plan_one(c, slot);
  }
  for (size_t slot = 0; shared && slot < chunks_.front().slots.size(); ++slot)
    plan.overlay(num_chunks(), [&](int c) { plan_one(c, slot); });
}

void ModelStage::plan_slot(MemoryPlan& plan, Chunk& chunk, Slot& slot, bool head) {
  slot.layers.resize(chunk.count);
  for (size_t i = 0; i < chunk.count; ++i) {
    TransformerLayer& layer = layers_[chunk.first + i];
    layer.plan_input(plan, slot.layers[i]);
    layer.plan_activations(plan, slot.layers[i]);
  }
  if (!head) return;
  const Shape shape{dims().residual_rows, dims().hidden};
  plan.add(slot.final_x, "final_layernorm.x", MemoryKind::activations, dims().dtype, shape);
  plan.add(slot.final_h, "final_layernorm.out", MemoryKind::activations, dims().dtype, shape);
  final_layernorm_->plan_statistics(plan, slot.final_statistics, dims().residual_rows);
}

kernels::AttentionKernels ModelStage::attention_kernels(const Context& context) const {
  auto slowest = kernels::AttentionKernels::flash;
  for (const TransformerLayer& layer : layers_) slowest = std::max(slowest, layer.attention_kernels(context));
  return slowest;
}

void ModelStage::bind(const Context& context) {
  parameters_.bind(context);
  rope_.fill(context, config_.model);
  context_ranks_.fill(context);
  recipe_->reset(context);
}

// --- weights -----------------------------------------------------------------------------------------------

void ModelStage::initialize(const Context& context, uint64_t seed) {
  parameters_.initialize(context, seed);
}

void ModelStage::quantize_weights(const Context& context, bool count_fp8) {
  weights_changed(count_fp8);
  for (size_t i = 0; i < layers_.size(); ++i) before_use(context, unit_of_layer(i), &layers_[i]);
  if (output_layer_) before_use(context, units_.size() - 1, nullptr);
  fresh_.assign(units_.size(), true);
}

void ModelStage::weights_changed(bool count_fp8) {
  fresh_.assign(units_.size(), false);
  count_casts_ = count_fp8;
}

void ModelStage::quantize_sharded_weights(const Context& context, bool count_fp8) {
  const fp8::ShardedWeightQuantizer& weights = recipe_->sharded_weights();
  if (weights.size() == 0) return;
  const ProfileLabel label("weights");
  const auto for_parts = [&](const auto& work) {
    for (const parameters::Parameter& parameter : parameters_.parameters()) {
      if (!parameter.has_bytes) continue;
      for (const auto& [value, bytes] : parameters_.parts_to_cast(parameter))
        work(parameter.sharded_weight_index, value, bytes);
    }
  };
  weights.reset_amax(context);
  for_parts(
      [&](int weight, const Tensor& value, const Tensor&) { weights.record_amax(context, weight, value); });
  weights.all_reduce_amax(context, recipe_->stage_ranks());
  for_parts([&](int weight, const Tensor& value, const Tensor& bytes) {
    weights.quantize(context, weight, value, bytes,
                     count_fp8 ? recipe_->table().counters_of(weights.at(weight).index) : nullptr);
  });
}

void ModelStage::before_use(const Context& context, size_t unit, TransformerLayer* layer, int direction) {
  if (hooks_.before_parameters)
    for (const parameters::Bucket& range : ranges_of(unit))
      hooks_.before_parameters(context, range.begin, range.end, direction);
  if (fresh_[unit]) return;
  if (layer != nullptr) layer->quantize_weights(context, count_casts_);
  if (output_layer_ && unit == units_.size() - 1) output_layer_->quantize_weight(context, count_casts_);
  fresh_[unit] = true;
}

void ModelStage::before_wgrad(const Context& context, size_t unit) const {
  if (hooks_.before_wgrads)
    for (const parameters::Bucket& range : ranges_of(unit))
      hooks_.before_wgrads(context, range.begin, range.end);
}

void ModelStage::finished(const Context& context, size_t unit, const Pass& pass) const {
  if (hooks_.gradients_ready)
    for (const parameters::Bucket& range : ranges_of(unit))
      hooks_.gradients_ready(context, range.begin, range.end, pass.last_microbatch);
}

// --- passes ------------------------------------------------------------------------------------------------

Tensor ModelStage::input(const MicrobatchSlot& place) const {
  return chunks_[static_cast<size_t>(place.chunk)].slots[static_cast<size_t>(place.slot)].layers.front().x_in;
}

// The layer before `layer` in the chunk; empty for the first layer, which follows another chunk or the embedding.
PreviousLayer ModelStage::previous_layer(const Chunk& chunk, size_t layer, const MicrobatchSlot& place) {
  if (layer == chunk.first) return {};
  return {&layers_[layer - 1], &gradients_of(layer - 1, place)};
}

void ModelStage::forward(const Context& context, const MicrobatchSlot& place, const Tensor& tokens,
                         const Tensor& targets, float grad_scale, const Tensor& loss_sum, const Tensor& out,
                         const Pass& pass) {
  Chunk& chunk = chunks_[static_cast<size_t>(place.chunk)];
  Slot& slot = chunk.slots[static_cast<size_t>(place.slot)];
  // 1. Tokens become the residual stream.
  if (has_embedding(place.chunk)) {
    before_use(context, 0, nullptr);
    embedding_->forward(context, tokens, input(place), pass);
  }
  // 2. Layers, which pass the residual stream as (residual, delta); see transformer_layer.h.
  Tensor residual = input(place), delta;
  for (size_t i = 0; i < chunk.count; ++i) {
    TransformerLayer& layer = layers_[chunk.first + i];
    before_use(context, unit_of_layer(chunk.first + i), &layer);
    layer.forward(context, residual, delta, slot.layers[i], pass);
    residual = slot.layers[i].x_mid;
    delta = slot.layers[i].delta;
  }
  pass.begin_step(context, Step::head);
  // 3. The next chunk gets the sum of the two, which its first norm would otherwise compute.
  if (!has_head(place.chunk)) return kernels::add(context, residual, delta, out);
  // 4. Final norm, output layer and loss.
  final_norm(context, residual, delta, slot);
  if (loss_sum) output_layer_->run(context, slot.final_h, targets, grad_scale, loss_sum, pass);
}

void ModelStage::final_norm(const Context& context, const Tensor& residual, const Tensor& delta, Slot& slot) {
  before_use(context, units_.size() - 1, nullptr);
  final_layernorm_->forward(context, residual, delta, slot.final_x, slot.final_statistics,
                            Target(slot.final_h));
}

void ModelStage::backward(const Context& context, const MicrobatchSlot& place, const Tensor& tokens,
                          const Pass& pass) {
  Chunk& chunk = chunks_[static_cast<size_t>(place.chunk)];
  Slot& slot = chunk.slots[static_cast<size_t>(place.slot)];
  const bool deferred = place.wgrad_slot >= 0;
  // 3'. Final norm, whose output was overwritten by its gradient. Starts the gradient of the residual stream.
  if (has_head(place.chunk)) {
    pass.begin_step(context, Step::final_norm_backward);
    const PreviousLayer last = previous_layer(chunk, chunk.first + chunk.count, place);
    final_layernorm_->backward_no_residual(context, slot.final_h, slot.final_x, slot.final_statistics,
                                           d_residual_, last.grad_target(pass));
    finished(context, units_.size() - 1, pass);
  }
  // 2'. Layers, last first.
  for (size_t i = chunk.count; i-- > 0;) {
    const size_t index = chunk.first + i;
    TransformerLayer& layer = layers_[index];
    before_use(context, unit_of_layer(index), &layer, -1);
    if (!deferred) before_wgrad(context, unit_of_layer(index));
    if (full_recompute(config_)) {
      layer.forward(context, slot.layers[i].x_in, {}, slot.layers[i], pass.recomputed());
    }
    layer.backward(context, slot.layers[i], gradients_of(index, place), previous_layer(chunk, index, place),
                   d_residual_, pass, deferred);
    if (!deferred) finished(context, unit_of_layer(index), pass);
  }
  // 1'. Embedding.
  if (has_embedding(place.chunk)) {
    embedding_->backward(context, tokens, d_residual_, pass);
    finished(context, 0, pass);
  }
}

void ModelStage::wgrad(const Context& context, const MicrobatchSlot& place, const Pass& pass) {
  Chunk& chunk = chunks_[static_cast<size_t>(place.chunk)];
  const Slot& slot = chunk.slots[static_cast<size_t>(place.slot)];
  for (size_t i = chunk.count; i-- > 0;) {
    const size_t index = chunk.first + i;
    before_wgrad(context, unit_of_layer(index));
    layers_[index].wgrad(context, slot.layers[i], gradients_of(index, place));
    finished(context, unit_of_layer(index), pass);
  }
}

// --- the complete model ------------------------------------------------------------------------------------

void ModelStage::forward_backward(const Context& context, const Tensor& tokens, const Tensor& targets,
                                  float grad_scale, const Tensor& loss_sum, const Pass& pass) {
  forward(context, {}, tokens, targets, grad_scale, loss_sum, {}, pass);
  backward(context, {}, tokens, pass);
}

void ModelStage::evaluate(const Context& context, const Tensor& tokens, const Tensor& targets,
                          const Tensor& loss_sum) {
  forward(context, {}, tokens, targets, 0.0f, loss_sum, {}, {.kind = PassKind::evaluate});
}

void ModelStage::forward_logits(const Context& context, const Tensor& tokens, const Tensor& logits) {
  forward(context, {}, tokens, {}, 0.0f, {}, {}, {.kind = PassKind::evaluate});
  output_layer_->logits(context, chunks_[0].slots[0].final_h, logits);
}

}  // namespace te::model
