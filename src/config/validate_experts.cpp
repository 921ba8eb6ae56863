#include "config/validate_experts.h"

#include <tuple>

#include "config/key_table.h"
#include "config/precision_overrides.h"
#include "config/recipe_traits.h"
#include "config/validate_model.h"
#include "core/error.h"

namespace te::config {
namespace {

/// Rows and columns of a weight that share a scale with the recipe blockwise.
constexpr int64_t kScaleBlock = 128;

// GEMMs of experts have one scale per expert, or blocks of values that must not belong to two experts.
void check_fp8_experts(const Config& c) {
  const ModelConfig& m = c.model;
  const PrecisionConfig& p = c.precision;
  if (p.fp8 == Fp8Mode::off) return;
  check_fp8_dimension(c, "model.moe_ffn_hidden_size", m.moe_ffn_hidden_size);
  check_fp8_dimension(c, "model.moe_shared_expert_intermediate_size", m.moe_shared_expert_intermediate_size);
  for (int layer = 0; layer < m.num_layers; ++layer) {
    if (!m.has_experts(layer)) continue;
    for (const LinearKind kind : {LinearKind::fc1, LinearKind::fc2}) {
      const LinearPrecision linear = linear_precision(p, {layer, kind}, m.num_layers);
      if (!linear.quantized()) continue;
      if (linear.recipe == Fp8Recipe::rowwise || traits_of(linear.recipe).emulated)
        user_error(
            "precision.fp8_recipe {} cannot be combined with model.num_moe_experts (layer {}, {}): use "
            "delayed, tensorwise or blockwise, or bf16 for this linear in precision.overrides",
            to_string(linear.recipe), layer, to_string(kind));
      const bool fc1 = kind == LinearKind::fc1;
      const int64_t rows = fc1 ? (m.gated() ? 2 : 1) * m.moe_ffn_hidden_size : m.hidden_size;
      if (linear.recipe == Fp8Recipe::blockwise && rows % kScaleBlock != 0)
        user_error(
            "precision.fp8_recipe blockwise has blocks of {} rows of a weight, but {} of an expert has {} "
            "({}): change it to a multiple of {}, or use tensorwise",
            kScaleBlock, to_string(kind), rows, fc1 ? "2 x model.moe_ffn_hidden_size" : "model.hidden_size",
            fc1 ? kScaleBlock / 2 : kScaleBlock);
    }
  }
}

void check_expert_ranks(const Config& c) {
  const int64_t ranks = c.parallel.expert, experts = c.model.num_moe_experts;
  if (ranks == 1) {
    if (c.parallel.moe_dispatch_factor != ParallelConfig{}.moe_dispatch_factor)
      user_error("parallel.moe_dispatch_factor ({}) is for parallel.expert above 1: leave it out",
                 c.parallel.moe_dispatch_factor);
    return;
  }
  if (experts == 0)
    user_error("parallel.expert ({}) is for mixtures of experts: set model.num_moe_experts, or leave it out",
               ranks);
  if (experts % ranks != 0)
    user_error("model.num_moe_experts ({}) is not a multiple of parallel.expert ({})", experts, ranks);
  for (const auto& [key, every, command] :
       {std::tuple{"logging.generate_every", c.logging.generate_every, "te-generate"},
        std::tuple{"evaluation.every", c.evaluation.every, "te-generate evaluate"}})
    if (every > 0)
      user_error(
          "{} ({}) needs all experts on a rank, but parallel.expert is {}; set it to 0 and run {} with "
          "checkpoints",
          key, every, ranks, command);
}

/// Without experts no key of them may have another value than its default.
void check_no_experts(const ModelConfig& m) {
  Config given, plain;
  given.model = m;
  for (const Key& key : keys()) {
    const bool of_experts = key.path.starts_with("model.moe_") || key.path == "model.first_k_dense";
    if (of_experts && value_text(key.field(given)) != value_text(key.field(plain)))
      user_error("{} is for mixtures of experts: set model.num_moe_experts, or leave it out", key.path);
  }
}

/// Some layer must have experts.
void check_expert_layers(const ModelConfig& m) {
  if (m.first_k_dense >= m.num_layers)
    user_error(
        "model.first_k_dense ({}) must be below model.num_layers ({}); leave model.num_moe_experts out "
        "for a dense model",
        m.first_k_dense, m.num_layers);
  bool any = false;
  for (int64_t layer = 0; layer < m.num_layers; ++layer) any = any || m.has_experts(layer);
  if (!any)
    user_error(
        "model.moe_layer_freq ({}) and model.first_k_dense ({}) give none of the {} layers experts: lower "
        "one "
        "of them, or leave model.num_moe_experts out for a dense model",
        m.moe_layer_freq, m.first_k_dense, m.num_layers);
}

}  // namespace

void check_experts(const ModelConfig& m) {
  if (m.num_moe_experts == 0) return check_no_experts(m);
  if (m.family != Family::llama)
    user_error("model.num_moe_experts ({}) is for model.family llama: gpt has no experts", m.num_moe_experts);
  if (!m.gated())
    user_error("model.activation {} cannot be combined with model.num_moe_experts: use swiglu or geglu",
               to_string(m.activation));
  if (m.add_mlp_bias)
    user_error("model.add_mlp_bias cannot be combined with model.num_moe_experts: leave it out");
  if (m.moe_router_topk > m.num_moe_experts)
    user_error("model.moe_router_topk ({}) is above model.num_moe_experts ({})", m.moe_router_topk,
               m.num_moe_experts);
  check_expert_layers(m);
  const int64_t groups = m.moe_router_num_groups, chosen = m.moe_router_group_topk;
  if (m.num_moe_experts % groups != 0)
    user_error("model.num_moe_experts ({}) is not a multiple of model.moe_router_num_groups ({})",
               m.num_moe_experts, groups);
  if (chosen > groups || m.moe_router_topk % chosen != 0 ||
      m.moe_router_topk > chosen * (m.num_moe_experts / groups))
    user_error(
        "model.moe_router_group_topk ({}) must be at most moe_router_num_groups ({}), divide "
        "moe_router_topk ({}) and leave that many experts ({} per group)",
        chosen, groups, m.moe_router_topk, m.num_moe_experts / groups);
  if (m.moe_shared_expert_gate && m.moe_shared_expert_intermediate_size == 0)
    user_error(
        "model.moe_shared_expert_gate needs a shared expert: set "
        "model.moe_shared_expert_intermediate_size, or leave it out");
}

void check_experts(const Config& c) {
  check_expert_ranks(c);
  if (c.model.num_moe_experts == 0) return;
  check_fp8_experts(c);
  const auto refuse = [](const std::string& key, const char* remedy) {
    user_error("{} cannot be combined with model.num_moe_experts: {}", key, remedy);
  };
  // The bias is updated in its FP32 master values on the device.
  if (c.model.moe_router_enable_expert_bias && c.optimizer.store_param_remainders)
    user_error(
        "model.moe_router_enable_expert_bias cannot be combined with optimizer.store_param_remainders: "
        "set one of them to false");
  if (c.model.moe_router_enable_expert_bias && c.optimizer.offload == Offload::state)
    user_error(
        "model.moe_router_enable_expert_bias cannot be combined with optimizer.offload state: use moments, "
        "or leave the bias out");
  if (c.parallel.tensor > 1 && !c.parallel.sequence)
    refuse(fmt::format("parallel.tensor ({}) without sequence parallelism", c.parallel.tensor),
           "set parallel.sequence to true");
  if (c.parallel.tensor > 1 && c.training.micro_batch_size > 1 &&
      c.model.moe_router_load_balancing_type == BalanceScope::sequence)
    user_error(
        "model.moe_router_load_balancing_type seq_aux_loss with parallel.tensor ({}) needs one sequence per "
        "microbatch: set training.micro_batch_size ({}) to 1, or use aux_loss",
        c.parallel.tensor, c.training.micro_batch_size);
  // Weight gradients of experts are computed at once, attention's later: a bucket of both has no order in which they
  // could share the memory of sharded gradients.
  if (c.parallel.schedule == PipelineSchedule::zero_bubble && c.parallel.shard != Shard::optimizer)
    refuse(fmt::format("parallel.schedule zero_bubble and parallel.shard {}", to_string(c.parallel.shard)),
           "set parallel.shard to optimizer, or parallel.schedule to 1f1b");
}

void check_router_learns(const Config& c) {
  if (c.model.num_moe_experts > 1 && c.model.moe_router_topk == 1 && c.model.moe_router_norm_topk_prob &&
      c.adapter.type == AdapterType::none)
    user_error(
        "model.moe_router_topk 1 with model.moe_router_norm_topk_prob: every token's probability is 1, "
        "so the loss does not train the router; set model.moe_router_norm_topk_prob to false");
}

}  // namespace te::config
