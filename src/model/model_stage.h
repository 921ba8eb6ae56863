// This rank's part of the model: all of it, or with pipeline parallelism the layers of its stage in one or more chunks.
// The first chunk of the model has the embedding, the last has the final norm and the output layer. All memory is
// planned before the first pass.
//
// Life: construct -> plan() -> [MemoryPlan::allocate] -> bind() -> initialize() or load -> passes; quantize_weights()
// or weights_changed() after every change of the weights.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "model/stack.h"

namespace te::model {

/// Where the passes of a microbatch save activations: a chunk of this rank and one of its slots.
struct MicrobatchSlot {
  int chunk = 0;
  int slot = 0;
  int wgrad_slot = -1;  ///< not -1: wgrad is deferred, and backward saves its operands in this slot
};

/// Maximum number of microbatches in flight: per chunk, and between backward and deferred wgrad, whose slots fit any
/// chunk.
struct StageSlots {
  std::vector<int> activations = {1};  ///< per chunk; a single number: slots that all chunks share
  int wgrad = 0;
  bool training =
      true;  ///< false: evaluate() and forward_logits() only, without gradients and FP32 master weights
  parameters::DataParallelOptions data_parallel{};
};

/// Callbacks for flat ranges of the parameters during passes.
struct StageHooks {
  /// Before a pass reads values [begin, end). `direction`: 1 in the forward pass, -1 in the backward pass.
  std::function<void(const Context&, int64_t begin, int64_t end, int direction)> before_parameters;
  /// Before GEMMs write gradients [begin, end).
  std::function<void(const Context&, int64_t begin, int64_t end)> before_wgrads;
  /// Gradients [begin, end) are final for this microbatch, and for the step if it is the last one.
  std::function<void(const Context&, int64_t begin, int64_t end, bool last_microbatch)> gradients_ready;
};

class ModelStage {
 public:
  /// Builds all parts of the stage. The groups must outlive the stage. `recipe`: overrides the config's recipe.
  ModelStage(const config::Config& config, const parallel::Groups& groups,
             std::unique_ptr<fp8::Recipe> recipe = nullptr,
             const FeedForwardFactory& make_feed_forward = model::make_feed_forward);
  /// The complete model on one rank.
  explicit ModelStage(const config::Config& config, std::unique_ptr<fp8::Recipe> recipe = nullptr,
                      const FeedForwardFactory& make_feed_forward = model::make_feed_forward);
  ModelStage(const ModelStage&) = delete;
  ~ModelStage();

  /// `context` is the device whose workspace sizes are queried; no device memory is allocated.
  void plan(MemoryPlan& plan, const Context& context, const StageSlots& slots = {});
  void bind(const Context& context);
  void initialize(const Context& context, uint64_t seed);
  void set_hooks(StageHooks hooks) { hooks_ = std::move(hooks); }
  /// Quantizes all weights of FP8 layers. `count_fp8`: add to the saturation counters.
  void quantize_weights(const Context& context, bool count_fp8 = false);
  /// Instead of quantize_weights(): each layer's weights are quantized immediately before their next use.
  void weights_changed(bool count_fp8 = false);
  /// Quantizes this rank's shards of weights that are gathered as bytes, with the scales of the full weights. Must be
  /// called after every change of the weights, before they are gathered. Collective over the ranks of the stage.
  void quantize_sharded_weights(const Context& context, bool count_fp8);

  // --- passes of one microbatch through one chunk -----------------------------------------------------------------
  // Chunks other than the model's first read the residual stream from input(place); chunks other than the last write it
  // to `out` [residual_rows, hidden]. gradient() passes its gradient in the other direction. tokens, targets: int32
  // [tokens of a microbatch] in device memory, read by the first and the last chunk of the model.

  bool has_embedding(int chunk) const { return chunk == 0 && groups_->first_stage(); }
  bool has_output_layer(int chunk) const { return chunk + 1 == num_chunks() && groups_->last_stage(); }
  int num_chunks() const { return static_cast<int>(chunks_.size()); }
  Tensor input(const MicrobatchSlot& place) const;
  /// The gradient of the chunk's output before backward(), of its input afterwards; shared by all chunks.
  Tensor gradient() const { return d_residual_; }

  /// The last chunk adds the loss to loss_sum [1] fp32 (sum over counted tokens, on tensor-parallel rank 0 only). With
  /// grad_scale (1 / tokens of the global batch) it also starts the gradients, which accumulate in the store.
  void forward(const Context& context, const MicrobatchSlot& place, const Tensor& tokens,
               const Tensor& targets, float grad_scale, const Tensor& loss_sum, const Tensor& out,
               const Pass& pass);
  void backward(const Context& context, const MicrobatchSlot& place, const Tensor& tokens, const Pass& pass);
  void wgrad(const Context& context, const MicrobatchSlot& place, const Pass& pass);

