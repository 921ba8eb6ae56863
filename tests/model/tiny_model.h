// A small model with its optimizer, built from a config in code, for the tests of the model, the recipes and the
// trainer.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/random.h"
#include "model/model_stage.h"
#include "optim/optimizer.h"
#include "testing/model_forms.h"

namespace te::testing {

/// A valid config with small, irregular sizes: 2 layers, hidden 32, grouped queries for Llama, FP32.
inline config::Config tiny_config(config::Family family) {
  config::Config config;
  config.name = "tiny";
  config.model.family = family;
  config.model.num_layers = 2;
  config.model.hidden_size = 32;
  config.model.ffn_hidden_size = 48;
  config.model.num_attention_heads = 4;
  config.model.num_query_groups = family == config::Family::llama ? 2 : 4;
  config.model.vocab_size = 61;
  config.model.make_vocab_size_divisible_by = 16;
  config.model.seq_length = 16;
  config.model.tie_word_embeddings = family == config::Family::gpt;
  config.model.init_method_std = 0.2;  // large enough that every path of the gradient matters
  config.precision.dtype = config::ComputeDType::fp32;
  config.training.micro_batch_size = 2;
  config.training.global_batch_size = 2;
  config.training.train_steps = 10;
  config.training.device = config::DeviceChoice::cpu;
  config.data.synthetic = true;
  config::resolve_defaults(config);
  return config;
}

/// A config that trains LoRA adapters of all linear layers.
inline config::Config adapter_config(config::Family family) {
  config::Config config = tiny_config(family);
  config.adapter.type = config::AdapterType::lora;
  config.adapter.rank = 8;
  config.checkpoint.init_from = "base";
  return config;
}

class TinyModel {
 public:
  explicit TinyModel(const config::Config& config, Context context = Context::cpu())
      : TinyModel(config, nullptr, std::move(context)) {}
  /// With a recipe or a factory of sublayers that the test provides.
  TinyModel(const config::Config& config, std::unique_ptr<fp8::Recipe> recipe,
            Context context = Context::cpu(),
            const model::FeedForwardFactory& make_feed_forward = model::make_feed_forward,
            const parallel::Groups& groups = one_rank())
      : config_(config),
        context_(std::move(context)),
        model_(config, groups, std::move(recipe), make_feed_forward),
        optimizer_({.optimizer = config.optimizer,
                    .seed = config.training.seed,
                    .tied_embeddings = config.model.tie_word_embeddings,
                    .z_loss = config.training.z_loss_coefficient != 0.0},
                   model_.parameters(), model_.groups()) {
    config::validate(config);
    model_.plan(plan_, context_);
    optimizer_.plan(plan_);
    const int64_t tokens = model_.dims().tokens;
    plan_.add(tokens_, "tokens", MemoryKind::data, DType::i32, {tokens});
    plan_.add(targets_, "targets", MemoryKind::data, DType::i32, {tokens});
    plan_.add(eval_loss_, "eval_loss", MemoryKind::data, DType::f32, {1});
    plan_.add(eval_z_loss_, "eval_z_loss", MemoryKind::data, DType::f32, {1});
    memory_ = plan_.allocate(context_);
    model_.bind(context_);
    optimizer_.bind(context_);
    model_.initialize(context_, config.training.seed);
    optimizer_.gatherer().before_gather(
        [this](const Context& stream) { model_.quantize_sharded_weights(stream, false); });
    optimizer_.gatherer().gather_all(context_);
    model_.quantize_weights(context_);
    set_batch(1);
  }

  /// As a rank of the groups.
  TinyModel(const config::Config& config, const parallel::Groups& groups)
      : TinyModel(config, nullptr, Context::cpu(), model::make_feed_forward, groups) {}

  /// Random tokens and targets, a pure function of the seed.
  void set_batch(uint64_t seed) {
    std::vector<int32_t> tokens(static_cast<size_t>(tokens_.numel())), targets(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Philox4 random = philox(seed, 99, i);
      tokens[i] = static_cast<int32_t>(random.word[0] % static_cast<uint32_t>(config_.model.vocab_size));
      targets[i] = static_cast<int32_t>(random.word[1] % static_cast<uint32_t>(config_.model.vocab_size));
    }
    set_batch(tokens, targets);
  }
  void set_batch(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets) {
    context_.copy_to_device(tokens_, tokens.data());
    context_.copy_to_device(targets_, targets.data());
    context_.synchronize();
  }

