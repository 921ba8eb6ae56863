#include "convert/architecture.h"

#include <array>
#include <cmath>

#include "core/error.h"
#include "core/json.h"

namespace te::convert {
namespace {

using config::ModelConfig;

struct Names {
  Architecture architecture;
  const char* name;
  const char* type;
};
constexpr auto kNames = std::to_array<Names>({
    {Architecture::llama, "LlamaForCausalLM", "llama"},
    {Architecture::qwen2, "Qwen2ForCausalLM", "qwen2"},
    {Architecture::qwen3, "Qwen3ForCausalLM", "qwen3"},
    {Architecture::mistral, "MistralForCausalLM", "mistral"},
    {Architecture::ministral, "MinistralForCausalLM", "ministral"},
    {Architecture::olmo2, "Olmo2ForCausalLM", "olmo2"},
    {Architecture::phi3, "Phi3ForCausalLM", "phi3"},
    {Architecture::gemma3, "Gemma3ForCausalLM", "gemma3_text"},
    {Architecture::mixtral, "MixtralForCausalLM", "mixtral"},
    {Architecture::qwen2_moe, "Qwen2MoeForCausalLM", "qwen2_moe"},
    {Architecture::qwen3_moe, "Qwen3MoeForCausalLM", "qwen3_moe"},
    {Architecture::olmoe, "OlmoeForCausalLM", "olmoe"},
    {Architecture::nanochat, "NanoChatForCausalLM", "nanochat"},
    {Architecture::gpt2, "GPT2LMHeadModel", "gpt2"},
    {Architecture::gpt_neox, "GPTNeoXForCausalLM", "gpt_neox"},
});

const Names& names_of(Architecture architecture) {
  return kNames.at(static_cast<size_t>(architecture));
}

[[noreturn]] void no_class(const std::string& source, const std::string& what) {
  user_error("{}: transformers has no model class with {}, so this model cannot be exported", source, what);
}

// Checks that the heads make up the hidden size, and that there are no grouped queries.
void check_plain_heads(const ModelConfig& m, const char* name, const std::string& source) {
  if (m.num_query_groups != m.num_attention_heads)
    user_error(
        "{}: model.num_query_groups ({}) is not model.num_attention_heads ({}); {} has no grouped queries, "
        "so this model cannot be exported",
        source, m.num_query_groups, m.num_attention_heads, name);
  if (m.attention_width() != m.hidden_size)
    user_error(
        "{}: model.num_attention_heads * model.kv_channels = {} is not model.hidden_size ({}); {} requires "
        "that, so this model cannot be exported",
        source, m.attention_width(), m.hidden_size, name);
}

Architecture gpt_class(const ModelConfig& m, const std::string& source) {
  check_plain_heads(m, m.rotary() ? "GPT-NeoX" : "GPT-2", source);
  if (m.sliding_window != 0) no_class(source, "LayerNorm and a sliding window (model.sliding_window)");
  if (m.final_logit_softcapping != 0.0) no_class(source, "LayerNorm and model.final_logit_softcapping");
  if (m.rotary()) return Architecture::gpt_neox;
  if (m.parallel_residual) no_class(source, "learned positions and model.parallel_residual");
  return Architecture::gpt2;
}

// True if the model has all features that are specific to Gemma, false if none; UserError otherwise.
bool is_gemma(const ModelConfig& m, const std::string& source) {
  const bool both = m.norm_placement == config::NormPlacement::both;
  const bool geglu = m.activation == config::ActivationKind::geglu;
  if (!both && !geglu && !m.layernorm_zero_centered_gamma && !m.scale_embedding) return false;
  if (!both || !geglu || !m.layernorm_zero_centered_gamma || !m.scale_embedding ||
      m.qk_norm != config::QkNorm::head)
    no_class(source,
             "only some of model.activation geglu, norm_placement both, layernorm_zero_centered_gamma, "
             "scale_embedding and qk_norm head; Gemma 3 has all of them");
  if (m.add_mlp_bias || m.add_qkv_bias != m.add_proj_bias || m.rotary_percent != 1.0)
    no_class(source, "model.activation geglu and these biases or rotary_percent");
  if (m.sliding_window != 0 && m.rope_local_theta == 0.0 &&
      m.rope_scaling.kind != config::RopeScalingKind::none)
    no_class(source, "model.activation geglu and RoPE scaling in layers with a window");
  if (m.query_pre_attn_scalar != std::floor(m.query_pre_attn_scalar))
    no_class(source, "a model.query_pre_attn_scalar that is not an integer");
  return true;
}

// True if the model has all features that are specific to nanochat, false if none; UserError otherwise.
bool is_nanochat(const ModelConfig& m, const std::string& source) {
  const bool relu2 = m.activation == config::ActivationKind::relu2;
  const bool head = m.qk_norm == config::QkNorm::head_no_gain;
  if (!relu2 && !head && m.norm_gain && !m.embedding_norm && m.final_logit_softcapping == 0.0) return false;
  if (!relu2 || !head || m.norm_gain || !m.embedding_norm)
    no_class(source,
             "only some of model.activation relu2, qk_norm head_no_gain, norm_gain false, embedding_norm and "
             "final_logit_softcapping; nanochat has all of them");
  if (m.num_moe_experts > 0 || m.sliding_window != 0 || m.norm_placement != config::NormPlacement::pre ||
      m.scale_embedding)
    no_class(
        source,
        "nanochat's keys (model.norm_gain false) and experts, a window, norm_placement or scale_embedding");
  if (m.add_mlp_bias || m.add_qkv_bias != m.add_proj_bias || m.rotary_percent != 1.0 ||
      m.rope_scaling.kind == config::RopeScalingKind::yarn)
    no_class(source, "nanochat's keys (model.norm_gain false) and these biases, rotary_percent or YaRN");
  return true;
}

// The classes of mixtures of experts differ in attention; each has one kind of router.
Architecture experts_class(const ModelConfig& m, const std::string& source) {
  using config::QkNorm;
  const bool shared = m.moe_shared_expert_intermediate_size > 0;
  const bool dense_layers = m.first_k_dense > 0 || m.moe_layer_freq > 1;
  if (m.moe_router_score_function != config::RouterScore::softmax || m.moe_router_num_groups > 1 ||
      m.moe_router_topk_scaling_factor != 1.0 || m.moe_router_enable_expert_bias ||
      m.moe_router_force_load_balancing)
    no_class(
        source,
        "experts and a sigmoid router, groups of experts, a scaling factor, expert biases or forced load "
        "balancing");
  if (m.norm_placement != config::NormPlacement::pre || m.swiglu_clamp != 0.0 || m.rotary_percent != 1.0 ||
      m.activation != config::ActivationKind::swiglu || !m.window_pattern.empty())
    no_class(source, "experts and this activation, norm placement, rotary_percent or window_pattern");
  if (m.scale_embedding || m.layernorm_zero_centered_gamma || m.local_rope())
    no_class(source, "experts and scale_embedding, layernorm_zero_centered_gamma or rope_local_theta");
  if (m.moe_layer_freq > 1) no_class(source, "experts in every n-th layer (model.moe_layer_freq)");
  if (shared) {
    if (!m.moe_shared_expert_gate || !m.add_qkv_bias || m.add_proj_bias || m.qk_norm != QkNorm::none)
      no_class(source,
               "a shared expert; Qwen2-MoE's has a gate, add_qkv_bias and no qk_norm or add_proj_bias");
    return Architecture::qwen2_moe;
  }
  if (m.add_qkv_bias != m.add_proj_bias) no_class(source, "experts and these biases");
  if (m.qk_norm == QkNorm::head) return Architecture::qwen3_moe;
  if (dense_layers || m.moe_ffn_hidden_size != m.ffn_hidden_size)
    no_class(source,
             "layers without experts, or a model.moe_ffn_hidden_size other than ffn_hidden_size, except "
             "Qwen2-MoE and Qwen3-MoE");
  if (m.qk_norm == QkNorm::projection) {
    if (m.sliding_window != 0) no_class(source, "model.qk_norm projection, experts and a window");
    if (m.attention_width() != m.hidden_size) check_plain_heads(m, "OLMoE", source);
    return Architecture::olmoe;
  }
  if (m.add_qkv_bias || !m.moe_router_norm_topk_prob)
    no_class(source, "experts and add_qkv_bias or no moe_router_norm_topk_prob; Mixtral has neither");
  return Architecture::mixtral;
}

Architecture llama_class(const ModelConfig& m, const std::string& source) {
  const bool attention_bias = m.add_qkv_bias && m.add_proj_bias;
  const bool some_bias = m.add_qkv_bias || m.add_proj_bias || m.add_mlp_bias;
  const bool window = m.sliding_window != 0, partial = m.rotary_percent != 1.0;
  const bool post = m.norm_placement == config::NormPlacement::post;
  const bool projection = m.qk_norm == config::QkNorm::projection, head = m.qk_norm == config::QkNorm::head;
  if (is_nanochat(m, source)) return Architecture::nanochat;
  if (m.num_moe_experts > 0) return experts_class(m, source);
  if (is_gemma(m, source)) return Architecture::gemma3;
  if (m.local_rope()) no_class(source, "model.rope_local_theta without the rest of Gemma 3");
  if (m.swiglu_clamp != 0.0) no_class(source, "RMSNorm and a clamped SwiGLU (model.swiglu_clamp)");
  if (post != projection)
    no_class(source, "only one of model.norm_placement post and model.qk_norm projection; OLMo 2 has both");
  if (post || head) {
    if (m.add_mlp_bias || m.add_qkv_bias != m.add_proj_bias || partial || (post && window))
      no_class(source, post ? "model.norm_placement post and these biases, window or rotary_percent"
                            : "model.qk_norm head and these biases or rotary_percent");
    if (post && m.attention_width() != m.hidden_size) check_plain_heads(m, "OLMo 2", source);
    return post ? Architecture::olmo2 : Architecture::qwen3;
  }
  if (partial) {
    if (some_bias || !m.window_pattern.empty() || m.rope_scaling.kind != config::RopeScalingKind::none ||
        m.attention_width() != m.hidden_size)
      no_class(source,
               "model.rotary_percent and biases, window_pattern, RoPE scaling or heads that do not make up "
               "the hidden size");
    return Architecture::phi3;
  }
  if (m.add_qkv_bias && !m.add_proj_bias && !m.add_mlp_bias) return Architecture::qwen2;
  if (window) {
    if (some_bias) no_class(source, "model.sliding_window and these biases");
    return m.window_pattern.empty() ? Architecture::mistral : Architecture::ministral;
  }
  if (m.add_proj_bias && !attention_bias) no_class(source, "model.add_proj_bias without model.add_qkv_bias");
  if (m.add_qkv_bias && !attention_bias)
    no_class(source, "model.add_mlp_bias and model.add_qkv_bias without model.add_proj_bias");
  return Architecture::llama;
}

}  // namespace

const char* class_name(Architecture architecture) {
  return names_of(architecture).name;
}

bool has_experts(Architecture architecture) {
  return architecture == Architecture::mixtral || architecture == Architecture::qwen2_moe ||
         architecture == Architecture::qwen3_moe || architecture == Architecture::olmoe;
}

const char* model_type(Architecture architecture) {
  return names_of(architecture).type;
}

namespace {

// The class that config.json names, or empty; sets `key` to the key that names it.
std::string given_name(const JsonKeys& keys, const char*& key) {
  key = "architectures";
  if (keys.has(key) && !keys.object().at(key).empty()) {
    const nlohmann::json& list = keys.object().at(key);
    if (!list.is_array() || list.size() != 1 || !list[0].is_string())
      keys.refuse(key, fmt::format("is {}, must be a list of one name", dump_json(list, -1, true)),
                  "compare with the model's original");
    return list[0].get<std::string>();
  }
  key = "model_type";
  return keys.has(key) ? keys.text(key, "") : "";
}

const Names& names_in(const JsonKeys& keys) {
  const char* key = nullptr;
  const std::string given = given_name(keys, key);
  const bool by_class = std::string_view(key) == "architectures";
  if (given.starts_with("Gemma2") || given == "gemma2")
    keys.refuse(key, fmt::format("is {}", given),
                "te-train does not support Gemma 2, which has softcapping; it supports Gemma 3");
  for (const char* name : {"Deepseek", "deepseek"})
    if (given.starts_with(name))
      keys.refuse(key, fmt::format("is {}", given),
                  "te-train does not support DeepSeek-V2 and V3, which have multi-head latent attention");
  if (given == "GptOssForCausalLM" || given == "gpt_oss")
    keys.refuse(key, fmt::format("is {}", given),
                "te-train does not support gpt-oss, which has attention sinks and MXFP4 experts");
  std::vector<std::string> known;
  for (const Names& names : kNames) {
    known.emplace_back(by_class ? names.name : names.type);
    if (given == known.back()) return names;
  }
  keys.must_be_one_of(key, given, known, "te-train supports no other architectures");
  internal_error("architecture is in the list of known ones but was not found",
                 std::source_location::current());
}

}  // namespace

Architecture architecture_of(const JsonKeys& keys) {
  const Names& names = names_in(keys);
  const bool by_layer = names.architecture == Architecture::mistral && keys.given("layer_types");
  const Names& meant = by_layer ? names_of(Architecture::ministral) : names;
  const std::string type = keys.has("model_type") ? keys.text("model_type", "") : names.type;
  // With layer_types, Mistral's class with Ministral's type (or the reverse) is the same model.
  if (type != names.type && type != meant.type)
    keys.must_be("model_type", type, std::string(names.type),
                 "it must name the same model as architectures, since transformers' Auto classes use it");
  return meant.architecture;
}

Architecture architecture_for(const ModelConfig& model, const std::string& source) {
  const double scalar = model.query_pre_attn_scalar;
  if (model.activation != config::ActivationKind::geglu && scalar != 0.0 &&
      scalar != static_cast<double>(model.kv_channels))
    no_class(source, "model.query_pre_attn_scalar other than model.kv_channels, except Gemma 3");
  if (model.rotary() &&
      static_cast<int64_t>(static_cast<double>(model.kv_channels) * model.rotary_percent) % 2 != 0)
    no_class(source, "an odd number of rotated channels (model.rotary_percent * kv_channels)");
  return model.family == config::Family::gpt ? gpt_class(model, source) : llama_class(model, source);
}

}  // namespace te::convert
