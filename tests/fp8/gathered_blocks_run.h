// Runs two microbatches through a model with the recipe `blockwise` under sequence parallelism and returns the results;
// also with a recipe whose ranks gather BF16 rows.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/profile.h"
#include "core/random.h"
#include "fp8/recipe.h"
#include "model/model_stage.h"
#include "model/tiny_model.h"
#include "optim/optimizer.h"
#include "parallel/groups.h"

namespace te::testing {

using config::Family;
using config::Recompute;
using parallel::Groups;

/// `blockwise` that gathers BF16 rows and quantizes all tokens on every rank.
class QuantizesAllTokens final : public fp8::Scaling {
 public:
  explicit QuantizesAllTokens(const config::PrecisionConfig& precision)
      : Scaling(precision.fp8_scale_format == config::Fp8ScaleFormat::power_of_two) {}
  kernels::ScaleLayout layout(fp8::OperandRole role) const override {
    return fp8::make_scaling(config::Fp8Recipe::blockwise, {})->layout(role);
  }
};

struct BlocksLayout {
  std::string name;
  Family family = Family::gpt;
  Recompute recompute = Recompute::none;
  int chunks = 1;
  bool copies = false;
  bool deferred = false;  ///< deferred wgrad
  bool bias = false;      ///< llama: bias of linear_qkv
  bool both = false;      ///< both precisions: the second microbatch runs in high precision
  int64_t hidden = 64, heads = 4, seq = 128;
  config::Fp8ScaleFormat scales = config::Fp8ScaleFormat::power_of_two;
};
inline void PrintTo(const BlocksLayout& layout, std::ostream* out) {
  *out << layout.name;
}

/// With sequences of 128 tokens, a rank's run of tokens is one group, or with one chunk two.
inline config::Config config_of(const BlocksLayout& layout, int ranks) {
  config::Config config = tiny_config(layout.family);
  config.model.hidden_size = layout.hidden;
  config.model.ffn_hidden_size = 2 * layout.hidden;
  config.model.num_attention_heads = config.model.num_query_groups = layout.heads;
  config.model.kv_channels = layout.hidden / layout.heads;
  config.model.seq_length = config.model.max_position_embeddings = layout.seq;
  config.model.add_qkv_bias = config.model.add_qkv_bias || layout.bias;
  config.model.make_vocab_size_divisible_by = 64;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = config::Fp8Mode::hybrid;
  config.precision.fp8_recipe = config::Fp8Recipe::blockwise;
  config.precision.fp8_scale_format = layout.scales;
  config.parallel.tensor = ranks;
  config.parallel.sequence = true;
  config.parallel.tensor_overlap = layout.chunks;
  config.parallel.transport = layout.copies ? config::Transport::copy : config::Transport::nccl;
  config.training.recompute = layout.recompute;
  config.training.micro_batch_size = config.training.global_batch_size = 2 * ranks;
  config::resolve_defaults(config);
  config::validate(config);
  return config;
}

/// Counts the bytes that the tensor-parallel ranks gather; not installed: that a tracing context would gather.
class Gathers final : public OpObserver {
 public:
  explicit Gathers(bool installed = true) : installed_(installed) {
    if (installed_) install(this);
  }
  ~Gathers() override {
    if (installed_) install(nullptr);
  }
  void begin(const Context& /*context*/, OpCall call) override {
    if (call.group == "tensor" && std::string_view(call.name) == "all_gather")
      bytes += static_cast<int64_t>(call.cost.bytes);
  }
  void end(const Context& /*context*/) override {}
  int64_t bytes = 0;

 private:
  bool installed_;
};

struct BlocksTrace {
  std::vector<float> loss;
  std::vector<float> gradients, amax;
  float evaluated = 0;
  int64_t training_bytes = 0, evaluation_bytes = 0;
};

class BlocksModel {
 public:
  BlocksModel(const Context& context, const config::Config& config, const BlocksLayout& layout,
              const Groups& groups, std::unique_ptr<fp8::Recipe> recipe = nullptr)
      : config_(config),
        both_(layout.both),
        context_(context),
        place_{.wgrad_slot = layout.deferred ? 0 : -1},
        stage_(config, groups, std::move(recipe)),
        optimizer_({.optimizer = config.optimizer, .seed = 1}, stage_.parameters(), groups) {
    if (both_) stage_.recipe().keep_high_precision();
    stage_.plan(plan_, context_, {.wgrad = layout.deferred ? 1 : 0});
    optimizer_.plan(plan_);
    const int64_t tokens = stage_.dims().tokens;
    plan_.add(tokens_, "tokens", MemoryKind::data, DType::i32, {tokens});
    plan_.add(targets_, "targets", MemoryKind::data, DType::i32, {tokens});
    plan_.add(loss_, "loss", MemoryKind::data, DType::f32, {1});
  }
  int64_t planned() const { return plan_.total_bytes(); }

