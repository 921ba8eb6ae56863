#include "convert/hugging_face_config.h"

#include <algorithm>

#include "convert/fp8_import.h"
#include "convert/json_keys.h"
#include "core/error.h"

namespace te::convert {
namespace {

using config::ModelConfig;
using nlohmann::json;

constexpr const char* kLlama = "LlamaForCausalLM";
constexpr const char* kQwen2 = "Qwen2ForCausalLM";
constexpr const char* kMistral = "MistralForCausalLM";
constexpr const char* kGpt2 = "GPT2LMHeadModel";
/// A training sequence that fits most GPUs, where the model could take longer ones.
constexpr int64_t kUsualSequence = 4096;

std::string architecture_of(const JsonKeys& keys) {
  constexpr const char* kMend = "te-train has no other architectures";
  if (!keys.has("architectures")) {
    const std::string type = keys.text("model_type", "");
    keys.must_be_one_of("model_type", type, {"llama", "qwen2", "mistral", "gpt2"}, kMend);
    return type == "llama" ? kLlama : type == "qwen2" ? kQwen2 : type == "mistral" ? kMistral : kGpt2;
  }
  const json& list = keys.object().at("architectures");
  std::string name;
  if (list.is_array() && list.size() == 1 && list[0].is_string()) name = list[0].get<std::string>();
  keys.must_be_one_of("architectures", name, {kLlama, kQwen2, kMistral, kGpt2}, kMend);
  return name;
}

// transformers 5 writes rope_parameters; before there were rope_theta and rope_scaling.
void read_rope(const JsonKeys& keys, ModelConfig& model) {
  constexpr const char* kWhole = "te-train rotates whole heads";
  keys.must_be("partial_rotary_factor", keys.number("partial_rotary_factor", 1.0), 1.0, kWhole);
  model.rope_theta = keys.number("rope_theta", 10000.0);
  const char* section = keys.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!keys.has(section)) return;
  const JsonKeys rope = keys.within(section);
  for (const auto& [name, value] : rope.object().items())
    if (value.is_object())
      rope.refuse(name.c_str(), "is an object", "te-train has one rotation for all layers");
  rope.must_be("partial_rotary_factor", rope.number("partial_rotary_factor", 1.0), 1.0, kWhole);
  model.rope_theta = rope.number("rope_theta", model.rope_theta);
  const char* type_key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  const std::string type = rope.text(type_key, "default");
  rope.must_be_one_of(type_key, type, {"default", "linear", "llama3"},
                      "te-train has no other scaling of positions");
  if (type == "default") return;
  model.rope_scaling = type == "linear" ? config::RopeScaling::linear : config::RopeScaling::llama3;
  model.rope_scaling_factor = rope.number("factor");
  if (type == "linear") return;
  model.rope_scaling_low_freq_factor = rope.number("low_freq_factor");
  model.rope_scaling_high_freq_factor = rope.number("high_freq_factor");
  model.rope_scaling_original_max_position_embeddings = rope.integer("original_max_position_embeddings");
}

// Qwen2 and Mistral: attention over all earlier tokens only.
void refuse_windows(const JsonKeys& keys, bool qwen2) {
  constexpr const char* kMend = "te-train attends to all earlier tokens";
  if (qwen2)
    keys.must_be("use_sliding_window", keys.boolean("use_sliding_window", false), false, kMend);
  else if (keys.has("sliding_window"))
    keys.refuse("sliding_window", "must be null", kMend);
  if (!keys.has("layer_types")) return;
  for (const json& type : keys.object().at("layer_types"))
    if (type != "full_attention") keys.refuse("layer_types", "must all be full_attention", kMend);
}

ModelConfig read_llama(const JsonKeys& keys, const std::string& architecture) {
  const bool qwen2 = architecture == kQwen2, mistral = architecture == kMistral;
  ModelConfig model;
  model.family = config::Family::llama;
  model.num_layers = keys.integer("num_hidden_layers");
  model.hidden_size = keys.integer("hidden_size");
  model.ffn_hidden_size = keys.integer("intermediate_size");
  model.num_attention_heads = keys.integer("num_attention_heads");
  model.num_query_groups = keys.integer("num_key_value_heads", mistral ? 8 : model.num_attention_heads);
  model.kv_channels = keys.integer("head_dim", 0);
  if (model.kv_channels == 0 && model.num_attention_heads > 0) {
    if (model.hidden_size % model.num_attention_heads != 0)
      keys.refuse("hidden_size", "is not a multiple of num_attention_heads, and there is no head_dim",
                  "give head_dim");
    model.kv_channels = model.hidden_size / model.num_attention_heads;
  }
  model.vocab_size = keys.integer("vocab_size");
  model.max_position_embeddings = keys.integer("max_position_embeddings", qwen2     ? 32768
                                                                          : mistral ? 131072
                                                                                    : 2048);
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6);
  model.tie_word_embeddings = keys.boolean("tie_word_embeddings", false);
  model.add_qkv_bias = qwen2;
  keys.must_be_one_of("hidden_act", keys.text("hidden_act", "silu"), {"silu", "swish"},
                      "te-train's llama has SwiGLU");
  if (!qwen2)
    keys.must_be("attention_bias", keys.boolean("attention_bias", false), false,
                 "te-train's llama has biases in q, k and v alone, as Qwen2ForCausalLM has them");
  keys.must_be("mlp_bias", keys.boolean("mlp_bias", false), false,
               "te-train's llama has no biases in the MLP");
  if (qwen2 || mistral) refuse_windows(keys, qwen2);
  read_rope(keys, model);
  return model;
}