  // --- for a rank with the complete model -------------------------------------------------------------------------

  void forward_backward(const Context& context, const Tensor& tokens, const Tensor& targets, float grad_scale,
                        const Tensor& loss_sum, const Pass& pass);
  /// Computes the loss only; does not change gradients or FP8 state.
  void evaluate(const Context& context, const Tensor& tokens, const Tensor& targets, const Tensor& loss_sum);
  /// Logits of all tokens, [tokens, this rank's shard of the padded vocabulary]; without sequence parallelism.
  void forward_logits(const Context& context, const Tensor& tokens, const Tensor& logits);

  /// The slowest kernels that a layer's attention uses.
  kernels::AttentionKernels attention_kernels(const Context& context) const;
  parameters::ParameterStore& parameters() { return stack_.parameters; }
  /// The part of bind() that passes routing() to the layers, for traced passes.
  void bind_routing();
  /// Sets the statistics of routing to zero, at the start of a step.
  void reset_routing(const Context& context);
  /// Statistics of all layers of the model since then: i32 [layers, experts], fp32 [layers, kRouterSums] and rounds
  /// [layers], zero for layers of other stages and without experts. Empty without experts.
  RoutingStatistics routing() { return {routing_counts_, routing_sums_, routing_rounds_.data()}; }
  /// After the passes of a step: balances experts by their bias (model.moe_router_enable_expert_bias). The counts of
  /// routing() become those of the global batch. *skip != 0 (device): no change of the bias.
  void update_router_bias(const Context& context, const int32_t* skip) const;
  fp8::Recipe& recipe() { return *recipe_; }
  const Dimensions& dims() const { return stack_.config.dims; }
  const ContextParallel& context_ranks() const { return context_ranks_; }
  const parallel::Groups& groups() const { return *groups_; }

 private:
  /// Tensors that a chunk saves for one microbatch in flight.
  struct Slot {
    std::deque<LayerActivations> layers;
    PlannedTensor final_x,
        final_h;  ///< last chunk: [residual_rows, hidden], input and output of the final norm (then output's gradient)
    Planned<Norm::Statistics> final_statistics;
    PlannedTensor embedding_raw;  ///< first chunk, with model.embedding_norm
    Planned<Norm::Statistics> embedding_statistics;
    VocabParallelEmbedding::Activations embedding() const { return {embedding_raw, embedding_statistics}; }
  };
  struct Chunk : Stack::Chunk {
    std::deque<Slot> slots;
  };

  ModelStage(const config::Config& config, std::unique_ptr<parallel::Groups> own,
             const parallel::Groups* groups, std::unique_ptr<fp8::Recipe> recipe,
             const FeedForwardFactory& make_feed_forward);
  void plan_deferred_wgrad(MemoryPlan& plan);
  void plan_slots(MemoryPlan& plan, const std::vector<int>& counts);
  void plan_slot(MemoryPlan& plan, Chunk& chunk, Slot& slot, bool first, bool output_layer);
  void before_use(const Context& context, size_t unit, TransformerLayer* layer, int direction = 1);
  void before_wgrad(const Context& context, size_t unit) const;
  void finished(const Context& context, size_t unit, const Pass& pass) const;
  void final_norm(const Context& context, const Tensor& residual, const Tensor& delta, Slot& slot);
  LayerGradients& gradients_of(size_t layer, const MicrobatchSlot& place) {
    return gradients_[static_cast<size_t>(std::max(place.wgrad_slot, 0))][layer];
  }
  PreviousLayer previous_layer(const Chunk& chunk, size_t layer, const MicrobatchSlot& place);

  config::Config config_;
  std::unique_ptr<parallel::Groups> own_groups_;  ///< only with the constructor without groups
  const parallel::Groups* groups_;
  parallel::TensorParallel tensor_;
  ContextParallel context_ranks_;
  std::unique_ptr<fp8::Recipe> recipe_;
  Stack stack_;
  std::vector<bool> fresh_;  ///< per unit: used (and quantized) since weights_changed()
  bool count_quantizations_ = false;
  StageHooks hooks_;

  PlannedTensor d_residual_;  ///< [residual_rows, hidden]: the gradient of the residual stream
  PlannedTensor routing_counts_, routing_sums_;  ///< see routing()
  std::vector<int64_t> routing_rounds_;          ///< likewise
  std::deque<Chunk> chunks_;
  std::deque<std::deque<LayerGradients>>
      gradients_;  ///< [wgrad slot][layer]; one slot if wgrad is not deferred
};

}  // namespace te::model