  /// Computes the gradients of the mean loss and returns the loss. Fills the gradients with NaN before, to prove that
  /// no old value is used.
  double forward_backward(const model::Pass& pass = {}) {
    context_.fill_bytes(model_.parameters().grads, 0xff);
    optimizer_.begin_step(context_);
    return add_microbatch(pass);
  }
  /// Adds the gradients of a microbatch to those since begin_step() and returns the sum of the losses. Scratch memory
  /// is overwritten with NaN outside its lifetime, so any use there changes the results.
  double add_microbatch(model::Pass pass = {}) {
    pass.on_step = [this](const Context& context, model::Step step) {
      plan_.begin_step(context, static_cast<int>(step));
    };
    const float scale = 1.0f / static_cast<float>(tokens_.numel());
    model_.forward_backward(context_, tokens_, targets_, scale, optimizer_.loss_sum(), pass);
    return read_scalar(optimizer_.loss_sum()) * scale;
  }
  double evaluate() {
    context_.zero(eval_loss_);
    model_.evaluate(context_, tokens_, targets_, eval_loss_);
    return read_scalar(eval_loss_) / static_cast<double>(tokens_.numel());
  }
  /// The function that the gradients differentiate: mean loss plus z-loss.
  double objective() {
    context_.zero(eval_loss_);
    context_.zero(eval_z_loss_);
    model::Pass pass{.kind = model::PassKind::evaluate};
    pass.z_loss_sum = eval_z_loss_;
    model_.forward(context_, {}, tokens_, targets_, 0.0f, eval_loss_, {}, pass);
    return (read_scalar(eval_loss_) + read_scalar(eval_z_loss_)) / static_cast<double>(tokens_.numel());
  }
  /// A complete optimizer step; returns the loss before it.
  double train_step(float lr) {
    forward_backward();
    optimizer_.step(context_, lr);
    model_.recipe().update(context_, optimizer_.skip_flag());
    model_.quantize_weights(context_);
    optimizer_.fetch_status(context_);
    context_.synchronize();
    optimizer_.finish_step(optimizer_.status().skipped != 0);
    return static_cast<double>(optimizer_.status().loss_sum) / static_cast<double>(tokens_.numel());
  }

  std::vector<float> read(const Tensor& tensor) const {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    TE_CHECK(tensor.dtype == DType::f32, "read() is for FP32 tensors");
    context_.copy_to_host(values.data(), tensor);
    context_.synchronize();
    return values;
  }
  void write(const Tensor& tensor, const std::vector<float>& values) const {
    context_.copy_to_device(tensor, values.data());
    context_.synchronize();
  }
  double read_scalar(const Tensor& tensor) const { return read(tensor)[0]; }
  const parameters::Parameter& parameter(const std::string& name) {
    for (const parameters::Parameter& parameter : model_.parameters().parameters()) {
      if (parameter.name == name) return parameter;
    }
    internal_error("no parameter " + name, std::source_location::current());
  }

  const Context& context() const { return context_; }
  model::ModelStage& model() { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  const MemoryPlan& plan() const { return plan_; }
  Tensor tokens() const { return tokens_; }

 private:
  static const parallel::Groups& one_rank() {
    static const parallel::Groups groups = parallel::Groups::single();
    return groups;
  }
  config::Config config_;
  Context context_;
  model::ModelStage model_;
  optim::Optimizer optimizer_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  PlannedTensor tokens_, targets_, eval_loss_, eval_z_loss_;
};

/// Gives all FP8 operands the scale 1. Without calibration each tensor has its own scale, so that the rounding of a row
/// depends on the other rows.
inline void set_scales_to_one(const Context& context, const fp8::Recipe& recipe) {
  const fp8::ScaleTable& table = recipe.table();
  const std::vector<float> ones(static_cast<size_t>(table.size()), 1.0f);
  context.copy_to_device(table.scale, ones.data());
  context.synchronize();
}

}  // namespace te::testing
