#include "convert/hugging_face_config.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "config/window_pattern.h"
#include "convert/architecture.h"
#include "convert/fp8_import.h"
#include "convert/harmless_keys.h"
#include "convert/hugging_face_rope.h"
#include "convert/json_keys.h"
#include "core/error.h"

namespace te::convert {
namespace {

using config::ActivationKind;
using config::ModelConfig;
using nlohmann::json;

/// Sequence length for models that support longer ones: fits most GPUs.
constexpr int64_t kMaxDefaultSequence = 4096;
constexpr int64_t kDerived = -1;  ///< the default depends on other keys
constexpr int64_t kMaxLayers = 10000;

/// Defaults of a transformers class for keys that its config.json lacks.
struct Defaults {
  int64_t intermediate_size = 0;           ///< 0: the key is required
  int64_t num_key_value_heads = kDerived;  ///< num_attention_heads
  int64_t head_dim = kDerived;             ///< hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
};

Defaults defaults_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::qwen2:
      return {.max_position_embeddings = 32768};
    case Architecture::qwen3:
      return {.head_dim = 128, .max_position_embeddings = 32768};
    case Architecture::mistral:
    case Architecture::ministral:
      return {.num_key_value_heads = 8, .max_position_embeddings = 131072};
    case Architecture::olmo2:
      return {.rms_norm_eps = 1e-5};
    case Architecture::phi3:
      return {.max_position_embeddings = 4096, .rms_norm_eps = 1e-5};
    case Architecture::mixtral:
      return {.num_key_value_heads = 8, .max_position_embeddings = 131072, .rms_norm_eps = 1e-5};
    case Architecture::qwen2_moe:
      return {.intermediate_size = 5632, .num_key_value_heads = 16, .max_position_embeddings = 32768};
    case Architecture::qwen3_moe:
      return {.intermediate_size = 6144, .num_key_value_heads = 4, .max_position_embeddings = 32768};
    case Architecture::olmoe:
      return {.max_position_embeddings = 4096, .rms_norm_eps = 1e-5};
    case Architecture::nanochat:
      return {.intermediate_size = 8192};
    case Architecture::gemma3:
      return {.num_key_value_heads = 4,
              .head_dim = 256,
              .max_position_embeddings = 131072,
              .tie_word_embeddings = true};
    default:
      return {};
  }
}

// --- attention ---------------------------------------------------------------------------------------------