ModelConfig read_gpt2(const JsonKeys& keys) {
  ModelConfig model;
  model.family = config::Family::gpt;
  model.num_layers = keys.integer("n_layer");
  model.hidden_size = keys.integer("n_embd");
  model.ffn_hidden_size = keys.integer("n_inner", 4 * model.hidden_size);
  model.num_attention_heads = model.num_query_groups = keys.integer("n_head");
  if (model.num_attention_heads > 0 && model.hidden_size % model.num_attention_heads == 0)
    model.kv_channels = model.hidden_size / model.num_attention_heads;
  else
    keys.refuse("n_embd", "is not a multiple of n_head", "compare with the model's original");
  model.vocab_size = keys.integer("vocab_size");
  model.max_position_embeddings = keys.integer("n_positions", 1024);
  model.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  model.tie_word_embeddings = keys.boolean("tie_word_embeddings", true);
  model.hidden_dropout = keys.number("resid_pdrop", 0.1);
  model.attention_dropout = keys.number("attn_pdrop", 0.1);
  keys.must_be_one_of("activation_function", keys.text("activation_function", "gelu_new"),
                      {"gelu_new", "gelu_pytorch_tanh"}, "te-train's gpt has GELU in its tanh form");
  keys.must_be("scale_attn_weights", keys.boolean("scale_attn_weights", true), true,
               "te-train scales by the head's width");
  keys.must_be("scale_attn_by_inverse_layer_idx", keys.boolean("scale_attn_by_inverse_layer_idx", false),
               false, "te-train scales all layers alike");
  keys.must_be("add_cross_attention", keys.boolean("add_cross_attention", false), false,
               "te-train has no encoder");
  return model;
}

json llama_json(const ModelConfig& m) {
  json out = {{"architectures", {m.add_qkv_bias ? kQwen2 : kLlama}},
              {"model_type", m.add_qkv_bias ? "qwen2" : "llama"},
              {"attention_dropout", 0.0},
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
              {"rope_scaling", nullptr}};
  if (m.add_qkv_bias) {
    out["use_sliding_window"] = false;
  } else {
    out["attention_bias"] = false;
    out["mlp_bias"] = false;
  }
  if (m.rope_scaling == config::RopeScaling::none) return out;
  json& rope = out["rope_scaling"];
  rope = {{"rope_type", config::to_string(m.rope_scaling)}, {"factor", m.rope_scaling_factor}};
  if (m.rope_scaling == config::RopeScaling::llama3) {
    rope["low_freq_factor"] = m.rope_scaling_low_freq_factor;
    rope["high_freq_factor"] = m.rope_scaling_high_freq_factor;
    rope["original_max_position_embeddings"] = m.rope_scaling_original_max_position_embeddings;
  } else {
    rope["type"] = "linear";  // what transformers before 4.43 looked for
  }
  return out;
}

json gpt2_json(const ModelConfig& m, const std::string& source) {
  if (m.num_query_groups != m.num_attention_heads)
    user_error(
        "{}: model.num_query_groups ({}) is not model.num_attention_heads ({}); GPT-2 has no grouped "
        "queries, so "
        "this model cannot be exported",
        source, m.num_query_groups, m.num_attention_heads);
  if (m.attention_width() != m.hidden_size)
    user_error(
        "{}: model.num_attention_heads * model.kv_channels = {} is not model.hidden_size ({}); GPT-2's heads "
        "share the hidden size, so this model cannot be exported",
        source, m.attention_width(), m.hidden_size);
  return {{"architectures", {kGpt2}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
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

}  // namespace

ModelConfig read_hugging_face_config(const std::filesystem::path& file) {
  const JsonKeys keys = JsonKeys::of_file(file);
  const std::string architecture = architecture_of(keys);
  read_quantization(keys);  // refuses what open_hugging_face() could not read
  ModelConfig model = architecture == kGpt2 ? read_gpt2(keys) : read_llama(keys, architecture);
  model.seq_length = std::min(model.max_position_embeddings, kUsualSequence);
  check_model(model, file.string());
  return model;
}

std::string hugging_face_config(const ModelConfig& model, DType dtype, const std::filesystem::path& kept,
                                const std::string& source) {
  json out = model.family == config::Family::gpt ? gpt2_json(model, source) : llama_json(model);
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

config::Config whole_config(const ModelConfig& model) {
  config::Config config;
  config.name = "import";
  config.model = model;
  config.training.micro_batch_size = config.training.global_batch_size = config.training.train_steps = 1;
  config.data.synthetic = true;
  config::resolve_defaults(config);
  return config;
}

void check_model(const ModelConfig& model, const std::string& source) {
  try {
    config::validate(whole_config(model));
  } catch (const UserError& error) {
    user_error("{}: as te-train's config: {}", source, error.what());
  }
}

}  // namespace te::convert
