// Writes the config.json of a te-train model. The keys are those of transformers 4, which version 5 reads, too.
#include <algorithm>

#include "config/window_pattern.h"
#include "convert/architecture.h"
#include "convert/hugging_face_config.h"
#include "convert/json_keys.h"

namespace te::convert {
namespace {

using config::ActivationKind;
using config::ModelConfig;
using nlohmann::json;

json rope_scaling_json(const ModelConfig& m) {
  if (m.rope_scaling.kind == config::RopeScalingKind::none) return nullptr;
  json rope = {{"rope_type", config::to_string(m.rope_scaling.kind)}, {"factor", m.rope_scaling.factor}};
  if (m.rope_scaling.kind == config::RopeScalingKind::linear) {
    rope["type"] = "linear";  // transformers before 4.43 reads this key
    return rope;
  }
  rope["original_max_position_embeddings"] = m.rope_scaling.original_max_position_embeddings;
  if (m.rope_scaling.kind == config::RopeScalingKind::llama3) {
    rope["low_freq_factor"] = m.rope_scaling.low_freq_factor;
    rope["high_freq_factor"] = m.rope_scaling.high_freq_factor;
    return rope;
  }
  rope["beta_fast"] = m.rope_scaling.beta_fast;
  rope["beta_slow"] = m.rope_scaling.beta_slow;
  if (m.rope_scaling.attention_factor > 0.0) rope["attention_factor"] = m.rope_scaling.attention_factor;
  if (!m.rope_scaling.truncate) rope["truncate"] = false;
  return rope;
}

json layer_types(const ModelConfig& m) {
  json types = json::array();
  for (int64_t layer = 0; layer < m.num_layers; ++layer)
    types.push_back(m.window_in(layer) ? "sliding_attention" : "full_attention");
  return types;
}

/// Number of layers before the first one with a window.
int64_t layers_before_windows(const ModelConfig& m) {
  int64_t layer = 0;
  while (layer < m.num_layers && !m.window_in(layer)) ++layer;
  return layer;
}

void write_gemma(const ModelConfig& m, json& out) {
  out.erase("hidden_act");
  out["hidden_activation"] = "gelu_pytorch_tanh";
  out["attention_bias"] = m.add_qkv_bias;
  out["query_pre_attn_scalar"] =
      m.query_pre_attn_scalar != 0.0 ? static_cast<int64_t>(m.query_pre_attn_scalar) : m.kv_channels;
  out["sliding_window"] = m.sliding_window != 0 ? m.sliding_window : m.max_position_embeddings;
  out["layer_types"] = layer_types(m);
  out["rope_local_base_freq"] = m.rope_local_theta != 0.0 ? m.rope_local_theta : m.rope_theta;
  out["attn_logit_softcapping"] = out["final_logit_softcapping"] = nullptr;
  // Versions of transformers before layer_types read this key.
  const std::vector<bool> period = config::parse_window_pattern(m.window_pattern);
  if (m.sliding_window != 0 && !period.back() && std::ranges::count(period, false) == 1)
    out["sliding_window_pattern"] = period.size();
}

void write_experts(const ModelConfig& m, Architecture architecture, json& out) {
  const bool mixtral = architecture == Architecture::mixtral, olmoe = architecture == Architecture::olmoe;
  out[mixtral ? "num_local_experts" : "num_experts"] = m.num_moe_experts;
  out["num_experts_per_tok"] = m.moe_router_topk;
  out["router_aux_loss_coef"] = m.moe_aux_loss_coeff;
  if (mixtral) return;
  out["norm_topk_prob"] = m.moe_router_norm_topk_prob;
  if (olmoe) {
    out["clip_qkv"] = nullptr;
    out["pad_token_id"] = nullptr;  // the default of the class may be outside the vocabulary
    return;
  }
  out["moe_intermediate_size"] = m.moe_ffn_hidden_size;
  out["decoder_sparse_step"] = 1;
  out["mlp_only_layers"] = json::array();
  for (int64_t layer = 0; layer < m.first_k_dense; ++layer) out["mlp_only_layers"].push_back(layer);
  if (architecture == Architecture::qwen2_moe)
    out["shared_expert_intermediate_size"] = m.moe_shared_expert_intermediate_size;
}

json llama_json(const ModelConfig& m, Architecture architecture) {
  json out = {{"attention_dropout", m.attention_dropout},
              {"head_dim", m.kv_channels},
              {"hidden_act", "silu"},
              {"hidden_size", m.hidden_size},
              {"initializer_range", m.init_method_std},
              {"intermediate_size", m.ffn_hidden_size},
              {"max_position_embeddings", m.max_position_embeddings},
              {"num_attention_heads", m.num_attention_heads},
              {"num_hidden_layers", m.num_layers},
              {"num_key_value_heads", m.num_query_groups},
              {"rms_norm_eps", m.norm_epsilon},
              {"rope_theta", m.rope_theta},
              {"rope_scaling", rope_scaling_json(m)}};
  const json window = m.sliding_window == 0 ? json(nullptr) : json(m.sliding_window);
  switch (architecture) {
    case Architecture::qwen2:
    case Architecture::qwen3:
      out["use_sliding_window"] = m.sliding_window != 0;
      if (m.sliding_window != 0) {
        out["sliding_window"] = window;
        out["max_window_layers"] = layers_before_windows(m);  // for versions without layer_types
        if (!m.window_pattern.empty()) out["layer_types"] = layer_types(m);
      }
      if (architecture == Architecture::qwen3) out["attention_bias"] = m.add_qkv_bias;
      break;
    case Architecture::mixtral:
      out["sliding_window"] = window;
      break;
    case Architecture::qwen2_moe:
      out["use_sliding_window"] = m.sliding_window != 0;
      out["sliding_window"] = window;
      out["max_window_layers"] = 0;  // all layers have the window, if there is one
      // Transformers 5 otherwise gives the window to every other layer below max_window_layers.
      if (m.sliding_window != 0) out["layer_types"] = layer_types(m);
      break;
    case Architecture::qwen3_moe:
      out["use_sliding_window"] = m.sliding_window != 0;
      out["sliding_window"] = window;
      [[fallthrough]];
    case Architecture::olmoe:
      out["attention_bias"] = m.add_qkv_bias;
      break;
    case Architecture::nanochat:
      out["attention_bias"] = m.add_qkv_bias;
      out["hidden_act"] = "relu2";
      out["final_logit_softcapping"] =
          m.final_logit_softcapping != 0.0 ? json(m.final_logit_softcapping) : json(nullptr);
      break;
    case Architecture::olmo2:
      out["attention_bias"] = m.add_qkv_bias;
      out["pad_token_id"] = nullptr;
      break;
    case Architecture::phi3:
      out["partial_rotary_factor"] = m.rotary_percent;
      out["sliding_window"] = window;
      out["pad_token_id"] = nullptr;  // the default of the class may be outside the vocabulary
      out["original_max_position_embeddings"] = m.max_position_embeddings;
      break;
    case Architecture::ministral:
      out["layer_types"] = layer_types(m);
      [[fallthrough]];
    case Architecture::mistral:
      out["sliding_window"] = window;
      break;
    case Architecture::gemma3:
      write_gemma(m, out);
      break;
    default:
      out["attention_bias"] = m.add_qkv_bias;
      out["mlp_bias"] = m.add_mlp_bias;
  }
  if (has_experts(architecture)) write_experts(m, architecture, out);
  return out;
}

const char* activation_name(const ModelConfig& m) {
  switch (m.activation) {
    case ActivationKind::gelu_exact:
      return "gelu";
    case ActivationKind::relu:
      return "relu";
    case ActivationKind::relu2:
      return "relu2";
    case ActivationKind::silu:
      return "silu";
    default:
      return "gelu_new";
  }
}

json gpt2_json(const ModelConfig& m) {
  return {{"activation_function", activation_name(m)},
          {"attn_pdrop", m.attention_dropout},
          {"embd_pdrop", m.hidden_dropout},
          {"resid_pdrop", m.hidden_dropout},
          {"initializer_range", m.init_method_std},
          {"layer_norm_epsilon", m.norm_epsilon},
          {"n_embd", m.hidden_size},
          {"n_head", m.num_attention_heads},
          {"n_inner", m.ffn_hidden_size},
          {"n_layer", m.num_layers},
          {"n_positions", m.max_position_embeddings},
          {"scale_attn_weights", true}};
}

json gpt_neox_json(const ModelConfig& m) {
  return {{"attention_bias", true},
          {"attention_dropout", m.attention_dropout},
          {"hidden_act", activation_name(m)},
          {"hidden_dropout", m.hidden_dropout},
          {"hidden_size", m.hidden_size},
          {"initializer_range", m.init_method_std},
          {"intermediate_size", m.ffn_hidden_size},
          {"layer_norm_eps", m.norm_epsilon},
          {"max_position_embeddings", m.max_position_embeddings},
          {"num_attention_heads", m.num_attention_heads},
          {"num_hidden_layers", m.num_layers},
          {"rope_scaling", rope_scaling_json(m)},
          {"rotary_emb_base", m.rope_theta},
          {"rotary_pct", m.rotary_percent},
          {"use_parallel_residual", m.parallel_residual}};
}

json model_json(const ModelConfig& m, Architecture architecture) {
  if (architecture == Architecture::gpt2) return gpt2_json(m);
  return architecture == Architecture::gpt_neox ? gpt_neox_json(m) : llama_json(m, architecture);
}

}  // namespace

std::string hugging_face_config(const ModelConfig& model, DType dtype, const std::filesystem::path& kept,
                                const std::string& source) {
  const Architecture architecture = architecture_for(model, source);
  json out = model_json(model, architecture);
  out["architectures"] = {class_name(architecture)};
  out["model_type"] = model_type(architecture);
  out["vocab_size"] = model.vocab_size;
  out["tie_word_embeddings"] = model.tie_word_embeddings;
  out["torch_dtype"] = dtype == DType::bf16 ? "bfloat16" : "float32";
  out["use_cache"] = true;
  if (!kept.empty()) {
    const JsonKeys keys = JsonKeys::of_file(kept);
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      if (keys.object().contains(key)) out[key] = keys.object().at(key);
  }
  return out.dump(2) + "\n";
}

}  // namespace te::convert
