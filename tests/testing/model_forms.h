// Model configs that several tests use.
#pragma once

#include <algorithm>

#include "config/config.h"

namespace te::testing {

/// Sets Gemma 3's features in a model of any size: every third layer without a window and with its own rotary
/// frequencies.
inline void set_gemma3(config::ModelConfig& model) {
  model.activation = config::ActivationKind::geglu;
  model.norm_placement = config::NormPlacement::both;
  model.qk_norm = config::QkNorm::head;
  model.layernorm_zero_centered_gamma = true;
  model.scale_embedding = true;
  model.query_pre_attn_scalar = 11;
  model.sliding_window = 5;
  model.window_pattern = "2w f";
  model.rope_local_theta = 50;
  model.num_layers = std::max<int64_t>(model.num_layers, 3);
}

/// Sets nanochat's features; the cap is low, so that it matters for small logits.
inline void set_nanochat(config::ModelConfig& model) {
  model.activation = config::ActivationKind::relu2;
  model.qk_norm = config::QkNorm::head_no_gain;
  model.norm_gain = false;
  model.embedding_norm = true;
  model.final_logit_softcapping = 2;
}

/// A mixture of experts after a dense layer, with a shared expert and all losses of the router.
inline void set_experts(config::ModelConfig& model) {
  model.num_moe_experts = 5;
  model.moe_router_topk = 2;
  model.moe_ffn_hidden_size = 20;
  model.moe_shared_expert_intermediate_size = 12;
  model.moe_shared_expert_gate = true;
  model.moe_aux_loss_coeff = 0.05;
  model.moe_z_loss_coeff = 0.01;
  model.first_k_dense = 1;
}

/// The same with sizes that every FP8 recipe of experts accepts.
inline void set_fp8_experts(config::ModelConfig& model) {
  set_experts(model);
  model.hidden_size = 128;
  model.kv_channels = 32;
  model.moe_ffn_hidden_size = 64;
  model.moe_shared_expert_intermediate_size = 32;
}

}  // namespace te::testing