/// For each layer, whether it has a window: from layer_types, or otherwise(layer) if the key is absent.
template <class Otherwise>
std::vector<bool> windowed_layers(const JsonKeys& keys, int64_t num_layers, const Otherwise& otherwise) {
  constexpr const char* kRemedy = "compare with the model's original";
  std::vector<bool> layers;
  if (!keys.has("layer_types")) {
    // check_model() later refuses more layers than kMaxLayers.
    for (int64_t layer = 0; layer < std::min(num_layers, kMaxLayers); ++layer)
      layers.push_back(otherwise(layer));
    return layers;
  }
  const json& types = keys.object().at("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != num_layers)
    keys.refuse("layer_types", fmt::format("must be a list of {} types, one per layer", num_layers), kRemedy);
  for (const json& type : types) {
    if (type != "sliding_attention" && type != "full_attention")
      keys.refuse("layer_types", fmt::format("has {}", type.dump()),
                  "te-train supports sliding_attention and full_attention");
    layers.push_back(type == "sliding_attention");
  }
  return layers;
}

bool has_window(const std::vector<bool>& layers) {
  return std::ranges::find(layers, true) != layers.end();
}

// Depending on its version, transformers fails or computes something else.
[[noreturn]] void refuse_zero_window(const JsonKeys& keys) {
  keys.refuse("sliding_window", "is 0, must be above 0", "for no window, set it to null");
}

/// The size of the window that layers have; 0 (none) for null, `absent` without the key.
int64_t window_size(const JsonKeys& keys, int64_t absent) {
  if (!keys.has("sliding_window")) return keys.given("sliding_window") ? 0 : absent;
  const int64_t window = keys.integer("sliding_window");
  if (window == 0) refuse_zero_window(keys);
  return window;
}

void set_windows(const JsonKeys& keys, const std::vector<bool>& layers, int64_t window, ModelConfig& model) {
  if (!has_window(layers)) return;
  if (window == 0) refuse_zero_window(keys);
  model.sliding_window = window;
  model.window_pattern = config::window_pattern_of(layers);
}

// Qwen2 and Qwen3: the layers from max_window_layers on have a window, unless layer_types is given. Qwen2-MoE without
// layer_types: in transformers 4 all layers, in version 5 every other one below max_window_layers.
void read_qwen_window(const JsonKeys& keys, Architecture architecture, ModelConfig& model) {
  const bool null = keys.given("sliding_window") && !keys.has("sliding_window");
  const bool used = keys.boolean("use_sliding_window", false) && !null;
  const int64_t window = keys.integer_or("sliding_window", 4096);
  const int64_t first = keys.integer("max_window_layers", 28);
  const auto layers =
      windowed_layers(keys, model.num_layers, [&](int64_t layer) { return used && layer >= first; });
  if (!used && has_window(layers))
    keys.refuse("layer_types", "must all be full_attention, as there is no window",
                "set use_sliding_window and sliding_window, or compare with the model's original");
  if (!used || window >= model.max_position_embeddings) return;
  if (architecture == Architecture::qwen2_moe && !keys.has("layer_types"))
    keys.refuse("layer_types",
                "is missing, and versions of transformers differ in the layers that have the window",
                "add layer_types");
  set_windows(keys, layers, window, model);
}

// Mistral and Ministral: a config without sliding_window has one of 4096. In a Ministral, layer_types can exclude
// layers.
void read_mistral_window(const JsonKeys& keys, Architecture architecture, ModelConfig& model) {
  const int64_t window = window_size(keys, 4096);
  if (architecture == Architecture::mistral) {
    model.sliding_window = window;
    return;
  }
  const auto layers = windowed_layers(keys, model.num_layers, [&](int64_t) { return window != 0; });
  if (window == 0 && has_window(layers))
    keys.refuse("layer_types", "must all be full_attention, as sliding_window is null",
                "compare with the model's original");
  set_windows(keys, layers, window, model);
}

// Gemma 3: every sixth layer has no window, unless layer_types is given. A window that is longer than every sequence
// still matters, because layers with a window have other RoPE frequencies.
void read_gemma_window(const JsonKeys& keys, ModelConfig& model) {
  const int64_t window = keys.integer("sliding_window", 4096);
  const int64_t period = keys.integer("sliding_window_pattern", 6);
  if (period < 1)
    keys.refuse("sliding_window_pattern", "must be at least 1", "compare with the model's original");
  set_windows(
      keys, windowed_layers(keys, model.num_layers, [&](int64_t layer) { return (layer + 1) % period != 0; }),
      window, model);
}

void read_window(const JsonKeys& keys, Architecture architecture, ModelConfig& model) {
  switch (architecture) {
    case Architecture::qwen2:
    case Architecture::qwen3:
    case Architecture::qwen2_moe:
      return read_qwen_window(keys, architecture, model);
    case Architecture::mixtral:
    case Architecture::phi3:
      model.sliding_window = window_size(keys, 0);
      return;
    case Architecture::qwen3_moe:
      if (keys.boolean("use_sliding_window", false)) model.sliding_window = window_size(keys, 4096);
      keys.without_effect({"sliding_window", "max_window_layers"});
      return;
    case Architecture::mistral:
    case Architecture::ministral:
      return read_mistral_window(keys, architecture, model);
    case Architecture::gemma3:
      return read_gemma_window(keys, model);
    default:
      return;
  }
}

void read_heads(const JsonKeys& keys, const Defaults& absent, ModelConfig& model) {
  model.num_attention_heads = keys.integer("num_attention_heads");
  const bool given = keys.given("num_key_value_heads") || absent.num_key_value_heads == kDerived;
  model.num_query_groups =
      keys.integer_or("num_key_value_heads", given ? model.num_attention_heads : absent.num_key_value_heads);
  model.kv_channels = absent.head_dim == kDerived ? keys.integer_or("head_dim", 0)
                                                  : keys.integer("head_dim", absent.head_dim);
  if (model.kv_channels != 0 || model.num_attention_heads <= 0) return;
  if (model.hidden_size % model.num_attention_heads != 0)
    keys.refuse("hidden_size", "is not a multiple of num_attention_heads, and there is no head_dim",
                "give head_dim");
  model.kv_channels = model.hidden_size / model.num_attention_heads;
}

// --- the classes -------------------------------------------------------------------------------------------

void read_gemma(const JsonKeys& keys, ModelConfig& model) {
  const char* activation = "hidden_activation";
  keys.must_be_one_of(activation, keys.text(activation, "gelu_pytorch_tanh"),
                      {"gelu_pytorch_tanh", "gelu_new"}, "te-train's GeGLU uses the tanh approximation");
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (keys.has(key)) keys.refuse(key, "must be null", "te-train imports no models with softcapping");
  if (keys.has("use_bidirectional_attention"))
    keys.must_be("use_bidirectional_attention", keys.boolean("use_bidirectional_attention", false), false,
                 "te-train's attention is causal");
  keys.without_effect({"_sliding_window_pattern"});  // transformers writes this copy but does not read it
  model.activation = ActivationKind::geglu;
  model.qk_norm = config::QkNorm::head;
  model.norm_placement = config::NormPlacement::both;
  model.layernorm_zero_centered_gamma = true;
  model.scale_embedding = true;
  model.query_pre_attn_scalar = static_cast<double>(keys.integer("query_pre_attn_scalar", 256));
  if (model.query_pre_attn_scalar <= 0.0)
    keys.refuse("query_pre_attn_scalar", "must be above 0", "compare with the model's original");
}

void read_nanochat(const JsonKeys& keys, ModelConfig& model) {
  keys.must_be("hidden_act", keys.text("hidden_act", "relu2"), std::string("relu2"),
               "te-train's nanochat uses squared ReLU");
  const char* cap = "final_logit_softcapping";
  model.final_logit_softcapping = keys.number_or(cap, keys.given(cap) ? 0.0 : 15.0);
  if (keys.has(cap) && model.final_logit_softcapping <= 0.0)
    keys.refuse(cap, "must be above 0 or null", "compare with the model's original");
  model.activation = ActivationKind::relu2;
  model.qk_norm = config::QkNorm::head_no_gain;
  model.norm_gain = false;
  model.embedding_norm = true;
}

/// Qwen2-MoE, Qwen3-MoE: which layers have experts.
void read_expert_layers(const JsonKeys& keys, ModelConfig& model) {
  keys.must_be("decoder_sparse_step", keys.integer("decoder_sparse_step", 1), int64_t{1},
               "te-train has experts in every layer after the first dense ones");
  if (!keys.has("mlp_only_layers")) return;
  const json& dense = keys.object().at("mlp_only_layers");
  bool ordered = dense.is_array();  // a range over any other value is the value itself
  for (const json& layer : dense)
    ordered = ordered && layer.is_number_integer() && layer.get<int64_t>() == model.first_k_dense++;
  if (!ordered)
    keys.refuse("mlp_only_layers",
                fmt::format("is {}, but must list the first layers in order", dense.dump()),
                "te-train supports layers without experts only before those with experts");
}

void read_experts(const JsonKeys& keys, Architecture architecture, ModelConfig& model) {
  const bool mixtral = architecture == Architecture::mixtral, olmoe = architecture == Architecture::olmoe;
  const bool qwen2 = architecture == Architecture::qwen2_moe;
  // Either name is read by Mixtral, which writes num_local_experts, and by Qwen3-MoE and OLMoE; the other one wins.
  const char* count = mixtral ? "num_local_experts" : "num_experts";
  const char* other = mixtral ? "num_experts" : "num_local_experts";
  if (!qwen2 && keys.given(other)) count = other;
  model.num_moe_experts = keys.integer(count, mixtral ? 8 : qwen2 ? 60 : olmoe ? 64 : 128);
  model.moe_router_topk = keys.integer("num_experts_per_tok", mixtral ? 2 : qwen2 ? 4 : 8);
  model.moe_ffn_hidden_size = model.ffn_hidden_size;
  if (!mixtral) model.moe_router_norm_topk_prob = keys.boolean("norm_topk_prob", false);
  if (!mixtral && !olmoe) {
    model.moe_ffn_hidden_size = keys.integer("moe_intermediate_size", qwen2 ? 1408 : 768);
    read_expert_layers(keys, model);
  }
  if (qwen2) {
    model.moe_shared_expert_intermediate_size = keys.integer("shared_expert_intermediate_size", 5632);
    model.moe_shared_expert_gate = true;
  }
  if (olmoe && keys.has("clip_qkv"))
    keys.refuse("clip_qkv", "must be null", "te-train does not clip queries and keys");
  // Settings of training.
  keys.without_effect({"router_aux_loss_coef", "output_router_logits", "router_jitter_noise", "num_experts",
                       "num_local_experts"});
}

// Llama and similar models: RMSNorm, RoPE, SwiGLU (Gemma: GeGLU).
ModelConfig read_llama(const JsonKeys& keys, Architecture architecture) {
  const Defaults absent = defaults_of(architecture);
  ModelConfig model;
  model.family = config::Family::llama;
  model.num_layers = keys.integer("num_hidden_layers");
  model.hidden_size = keys.integer("hidden_size");
  // Only layers without experts use it in Qwen2-MoE and Qwen3-MoE, so it may be missing.
  model.ffn_hidden_size = absent.intermediate_size > 0
                              ? keys.integer("intermediate_size", absent.intermediate_size)
                              : keys.integer("intermediate_size");
  read_heads(keys, absent, model);
  model.vocab_size = keys.integer("vocab_size");
  model.max_position_embeddings = keys.integer("max_position_embeddings", absent.max_position_embeddings);
  model.norm_epsilon = keys.number("rms_norm_eps", absent.rms_norm_eps);
  model.tie_word_embeddings = keys.boolean("tie_word_embeddings", absent.tie_word_embeddings);
  model.attention_dropout = keys.number_or("attention_dropout", 0.0);
  const bool gemma = architecture == Architecture::gemma3, nanochat = architecture == Architecture::nanochat;
  if (gemma)
    read_gemma(keys, model);
  else if (nanochat)
    read_nanochat(keys, model);
  else
    keys.must_be_one_of("hidden_act", keys.text("hidden_act", "silu"), {"silu", "swish"},
                        "te-train's llama uses SwiGLU");
  const bool reads_bias = architecture == Architecture::llama || architecture == Architecture::qwen3 ||
                          architecture == Architecture::olmo2 || architecture == Architecture::qwen3_moe ||
                          architecture == Architecture::olmoe || gemma || nanochat;
  model.add_proj_bias = reads_bias && keys.boolean("attention_bias", false);
  model.add_qkv_bias = model.add_proj_bias || architecture == Architecture::qwen2 ||
                       (architecture == Architecture::qwen2_moe && keys.boolean("qkv_bias", true));
  model.add_mlp_bias = architecture == Architecture::llama && keys.boolean("mlp_bias", false);
  // Some files have these keys although the class does not read them.
  const auto must_be_off = [&](const char* key) {
    if (keys.has(key)) keys.must_be(key, keys.boolean(key, false), false, "this class has no such option");
  };
  if (!reads_bias) must_be_off("attention_bias");
  if (architecture != Architecture::llama) must_be_off("mlp_bias");
  if (architecture == Architecture::qwen3 || architecture == Architecture::qwen3_moe)
    model.qk_norm = config::QkNorm::head;
  if (architecture == Architecture::olmoe) model.qk_norm = config::QkNorm::projection;
  if (has_experts(architecture)) read_experts(keys, architecture, model);
  if (architecture == Architecture::olmo2) {
    model.qk_norm = config::QkNorm::projection;
    model.norm_placement = config::NormPlacement::post;
  }
  if (architecture == Architecture::phi3) {
    for (const char* key : {"resid_pdrop", "embd_pdrop"})
      keys.must_be(key, keys.number(key, 0.0), 0.0, "te-train's llama has dropout in attention only");
    keys.without_effect({"original_max_position_embeddings"});  // used by longrope only, which is refused
  }
  read_window(keys, architecture, model);
  if (gemma) {
    read_gemma_rope(keys, model);
    return model;
  }
  RopeKeys rope;
  if (architecture == Architecture::mixtral) rope.theta_default = 1e6;
  // NanoChat normalizes q and k after RoPE, which cancels YaRN's attention factor.
  if (nanochat) rope.types = {"default", "linear", "llama3"};
  if (architecture == Architecture::phi3) {
    rope.may_be_partial = true;
    rope.types = {"default"};
  }
  read_rope(keys, rope, model);
  return model;
}

ActivationKind activation_of(const JsonKeys& keys, const char* key, const std::string& absent) {
  const std::string name = keys.text(key, absent);
  keys.must_be_one_of(
      key, name,
      {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "gelu_python", "relu", "relu2", "silu", "swish"},
      "te-train supports no other activations");
  if (name == "gelu" || name == "gelu_python") return ActivationKind::gelu_exact;
  if (name == "relu") return ActivationKind::relu;
  if (name == "relu2") return ActivationKind::relu2;
  return name == "silu" || name == "swish" ? ActivationKind::silu : ActivationKind::gelu;
}

ModelConfig read_gpt2(const JsonKeys& keys) {
  ModelConfig model;
  model.family = config::Family::gpt;
  model.num_layers = keys.integer("n_layer");
  model.hidden_size = keys.integer("n_embd");
  model.ffn_hidden_size = keys.integer_or("n_inner", 4 * model.hidden_size);
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
  keys.number("embd_pdrop", 0.1);  // a setting of training, which uses hidden_dropout
  model.attention_dropout = keys.number("attn_pdrop", 0.1);
  model.activation = activation_of(keys, "activation_function", "gelu_new");
  keys.must_be("scale_attn_weights", keys.boolean("scale_attn_weights", true), true,
               "te-train scales the scores by 1 / sqrt(head_dim)");
  keys.must_be("scale_attn_by_inverse_layer_idx", keys.boolean("scale_attn_by_inverse_layer_idx", false),
               false, "te-train scales the scores of all layers equally");
  keys.must_be("add_cross_attention", keys.boolean("add_cross_attention", false), false,
               "te-train has no encoder");
  // transformers also accepts other classes' names for these keys.
  constexpr std::array<std::array<const char*, 2>, 4> kAliases = {{{"hidden_size", "n_embd"},
                                                                   {"max_position_embeddings", "n_positions"},
                                                                   {"num_attention_heads", "n_head"},
                                                                   {"num_hidden_layers", "n_layer"}}};
  for (const auto& [alias, key] : kAliases)
    if (keys.given(alias) && keys.integer(alias) != keys.integer(key, keys.integer(alias)))
      keys.refuse(alias, fmt::format("differs from {}, its synonym", key), "make them equal");
  keys.without_effect({"n_ctx"});
  return model;
}

ModelConfig read_gpt_neox(const JsonKeys& keys) {
  ModelConfig model;
  model.family = config::Family::gpt;
  model.position_embedding = config::PositionEmbedding::rope;
  model.num_layers = keys.integer("num_hidden_layers");
  model.hidden_size = keys.integer("hidden_size");
  model.ffn_hidden_size = keys.integer("intermediate_size");
  model.num_attention_heads = model.num_query_groups = keys.integer("num_attention_heads");
  if (model.num_attention_heads > 0 && model.hidden_size % model.num_attention_heads == 0)
    model.kv_channels = model.hidden_size / model.num_attention_heads;
  else
    keys.refuse("hidden_size", "is not a multiple of num_attention_heads",
                "compare with the model's original");
  model.vocab_size = keys.integer("vocab_size");
  model.max_position_embeddings = keys.integer("max_position_embeddings", 2048);
  model.norm_epsilon = keys.number("layer_norm_eps", 1e-5);
  model.tie_word_embeddings = keys.boolean("tie_word_embeddings", false);
  model.hidden_dropout = keys.number("hidden_dropout", 0.0);
  model.attention_dropout = keys.number("attention_dropout", 0.0);
  model.activation = activation_of(keys, "hidden_act", "gelu");
  model.parallel_residual = keys.boolean("use_parallel_residual", true);
  keys.must_be("attention_bias", keys.boolean("attention_bias", true), true,
               "te-train's gpt has a bias in every linear layer");
  // transformers uses head_dim for RoPE but not for attention.
  keys.must_be("head_dim", keys.integer_or("head_dim", model.kv_channels), model.kv_channels,
               "GPT-NeoX divides hidden_size among the heads");
  keys.without_effect({"is_decoder"});
  read_rope(keys,
            {.theta = "rotary_emb_base",
             .partial = "rotary_pct",
             .partial_default = 0.25,
             .may_be_partial = true,
             .partial_may_be_null = false},
            model);
  return model;
}

// Keys that the base classes of all models read.
void check_common(const JsonKeys& keys) {
  keys.must_be("is_causal", keys.boolean("is_causal", true), true, "te-train's attention is causal");
  keys.must_be("is_encoder_decoder", keys.boolean("is_encoder_decoder", false), false,
               "te-train has no encoder");
}

ModelConfig read_model(const JsonKeys& keys, Architecture architecture) {
  if (architecture == Architecture::gpt2) return read_gpt2(keys);
  return architecture == Architecture::gpt_neox ? read_gpt_neox(keys) : read_llama(keys, architecture);
}

}  // namespace

ModelConfig read_hugging_face_config(const std::filesystem::path& file) {
  const JsonKeys keys = JsonKeys::of_file(file);
  const Architecture architecture = architecture_of(keys);
  read_quantization(keys);  // refuses formats that open_hugging_face() cannot read
  check_common(keys);
  ModelConfig model = read_model(keys, architecture);
  keys.refuse_unread(harmless_keys(),
                     "it may change the model's results; remove it if transformers does not need it");
  model.seq_length = std::min(model.max_position_embeddings, kMaxDefaultSequence);
  check_model(model, file.string());
  return complete_config(model).model;
}

config::Config complete_config(const ModelConfig& model) {
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
    config::validate(complete_config(model));
  } catch (const UserError& error) {
    user_error("{}: as te-train's config: {}", source, error.what());
  }
}

}  // namespace te::convert
