#include "model/model_stage.h"

#include <algorithm>
#include <utility>

#include "core/profile.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/moe/router.h"

namespace te::model {
namespace {

bool full_recompute(const config::Config& config) {
  return config.training.recompute == config::Recompute::full;
}

// True if no BF16 weights are needed, because FP8 weights with a kept layout are quantized from the FP32 master
// weights. Several data-parallel ranks exchange BF16 weights; samples and evaluation tasks during training and BF16
// steps read them.
bool drops_values(const config::Config& config, bool divides) {
  return config.precision.dtype == config::ComputeDType::bf16 && !divides &&
         !config.optimizer.store_param_remainders && config.optimizer.offload != config::Offload::state &&
         !config::reads_values_of_fp8_weights(config) &&
         config::fp8_kept_weights(config) != config::Fp8KeptWeights::none;
}

// True if weights that are not trained are held in FP8 only.
bool drops_base(const config::Config& config) {
  return config.adapter.on() && config.precision.dtype == config::ComputeDType::bf16 &&
         !config::reads_values_of_fp8_weights(config);
}

parameters::ShardRanks shard_ranks(const parallel::Groups& groups,
                                   const parameters::ParameterStore& parameters) {
  parameters::ShardRanks ranks;
  for (const parameters::Parameter& parameter : parameters.parameters()) {
    const parallel::Communicator& own = groups.gradient_ranks(parameter.group);
    ranks[static_cast<size_t>(parameter.group)] = {own.rank(), own.size()};
  }
  return ranks;
}

std::unique_ptr<fp8::Recipe> recipe_of(const config::Config& config, const parallel::Groups& groups,
                                       std::unique_ptr<fp8::Recipe> recipe) {
  if (!recipe) recipe = fp8::make_recipe(config.precision, static_cast<int>(config.model.num_layers));
  recipe->set_amax_groups(groups.microbatch(), groups.stage());
  recipe->set_expert_amax_group(groups.gradient_ranks(GradientGroup::expert));
  return recipe;
}

}  // namespace

// --- construction ------------------------------------------------------------------------------------------

// From the config to the layers:
//   1. tensor_, context_ranks_   the groups in which the ranks of a layer communicate
//   2. recipe_                   how the layers quantize (fp8::make_recipe)
//   3. stack_                    LayerConfig::of; embedding, layers (each with a FeedForward from the factory), output
//   4. plan()                    weights, FP8 state, scratch, and activations of the microbatches in flight
//   5. bind()                    after the allocation: parameters, tables and FP8 state
ModelStage::ModelStage(const config::Config& config, std::unique_ptr<parallel::Groups> own,
                       const parallel::Groups* groups, std::unique_ptr<fp8::Recipe> recipe,
                       const FeedForwardFactory& make_feed_forward)
    : config_(config),
      own_groups_(std::move(own)),
      groups_(own_groups_ ? own_groups_.get() : groups),
      tensor_(groups_->tensor(), config.parallel.sequence, static_cast<int>(config.parallel.tensor_overlap),
              groups_->tensor_peer_transport()),
      context_ranks_(config.model, config.training.micro_batch_size, groups_->context(), tensor_.size()),
      recipe_(recipe_of(config, *groups_, std::move(recipe))),
      stack_(config, *groups_, *recipe_, tensor_, context_ranks_, make_feed_forward),
      fresh_(stack_.units.size(), true) {
  TE_CHECK(config_.parallel.context == context_ranks_.size(),
           "parallel.context is {}, but the context group has {} ranks", config_.parallel.context,
           context_ranks_.size());
  TE_CHECK(config_.parallel.expert == groups_->expert().size(),
           "parallel.expert is {}, but the expert group has {} ranks", config_.parallel.expert,
           groups_->expert().size());
  for (const Stack::Chunk& chunk : stack_.chunks) chunks_.push_back({chunk, {}});
}

ModelStage::ModelStage(const config::Config& config, const parallel::Groups& groups,
                       std::unique_ptr<fp8::Recipe> recipe, const FeedForwardFactory& make_feed_forward)
    : ModelStage(config, nullptr, &groups, std::move(recipe), make_feed_forward) {}

ModelStage::ModelStage(const config::Config& config, std::unique_ptr<fp8::Recipe> recipe,
                       const FeedForwardFactory& make_feed_forward)
    : ModelStage(config, std::make_unique<parallel::Groups>(parallel::Groups::single()), nullptr,
                 std::move(recipe), make_feed_forward) {}

ModelStage::~ModelStage() = default;

// --- memory ------------------------------------------------------------------------------------------------

void ModelStage::plan(MemoryPlan& plan, const Context& context, const StageSlots& slots) {
  const parameters::ShardRanks ranks = shard_ranks(*groups_, stack_.parameters);
  const bool divides = parameters::StoreLayout{.ranks = ranks}.divides();
  // With overlap, one bucket is used while another one is communicated.
  const auto sharded_slots = [&](config::Shard least, bool overlap) {
    return slots.training && divides && config_.parallel.shard >= least ? (overlap ? 2 : 1) : 0;
  };
  stack_.parameters.plan(
      plan,
      {.dtype = dims().dtype,
       .grad_dtype = config_.optimizer.main_grad_dtype == config::GradDType::fp32 ? DType::f32 : DType::bf16,
       .ranks = ranks,
       .tensor_rank = tensor_.rank(),
       .bucket_size = config_.parallel.bucket_size,
       .training = slots.training,
       .split = config_.optimizer.store_param_remainders,
       .drop_values = slots.training && drops_values(config_, divides),
       .drop_base = slots.training && drops_base(config_),
       .gather_quantized =
           slots.training && slots.data_parallel.fp8_param_gather && config::gathers_fp8_weights(config_),
       .offload_mains = slots.training && config_.optimizer.offload == config::Offload::state,
       .grad_slots = sharded_slots(config::Shard::gradients, slots.data_parallel.overlap_grad_reduce),
       .value_slots = sharded_slots(config::Shard::parameters, slots.data_parallel.overlap_param_gather),
       .data_parallel = slots.data_parallel});
  recipe_->plan(plan);
  tensor_.plan(plan, dims().dtype, dims().tokens, dims().hidden);
  stack_.rope.plan(plan, config_.model);
  context_ranks_.plan(plan);
  if (stack_.embedding) stack_.embedding->plan(plan, context);
  // It lives from one pass to the next, and passes of other microbatches may run in between, so it has no lifetime.
  plan.add(d_residual_, "d_stream", MemoryKind::scratch, dims().dtype, {dims().residual_rows, dims().hidden});
  const bool deferred = slots.wgrad > 0;
  TE_CHECK(!deferred || config_.training.recompute == config::Recompute::none,
           "deferred wgrad needs saved inputs, which recomputation does not keep");
  gradients_.resize(static_cast<size_t>(std::max(slots.wgrad, 1)));
  for (auto& layers : gradients_) layers.resize(stack_.layers.size());
  for (size_t i = 0; i < stack_.layers.size(); ++i) {
    stack_.layers[i].plan_weights(plan, slots.training, deferred);
    stack_.layers[i].plan_scratch(plan, context);
    if (!deferred) stack_.layers[i].plan_gradients(plan, gradients_[0][i], false);
  }
  if (deferred) plan_deferred_wgrad(plan);
  plan_slots(plan, slots.activations);
  if (config_.model.num_moe_experts > 0 && slots.training) {
    const int64_t layers = config_.model.num_layers;
    plan.add(routing_counts_, "routing.counts", MemoryKind::data, DType::i32,
             {layers, config_.model.num_moe_experts});
    plan.add(routing_sums_, "routing.sums", MemoryKind::data, DType::f32, {layers, kernels::kRouterSums});
    routing_rounds_.resize(static_cast<size_t>(layers));
  }
  if (stack_.output_layer) {
    stack_.final_layernorm->plan_scratch(plan, Step::final_norm_backward);
    stack_.output_layer->plan(plan, slots.training);
  }
  recipe_->sharded_weights().plan(plan);
}

// A slot has the gradients of one microbatch in one chunk; all chunks share its memory.
void ModelStage::plan_deferred_wgrad(MemoryPlan& plan) {
  for (auto& gradients : gradients_) {
    plan.overlay(num_chunks(), [&](int c) {
      const Chunk& chunk = chunks_[static_cast<size_t>(c)];
      for (size_t i = chunk.first; i < chunk.first + chunk.count; ++i)
        stack_.layers[i].plan_gradients(plan, gradients[i], true);
    });
  }
}

void ModelStage::plan_slots(MemoryPlan& plan, const std::vector<int>& counts) {
  const auto plan_one = [&](int c, size_t slot) {
    Chunk& chunk = chunks_[static_cast<size_t>(c)];
    plan_slot(plan, chunk, chunk.slots[slot], has_embedding(c), has_output_layer(c));
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

void ModelStage::plan_slot(MemoryPlan& plan, Chunk& chunk, Slot& slot, bool first, bool output_layer) {
  if (first) stack_.embedding->plan_activations(plan, slot.embedding_raw, slot.embedding_statistics);
  slot.layers.resize(chunk.count);
  for (size_t i = 0; i < chunk.count; ++i) {
    TransformerLayer& layer = stack_.layers[chunk.first + i];
    layer.plan_input(plan, slot.layers[i]);
    layer.plan_activations(plan, slot.layers[i]);
  }
  if (!output_layer) return;
  const Shape shape{dims().residual_rows, dims().hidden};
  plan.add(slot.final_x, "final_layernorm.x", MemoryKind::activations, dims().dtype, shape);
  plan.add(slot.final_h, "final_layernorm.out", MemoryKind::activations, dims().dtype, shape);
  stack_.final_layernorm->plan_statistics(plan, slot.final_statistics, dims().residual_rows);
}

kernels::AttentionKernels ModelStage::attention_kernels(const Context& context) const {
  auto slowest = kernels::AttentionKernels::flash;
  for (const TransformerLayer& layer : stack_.layers)
    slowest = std::max(slowest, layer.attention_kernels(context));
  return slowest;
}

void ModelStage::bind(const Context& context) {
  stack_.parameters.bind(context);
  stack_.rope.fill(context, config_.model);
  context_ranks_.fill(context);
  recipe_->reset(context);
  bind_routing();
}

void ModelStage::bind_routing() {
  if (!routing_counts_) return;
  for (TransformerLayer& layer : stack_.layers) layer.bind_routing(routing());
}

void ModelStage::reset_routing(const Context& context) {
  if (!routing_counts_) return;
  std::fill(routing_rounds_.begin(), routing_rounds_.end(), 0);
  context.zero(routing_counts_);
  context.zero(routing_sums_);
}

void ModelStage::update_router_bias(const Context& context, const int32_t* skip) const {
  if (!routing_counts_ || !config_.model.moe_router_enable_expert_bias) return;
  const bool reduced =  // by every microbatch
      config_.model.moe_router_load_balancing_type == config::BalanceScope::global;
  if (groups_->data().size() > 1 && !reduced)
    groups_->data().all_reduce(context, routing_counts_, parallel::ReduceOp::sum);
  for (const TransformerLayer& layer : stack_.layers)
    layer.update_router_bias(context, stack_.parameters, skip);
}

// --- weights -----------------------------------------------------------------------------------------------

void ModelStage::initialize(const Context& context, uint64_t seed) {
  stack_.parameters.initialize(context, seed);
}

void ModelStage::quantize_weights(const Context& context, bool count_fp8) {
  weights_changed(count_fp8);
  for (size_t i = 0; i < stack_.layers.size(); ++i)
    before_use(context, stack_.unit_of_layer(i), &stack_.layers[i]);
  if (stack_.output_layer) before_use(context, stack_.last_unit(), nullptr);
  fresh_.assign(stack_.units.size(), true);
}

void ModelStage::weights_changed(bool count_fp8) {
  fresh_.assign(stack_.units.size(), false);
  count_quantizations_ = count_fp8;
}

void ModelStage::quantize_sharded_weights(const Context& context, bool count_fp8) {
  const fp8::ShardedWeightQuantizer& weights = recipe_->sharded_weights();
  if (weights.size() == 0) return;
  const ProfileLabel label("weights");
  const auto for_parts = [&](const auto& work) {
    for (const parameters::Parameter& parameter : stack_.parameters.parameters()) {
      if (parameter.sharded_weight_index < 0 || !parameters::ParameterStore::needs_quantization(parameter))
        continue;
      for (const auto& [value, bytes] : stack_.parameters.shards_to_quantize(parameter))
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
    for (const parameters::Bucket& range : stack_.ranges_of(unit))
      hooks_.before_parameters(context, range.begin, range.end, direction);
  if (fresh_[unit]) return;
  if (layer != nullptr) layer->quantize_weights(context, count_quantizations_);
  if (stack_.output_layer && unit == stack_.last_unit())
    stack_.output_layer->quantize_weight(context, count_quantizations_);
  fresh_[unit] = true;
}

void ModelStage::before_wgrad(const Context& context, size_t unit) const {
  if (hooks_.before_wgrads)
    for (const parameters::Bucket& range : stack_.ranges_of(unit))
      hooks_.before_wgrads(context, range.begin, range.end);
}

void ModelStage::finished(const Context& context, size_t unit, const Pass& pass) const {
  if (hooks_.gradients_ready)
    for (const parameters::Bucket& range : stack_.ranges_of(unit))
      hooks_.gradients_ready(context, range.begin, range.end, pass.last_microbatch);
}

// --- passes ------------------------------------------------------------------------------------------------

Tensor ModelStage::input(const MicrobatchSlot& place) const {
  return chunks_[static_cast<size_t>(place.chunk)].slots[static_cast<size_t>(place.slot)].layers.front().x_in;
}

// The layer before `layer` in the chunk; empty for the first layer, which follows another chunk or the embedding.
PreviousLayer ModelStage::previous_layer(const Chunk& chunk, size_t layer, const MicrobatchSlot& place) {
  if (layer == chunk.first) return {};
  return {&stack_.layers[layer - 1], &gradients_of(layer - 1, place)};
}

void ModelStage::forward(const Context& context, const MicrobatchSlot& place, const Tensor& tokens,
                         const Tensor& targets, float grad_scale, const Tensor& loss_sum, const Tensor& out,
                         const Pass& pass) {
  Chunk& chunk = chunks_[static_cast<size_t>(place.chunk)];
  Slot& slot = chunk.slots[static_cast<size_t>(place.slot)];
  // 1. Tokens become the residual stream.
  if (has_embedding(place.chunk)) {
    before_use(context, 0, nullptr);
    stack_.embedding->forward(context, tokens, input(place), slot.embedding(), pass);
  }
  // 2. Layers, which pass the residual stream as (residual, delta); see transformer_layer.h.
  Tensor residual = input(place), delta;
  for (size_t i = 0; i < chunk.count; ++i) {
    TransformerLayer& layer = stack_.layers[chunk.first + i];
    before_use(context, stack_.unit_of_layer(chunk.first + i), &layer);
    layer.forward(context, residual, delta, slot.layers[i], pass);
    residual = slot.layers[i].x_mid;
    delta = slot.layers[i].delta;
  }
  pass.begin_step(context, Step::output_layer);
  // 3. The next chunk gets the sum of the two, which its first norm would otherwise compute.
  if (!has_output_layer(place.chunk)) return kernels::add(context, residual, delta, out);
  // 4. Final norm, output layer and loss.
  final_norm(context, residual, delta, slot);
  if (loss_sum) stack_.output_layer->run(context, slot.final_h, targets, grad_scale, loss_sum, pass);
}

void ModelStage::final_norm(const Context& context, const Tensor& residual, const Tensor& delta, Slot& slot) {
  before_use(context, stack_.last_unit(), nullptr);
  stack_.final_layernorm->forward(context, residual, delta, slot.final_x, slot.final_statistics,
                                  {.high_precision = slot.final_h});
}

void ModelStage::backward(const Context& context, const MicrobatchSlot& place, const Tensor& tokens,
                          const Pass& pass) {
  Chunk& chunk = chunks_[static_cast<size_t>(place.chunk)];
  Slot& slot = chunk.slots[static_cast<size_t>(place.slot)];
  const bool deferred = place.wgrad_slot >= 0;
  ProducedOperand d_output{.high_precision = d_residual_};
  // 3'. Final norm, whose output was overwritten by its gradient. Starts the gradient of the residual stream.
  if (has_output_layer(place.chunk)) {
    pass.begin_step(context, Step::final_norm_backward);
    const PreviousLayer last = previous_layer(chunk, chunk.first + chunk.count, place);
    d_output = stack_.final_layernorm->backward(context, slot.final_h, slot.final_x, slot.final_statistics,
                                                {}, d_residual_, last.grad_request(pass));
    finished(context, stack_.last_unit(), pass);
  }
  // 2'. Layers, last first.
  for (size_t i = chunk.count; i-- > 0;) {
    const size_t index = chunk.first + i;
    TransformerLayer& layer = stack_.layers[index];
    before_use(context, stack_.unit_of_layer(index), &layer, -1);
    if (!deferred) before_wgrad(context, stack_.unit_of_layer(index));
    if (full_recompute(config_)) {
      layer.forward(context, slot.layers[i].x_in, {}, slot.layers[i], pass.recomputed());
    }
    d_output = layer.backward(context, slot.layers[i], gradients_of(index, place),
                              previous_layer(chunk, index, place), d_output, pass, deferred);
    if (!deferred) finished(context, stack_.unit_of_layer(index), pass);
  }
  // 1'. Embedding.
  if (has_embedding(place.chunk)) {
    stack_.embedding->backward(context, tokens, d_residual_, slot.embedding(), pass);
    finished(context, 0, pass);
  }
}

void ModelStage::wgrad(const Context& context, const MicrobatchSlot& place, const Pass& pass) {
  Chunk& chunk = chunks_[static_cast<size_t>(place.chunk)];
  const Slot& slot = chunk.slots[static_cast<size_t>(place.slot)];
  for (size_t i = chunk.count; i-- > 0;) {
    const size_t index = chunk.first + i;
    before_wgrad(context, stack_.unit_of_layer(index));
    stack_.layers[index].wgrad(context, slot.layers[i], gradients_of(index, place));
    finished(context, stack_.unit_of_layer(index), pass);
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
  stack_.output_layer->logits(context, chunks_[0].slots[0].final_h, logits);
}

}  // namespace te::model