  BlocksTrace run() {
    memory_ = plan_.allocate(context_);
    if (parallel::PeerTransport* const copies = stage_.groups().tensor_peer_transport())
      registered_ = copies->register_memory(context_, memory_.data(), memory_.bytes(), plan_.buffers());
    stage_.bind(context_);
    optimizer_.bind(context_);
    stage_.initialize(context_, 1);
    context_.fill_bytes(stage_.parameters().grads, 0xff);
    optimizer_.begin_step(context_);
    BlocksTrace trace;
    for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
      set_high_precision(both_ && microbatch == 1);
      set_batch(microbatch);
      const Gathers gathers;
      forward_backward();
      trace.loss.push_back(floats(loss_)[0]);
      if (microbatch == 0) trace.training_bytes = gathers.bytes;
    }
    set_high_precision(false);
    stage_.recipe().update(context_, nullptr);
    trace.gradients = floats(stage_.parameters().grads);
    trace.amax = floats(stage_.recipe().table().last_amax);
    const Gathers gathers;
    context_.zero(loss_);
    stage_.evaluate(context_, tokens_, targets_, loss_);
    trace.evaluated = floats(loss_)[0];
    trace.evaluation_bytes = gathers.bytes;
    return trace;
  }

  /// Instead of run(), on a tracing context: the passes of the first microbatch.
  void trace() {
    memory_ = plan_.allocate(context_);
    stage_.parameters().bind(context_);
    optimizer_.begin_step(context_);
    stage_.weights_changed();
    forward_backward();
  }

 private:
  std::vector<float> floats(const Tensor& tensor) const {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    context_.copy_to_host(values.data(), tensor);
    context_.synchronize();
    return values;
  }
  void set_high_precision(bool on) {
    stage_.recipe().set_high_precision(on);
    stage_.quantize_weights(context_);
  }
  void set_batch(uint64_t microbatch) {
    const auto vocab = static_cast<uint32_t>(config_.model.vocab_size);
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < tokens_.numel(); ++i) {
      const Philox4 random = philox(microbatch, 99, static_cast<uint64_t>(i));
      tokens.push_back(static_cast<int32_t>(random.word[0] % vocab));
      targets.push_back(static_cast<int32_t>(random.word[1] % vocab));
    }
    context_.copy_to_device(tokens_, tokens.data());
    context_.copy_to_device(targets_, targets.data());
    context_.synchronize();
  }
  /// Scratch is overwritten outside its lifetime.
  void forward_backward() {
    model::Pass pass;
    if (memory_.data() != nullptr)
      pass.on_step = [this](const Context& context, model::Step step) {
        plan_.begin_step(context, static_cast<int>(step));
      };
    context_.zero(loss_);
    const float scale = 1.0f / static_cast<float>(tokens_.numel());
    stage_.forward(context_, place_, tokens_, targets_, scale, loss_, {}, pass);
    stage_.backward(context_, place_, tokens_, pass);
    if (place_.wgrad_slot >= 0) stage_.wgrad(context_, place_, pass);
  }

  config::Config config_;
  bool both_;
  const Context& context_;
  model::MicrobatchSlot place_;
  model::ModelStage stage_;
  optim::Optimizer optimizer_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  std::unique_ptr<parallel::PeerTransport::RegisteredMemory> registered_;  ///< destroyed before the memory
  PlannedTensor tokens_, targets_, loss_;
};

inline std::unique_ptr<fp8::Recipe> quantizes_all_tokens(const config::Config& config) {
  return std::make_unique<fp8::Recipe>(config.precision, static_cast<int>(config.model.num_layers),
                                       std::make_unique<QuantizesAllTokens>(config.precision));
}

}  // namespace te::testing
