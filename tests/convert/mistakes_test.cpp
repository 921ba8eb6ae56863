// Models that te-train cannot represent and incomplete folders are refused with one line.
#include <cmath>

#include "convert/architecture.h"
#include "convert/convert_testing.h"
#include "convert/hugging_face_config.h"
#include "convert/output_folder.h"
#include "core/json.h"
#include "testing/model_forms.h"

namespace te::testing {
namespace {

using nlohmann::json;

struct Refusal {
  const char* fixture;
  json patch;
  const char* message;
};

// A class of transformers has all of nanochat's features; each alone, and each next to all others, is refused.
TEST(Export, RefusesNanochatInPart) {
  using config::ModelConfig;
  const auto refusal_of = [](const ModelConfig& model) {
    return refusal([&] { convert::architecture_for(model, "run"); });
  };
  ModelConfig llama;
  llama.activation = config::ActivationKind::swiglu;
  EXPECT_EQ(convert::architecture_for(llama, "run"), convert::Architecture::llama);
  ModelConfig nanochat = llama;
  set_nanochat(nanochat);
  EXPECT_EQ(convert::architecture_for(nanochat, "run"), convert::Architecture::nanochat);
  nanochat.final_logit_softcapping = 0;
  EXPECT_EQ(convert::architecture_for(nanochat, "run"), convert::Architecture::nanochat);
  for (const auto copy : std::initializer_list<void (*)(const ModelConfig&, ModelConfig&)>{
           [](const ModelConfig&from, ModelConfig&to) { to.embedding_norm = from.embedding_norm; },
           [](const ModelConfig&from, ModelConfig&to) { to.norm_gain = from.norm_gain; },
           [](const ModelConfig&from, ModelConfig&to) { to.qk_norm = from.qk_norm; },
           [](const ModelConfig&from, ModelConfig&to) { to.activation = from.activation; }}) {
    ModelConfig one = llama, others = nanochat;
    copy(nanochat, one);
    copy(llama, others);
    TE_EXPECT_CONTAINS(refusal_of(one), "only some of model.activation relu2");
    TE_EXPECT_CONTAINS(refusal_of(others), "only some of model.activation relu2");
  }
  llama.final_logit_softcapping = 30;
  TE_EXPECT_CONTAINS(refusal_of(llama), "only some of model.activation relu2");
  llama.family = config::Family::gpt;
  llama.activation = config::ActivationKind::gelu;
  TE_EXPECT_CONTAINS(refusal_of(llama), "LayerNorm and model.final_logit_softcapping");
  for (const auto change : std::initializer_list<void (*)(ModelConfig&)>{
           [](ModelConfig& m) { m.sliding_window = 4; }, [](ModelConfig& m) { m.scale_embedding = true; },
           [](ModelConfig& m) { m.num_moe_experts = 4; }, [](ModelConfig& m) { m.rotary_percent = 0.5; },
           [](ModelConfig& m) { m.norm_placement = config::NormPlacement::both; },
           [](ModelConfig& m) { m.rope_scaling.kind = config::RopeScalingKind::yarn; },
           [](ModelConfig& m) { m.add_mlp_bias = true; }, [](ModelConfig& m) { m.add_qkv_bias = true; }}) {
    ModelConfig changed = nanochat;
    change(changed);
    TE_EXPECT_CONTAINS(refusal_of(changed), "nanochat's keys (model.norm_gain false) and");
  }
}

TEST(ConfigJson, RefusesUnsupportedModels) {
  const std::vector<Refusal> cases = {
      {"llama",
       {{"architectures", {"GemmaForCausalLM"}}},
       "architectures is [\"GemmaForCausalLM\"], must be Llama"},
      {"llama",
       {{"architectures", nullptr}, {"model_type", "opt"}},
       "model_type is \"opt\", must be llama or"},
      {"llama",
       {{"hidden_act", "gelu"}},
       "hidden_act is \"gelu\", must be silu or swish; te-train's llama uses SwiGLU"},
      {"llama",
       {{"rope_parameters", {{"rope_type", "dynamic"}}}},
       "rope_parameters: rope_type is \"dynamic\""},
      {"llama", {{"rope_scaling", {{"type", "longrope"}}}}, "rope_scaling: type is \"longrope\""},
      {"llama", {{"rope_parameters", {{"rope_type", "yarn"}}}}, "rope_parameters: factor is missing"},
      {"llama_biases_yarn", {{"rope_parameters", {{"beta_fast", 1}}}}, "model.rope_scaling: beta_slow (2)"},
      {"phi3_partial",
       {{"rope_parameters", {{"rope_type", "yarn"}}}},
       "rope_type is \"yarn\", must be default"},
      {"phi3_partial",
       {{"rope_parameters", {{"partial_rotary_factor", 0.95}}}},
       "an odd number of rotated channels"},
      {"phi3_partial", {{"resid_pdrop", 0.1}}, "resid_pdrop is 0.1, must be 0.0"},
      {"gpt_neox", {{"attention_bias", false}}, "attention_bias is false, must be true"},
      {"gpt_neox", {{"hidden_act", "quick_gelu"}}, "hidden_act is \"quick_gelu\""},
      {"llama", {{"rope_parameters", {{"rope_type", "llama3"}}}}, "rope_parameters: factor is missing"},
      {"llama", {{"is_causal", false}}, "is_causal is false, must be true; te-train's attention is causal"},
      {"llama", {{"model_type", "mistral"}}, "model_type is \"mistral\", must be \"llama\"; it must name"},
      {"llama",
       {{"new_scale", 2}},
       "new_scale is 2, which te-train does not know; it may change the model's"},
      {"llama", {{"a\x1b[2J\n", 2}}, R"(config.json: a\x1b[2J\x0a is 2, which)"},
      {"mistral_window", {{"layer_types", {"full_attention"}}}, "layer_types must be a list of 2 types"},
      {"gpt_neox",
       {{"head_dim", 8}},
       "head_dim is 8, must be 16; GPT-NeoX divides hidden_size among the heads"},
      {"gpt2", {{"num_hidden_layers", 3}}, "num_hidden_layers differs from n_layer, its synonym"},
      {"llama",
       {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "full_attention is an object"},
      {"llama", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5, must be 1.0"},
      {"llama",
       {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
       "must be 1.0; te-train rotates all channels of a head"},
      {"llama",
       {{"quantization_config", {{"quant_method", "gptq"}}}},
       "quantization_config: quant_method is \"gptq\", must be fp8 or compressed-tensors"},
      {"llama", {{"quantization_config", {{"quant_method", "fp8"}}}}, "weight_block_size is missing"},
      {"llama",
       {{"quantization_config",
         {{"quant_method", "fp8"}, {"activation_scheme", "static"}, {"weight_block_size", {128, 128}}}}},
       "activation_scheme is \"static\", must be dynamic"},
      {"llama",
       {{"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}}}},
       "weight_block_size must be two positive integers"},
      {"llama",
       {{"quantization_config", {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}}},
       "format is \"pack-quantized\""},
      {"llama", {{"hidden_size", "36"}}, "hidden_size is \"36\", must be a non-negative integer"},
      {"llama", {{"num_hidden_layers", -1}}, "num_hidden_layers is -1"},
      {"llama", {{"num_hidden_layers", 0}}, "model.num_layers"},
      {"llama", {{"vocab_size", nullptr}}, "vocab_size is missing"},
      {"llama", {{"num_key_value_heads", 4}}, "as te-train's config: model.num_attention_heads (6)"},
      {"llama", {{"head_dim", 9}}, "must be even"},
      {"llama", {{"tie_word_embeddings", "yes"}}, "must be true or false"},
      {"qwen2",
       {{"use_sliding_window", true},
        {"sliding_window", 16},
        {"layer_types", {"full_attention", "chunked_attention"}}},
       "layer_types has \"chunked_attention\""},
      {"qwen2",
       {{"use_sliding_window", true}, {"sliding_window", 16}, {"layer_types", {"sliding_attention"}}},
       "layer_types must be a list of 2 types"},
      {"gemma3", {{"attn_logit_softcapping", 50.0}}, "attn_logit_softcapping must be null"},
      {"gemma3",
       {{"final_logit_softcapping", 30.0}},
       "must be null; te-train imports no models with softcapping"},
      {"gemma3", {{"use_bidirectional_attention", true}}, "use_bidirectional_attention is true"},
      {"gemma3", {{"hidden_activation", "gelu"}}, "hidden_activation is \"gelu\""},
      {"gemma3", {{"query_pre_attn_scalar", 0}}, "query_pre_attn_scalar must be above 0"},
      {"gemma3", {{"rope_parameters", {{"rope_theta", 1e4}}}}, "rope_theta is not a layer type"},
      {"gemma3",
       {{"rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}}},
       "te-train does not support RoPE scaling in layers with a window"},
      {"gemma3",
       {{"architectures", {"Gemma2ForCausalLM"}}},
       "does not support Gemma 2, which has softcapping"},
      {"qwen2",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types must all be full_attention"},
      {"llama", {{"architectures", {"DeepseekV3ForCausalLM"}}}, "which have multi-head latent attention"},
      {"llama", {{"architectures", {"GptOssForCausalLM"}}}, "which has attention sinks and MXFP4 experts"},
      {"nanochat",
       {{"hidden_act", "silu"}},
       "hidden_act is \"silu\", must be \"relu2\"; te-train's nanochat uses squared ReLU"},
      {"nanochat", {{"final_logit_softcapping", 0}}, "final_logit_softcapping must be above 0 or null"},
      {"qwen3_moe", {{"decoder_sparse_step", 2}}, "decoder_sparse_step is 2, must be 1"},
      {"qwen3_moe", {{"mlp_only_layers", {1}}}, "must list the first layers in order"},
      {"olmoe", {{"clip_qkv", 8.0}}, "clip_qkv must be null"},
      {"gpt2", {{"activation_function", "quick_gelu"}}, "activation_function is \"quick_gelu\""},
      {"gpt2", {{"scale_attn_by_inverse_layer_idx", true}}, "scales the scores of all layers equally"},
      {"gpt2", {{"scale_attn_weights", false}}, "scale_attn_weights is false, must be true"},
      {"gpt2", {{"add_cross_attention", true}}, "te-train has no encoder"},
      {"gpt2", {{"n_head", 5}}, "n_embd is not a multiple of n_head"},
  };
  for (const Refusal& item : cases) {
    const TemporaryFolder folder;
    const fs::path copy = copy_fixture(item.fixture, folder / "hf");
    patch_config(copy, item.patch);
    const std::string text = refusal([&] { convert::read_hugging_face_config(copy / "config.json"); });
    EXPECT_NE(text.find(item.message), std::string::npos) << text << "\nlacks " << item.message;
    EXPECT_EQ(text.find((copy / "config.json").string()), 0U) << text;
  }
}

TEST(ConfigJson, AcceptsEquivalentSpellings) {
  const std::vector<std::pair<const char*, json>> cases = {
      {"llama", {{"architectures", nullptr}, {"hidden_act", "swish"}, {"attention_bias", nullptr}}},
      {"qwen2", {{"sliding_window", 16}, {"max_window_layers", 1}}},  // not used
      {"gpt2", {{"n_ctx", 24}, {"activation_function", "gelu_pytorch_tanh"}}},
  };
  for (const auto& [name, patch] : cases) {
    const TemporaryFolder folder;
    const fs::path copy = copy_fixture(name, folder / "hf");
    const auto yaml = [&] {
      return config::to_yaml(
          convert::complete_config(convert::read_hugging_face_config(copy / "config.json")));
    };
    const std::string before = yaml();
    patch_config(copy, patch);
    EXPECT_EQ(yaml(), before);
  }
}

config::ModelConfig model_of(const char* name, const json& patch) {
  const TemporaryFolder folder;
  const fs::path copy = copy_fixture(name, folder / "hf");
  patch_config(copy, patch);
  return convert::read_hugging_face_config(copy / "config.json");
}

TEST(ConfigJson, SquaredRelu) {
  const config::ModelConfig model = model_of("gpt2", {{"activation_function", "relu2"}});
  EXPECT_EQ(model.activation, config::ActivationKind::relu2);
  EXPECT_EQ(parse_json(convert::hugging_face_config(model, DType::f32, {}, "run"))["activation_function"],
            "relu2");
}

// If both are present, transformers reads rope_scaling and ignores rope_parameters.
TEST(ConfigJson, RopeScalingOverridesRopeParameters) {
  const json scaling = {{"rope_type", "linear"}, {"factor", 3.0}};
  config::ModelConfig model = model_of("llama", {{"rope_scaling", scaling}});
  EXPECT_EQ(model.rope_scaling.kind, config::RopeScalingKind::linear);
  EXPECT_EQ(model.rope_scaling.factor, 3.0);
  EXPECT_EQ(model.rope_theta, 10000.0);  // 5e5 is in rope_parameters
  model = model_of("llama", {{"rope_scaling", scaling}, {"rope_theta", 7e5}});
  EXPECT_EQ(model.rope_theta, 7e5);
  model = model_of("llama", {{"rope_scaling", json::object()}});  // empty: as if absent
  EXPECT_EQ(model.rope_scaling.kind, config::RopeScalingKind::none);
  EXPECT_EQ(model.rope_theta, 5e5);
}

// MistralConfig's sliding_window is 4096 unless config.json has the key; null means no window.
TEST(ConfigJson, AbsentKeysHaveTheDefaultsOfTheClass) {
  const json mistral = {{"architectures", {"MistralForCausalLM"}},
                        {"model_type", "mistral"},
                        {"max_position_embeddings", 8192}};
  EXPECT_EQ(model_of("llama", mistral).sliding_window, 4096);
  const TemporaryFolder folder;
  const fs::path copy = copy_fixture("llama", folder / "hf");
  json config = parse_json(read_bytes(copy / "config.json"));
  config.update(mistral);
  config["sliding_window"] = nullptr;
  write_bytes(copy / "config.json", config.dump());
  EXPECT_EQ(convert::read_hugging_face_config(copy / "config.json").sliding_window, 0);
  EXPECT_EQ(model_of("qwen2", {{"use_sliding_window", true},
                               {"sliding_window", 16},
                               {"max_window_layers", 0},
                               {"layer_types", nullptr}})
                .sliding_window,
            16);
  EXPECT_EQ(model_of("qwen3", {{"head_dim", nullptr}}).kv_channels, 128);
}

TEST(ConfigJson, LayersWithAWindow) {
  const json types = {"full_attention", "sliding_attention"};
  const json qwen = {{"use_sliding_window", true}, {"sliding_window", 16}};
  json patch = qwen;
  patch["layer_types"] = types;
  config::ModelConfig model = model_of("qwen2", patch);
  EXPECT_EQ(model.sliding_window, 16);
  EXPECT_EQ(model.window_pattern, "f w");
  patch["layer_types"] = nullptr;
  patch["max_window_layers"] = 1;
  EXPECT_EQ(model_of("qwen2", patch).window_pattern, "f w");
  patch["max_window_layers"] = 2;
  EXPECT_EQ(model_of("qwen2", patch).sliding_window, 0);
  model = model_of("gemma3", {{"layer_types", nullptr}});
  EXPECT_EQ(model.window_pattern, "2w f");  // sliding_window_pattern
  EXPECT_EQ(model.rope_local_theta, 300);
}

// The keys that transformers 4 writes, and the defaults of the class for absent keys.
TEST(ConfigJson, Gemma3OldKeysAndDefaults) {
  const auto yaml = [](const json& patch) {
    return config::to_yaml(convert::complete_config(model_of("gemma3", patch)));
  };
  EXPECT_EQ(yaml({{"rope_parameters", nullptr},
                  {"rope_theta", 2e4},
                  {"rope_local_base_freq", 300.0},
                  {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}}),
            yaml(json::object()));
  const config::ModelConfig model = model_of("gemma3", {{"rope_parameters", nullptr},
                                                        {"head_dim", nullptr},
                                                        {"query_pre_attn_scalar", nullptr},
                                                        {"tie_word_embeddings", nullptr},
                                                        {"architectures", nullptr}});
  EXPECT_EQ(model.rope_theta, 1e6);
  EXPECT_EQ(model.rope_local_theta, 1e4);
  EXPECT_EQ(model.kv_channels, 256);
  EXPECT_EQ(model.query_pre_attn_scalar, 256);
  EXPECT_TRUE(model.tie_word_embeddings);
}

TEST(ConfigJson, DropoutRates) {
  EXPECT_EQ(model_of("llama", {{"attention_dropout", 0.25}}).attention_dropout, 0.25);
  const config::ModelConfig gpt =
      model_of("gpt2", {{"embd_pdrop", 0.3}, {"resid_pdrop", 0.2}, {"attn_pdrop", 0.0}});
  EXPECT_EQ(gpt.hidden_dropout, 0.2);
  EXPECT_EQ(gpt.attention_dropout, 0.0);
  const json written = parse_json(convert::hugging_face_config(gpt, DType::f32, "", "X"));
  EXPECT_EQ(written.at("embd_pdrop"), 0.2);
  EXPECT_EQ(written.at("resid_pdrop"), 0.2);
}

TEST(ConfigJson, ClampedSwigluHasNoClass) {
  config::ModelConfig model = model_of("llama", json::object());
  model.swiglu_clamp = 7;
  const std::string text = refusal([&] { convert::hugging_face_config(model, DType::f32, "", "X"); });
  EXPECT_NE(text.find("no model class with RMSNorm and a clamped SwiGLU (model.swiglu_clamp)"), text.npos)
      << text;
}

// The values that transformers computes from mscale and mscale_all_dim.
TEST(ConfigJson, YarnFactors) {
  const auto yarn = [&](const json& more) {
    json rope = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 12}};
    rope.update(more);
    return model_of("llama", {{"rope_scaling", rope}});
  };
  EXPECT_EQ(yarn(json::object()).rope_scaling.attention_factor, 0.0);
  EXPECT_EQ(yarn({{"attention_factor", 1.5}}).rope_scaling.attention_factor, 1.5);
  EXPECT_NEAR(yarn({{"mscale", 1.0}, {"mscale_all_dim", 0.5}}).rope_scaling.attention_factor,
              (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-12);
  EXPECT_EQ(yarn({{"truncate", false}}).rope_scaling.truncate, false);
}

TEST(ConfigJson, NotJson) {
  const TemporaryFolder folder;
  for (const char* text : {"", "{\"architectures\": [", "\xff\xfe"}) {
    write_bytes(folder / "config.json", text);
    TE_EXPECT_REFUSED("is not valid JSON (line 1)",
                      convert::read_hugging_face_config(folder / "config.json"));
  }
  write_bytes(folder / "config.json", "[]");
  TE_EXPECT_REFUSED("is not a JSON object", convert::read_hugging_face_config(folder / "config.json"));
  TE_EXPECT_REFUSED("not found", convert::read_hugging_face_config(folder / "nothing/config.json"));
}

// Files whose tensors do not match the model of their config.
TEST(HuggingFaceFolder, RefusesTensorsThatDoNotMatchTheConfig) {
  const TemporaryFolder folder;
  const fs::path gpt2 = copy_fixture("gpt2", folder / "gpt2");
  patch_config(gpt2, {{"n_inner", 52}});
  TE_EXPECT_REFUSED("transformer.h.0.mlp.c_fc.weight is [36, 50], must be [36, 52]",
                    convert::open_hugging_face(gpt2));
  patch_config(gpt2, {{"n_inner", 50}, {"n_layer", 1}});
  TE_EXPECT_REFUSED("does not belong to the model", convert::open_hugging_face(gpt2));
  patch_config(gpt2, {{"n_layer", 3}});
  TE_EXPECT_REFUSED("tensor transformer.h.2.ln_1.weight is missing", convert::open_hugging_face(gpt2));
  patch_config(gpt2, {{"n_layer", 2}, {"tie_word_embeddings", false}});
  TE_EXPECT_REFUSED("tensor lm_head.weight is missing", convert::open_hugging_face(gpt2));
  fs::remove(gpt2 / "model.safetensors");
  TE_EXPECT_REFUSED("has neither model.safetensors nor", convert::open_hugging_face(gpt2));
  write_bytes(gpt2 / "pytorch_model.bin", "x");
  TE_EXPECT_REFUSED("has pytorch_model.bin but no model.safetensors; write one with python3 -c",
                    convert::open_hugging_face(gpt2));
  // An output layer that is saved although it is tied.
  const fs::path untied = copy_fixture("gpt2_untied_bf16", folder / "untied");
  patch_config(untied, {{"tie_word_embeddings", true}});
  TE_EXPECT_REFUSED("lm_head.weight differs from transformer.wte.weight", convert::open_hugging_face(untied));
}

TEST(HuggingFaceFolder, Shards) {
  const TemporaryFolder folder;
  const fs::path llama = copy_fixture("llama", folder / "llama");
  const fs::path index = llama / "model.safetensors.index.json";
  const json good = parse_json(read_bytes(index));
  const std::string first = good.at("weight_map").at("model.norm.weight");
  std::string other;
  for (const auto& [name, file] : good.at("weight_map").items())
    if (file != first) other = file;
  const auto with = [&](const json& patch) {
    json changed = good;
    changed.merge_patch(patch);
    write_bytes(index, changed.dump());
  };
  with({{"weight_map", {{"model.norm.weight", other}}}});
  TE_EXPECT_REFUSED("weight_map: model.norm.weight is not in", convert::open_hugging_face(llama));
  with({{"weight_map", {{"model.norm.weight", "../x"}}}});
  TE_EXPECT_REFUSED("must be the name of a file", convert::open_hugging_face(llama));
  with({{"weight_map", {{"model.norm.weight", 3}}}});
  TE_EXPECT_REFUSED("must be the name of a file", convert::open_hugging_face(llama));
  write_bytes(index, "{}");
  TE_EXPECT_REFUSED("weight_map is missing", convert::open_hugging_face(llama));
  write_bytes(index, good.dump());
  const std::string shard = read_bytes(llama / first);
  write_bytes(llama / first, shard.substr(0, shard.size() - 1));
  TE_EXPECT_REFUSED(first, convert::open_hugging_face(llama));
  fs::remove(llama / first);
  TE_EXPECT_REFUSED(first, convert::open_hugging_face(llama));
}

TEST(Export, ModelsThatTransformersDoesNotHave) {
  config::ModelConfig model = convert::read_hugging_face_config(fixture("gpt2") / "config.json");
  model.num_query_groups = 1;
  TE_EXPECT_REFUSED("X: model.num_query_groups (1)",
                    convert::hugging_face_config(model, DType::f32, "", "X"));
  model.num_query_groups = model.num_attention_heads;
  model.kv_channels = 10;
  TE_EXPECT_REFUSED("X: model.num_attention_heads * model.kv_channels = 30",
                    convert::hugging_face_config(model, DType::f32, "", "X"));
  const config::ModelConfig gpt = convert::read_hugging_face_config(fixture("gpt2") / "config.json");
  const config::ModelConfig llama = convert::read_hugging_face_config(fixture("llama") / "config.json");
  const auto refused = [](config::ModelConfig changed, auto change, const char* what) {
    change(changed);
    TE_EXPECT_REFUSED(what, convert::hugging_face_config(changed, DType::f32, "", "X"));
  };
  using config::ModelConfig;
  refused(
      gpt, [](ModelConfig& m) { m.parallel_residual = true; },
      "learned positions and model.parallel_residual");
  refused(
      gpt, [](ModelConfig& m) { m.sliding_window = 5; }, "LayerNorm and a sliding window");
  refused(
      llama, [](ModelConfig& m) { m.norm_placement = config::NormPlacement::post; }, "OLMo 2 has both");
  refused(
      llama, [](ModelConfig& m) { m.sliding_window = 5, m.window_pattern = "w f", m.add_mlp_bias = true; },
      "model.sliding_window and these biases");
  refused(
      llama, [](ModelConfig& m) { m.activation = config::ActivationKind::geglu; }, "Gemma 3 has all of them");
  refused(
      llama, [](ModelConfig& m) { m.query_pre_attn_scalar = 7; }, "model.query_pre_attn_scalar");
  refused(
      llama, [](ModelConfig& m) { m.sliding_window = 5, m.rope_local_theta = 7; }, "model.rope_local_theta");
  refused(
      llama, [](ModelConfig& m) { m.qk_norm = config::QkNorm::head, m.add_mlp_bias = true; },
      "model.qk_norm head");
  refused(
      llama, [](ModelConfig& m) { m.add_proj_bias = true; },
      "model.add_proj_bias without model.add_qkv_bias");
  refused(
      llama, [](ModelConfig& m) { m.sliding_window = 5, m.add_mlp_bias = true; }, "model.sliding_window");
  refused(
      llama, [](ModelConfig& m) { m.rotary_percent = 0.5, m.add_qkv_bias = true; }, "model.rotary_percent");
  refused(
      llama, [](ModelConfig& m) { m.kv_channels = 10, m.rotary_percent = 0.5; },
      "an odd number of rotated channels");
  const config::ModelConfig mixtral = convert::read_hugging_face_config(fixture("mixtral") / "config.json");
  refused(
      mixtral, [](ModelConfig& m) { m.moe_router_score_function = config::RouterScore::sigmoid; },
      "a sigmoid router");
  refused(
      mixtral, [](ModelConfig& m) { m.moe_router_enable_expert_bias = true; }, "expert biases");
  refused(
      mixtral, [](ModelConfig& m) { m.moe_shared_expert_intermediate_size = 4; }, "a shared expert");
  refused(
      mixtral, [](ModelConfig& m) { m.moe_router_norm_topk_prob = false; }, "Mixtral has neither");
  refused(
      mixtral, [](ModelConfig& m) { m.first_k_dense = 1; }, "layers without experts");
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    const ModelConfig experts = convert::read_hugging_face_config(fixture(name) / "config.json");
    constexpr const char* kOfGemma =
        "X: transformers has no model class with experts and scale_embedding, layernorm_zero_centered_gamma";
    refused(
        experts, [](ModelConfig& m) { m.scale_embedding = true; }, kOfGemma);
    refused(
        experts, [](ModelConfig& m) { m.layernorm_zero_centered_gamma = true; }, kOfGemma);
    refused(
        experts, [](ModelConfig& m) { m.sliding_window = 5, m.rope_local_theta = 7; }, kOfGemma);
  }
}

TEST(OutputFolder, IsCompleteOrAbsent) {
  const TemporaryFolder folder;
  const auto never = [](const fs::path&) { return false; };
  const auto always = [](const fs::path&) { return true; };
  {
    const convert::OutputFolder output(folder / "out", false, "x", never);
    write_bytes(output.path() / "file", "1");
  }
  EXPECT_TRUE(entries(folder.path()).empty());
  for (const char* text : {"1", "2"}) {
    convert::OutputFolder output(folder / "out/", true, "x", always);
    write_bytes(output.path() / "file", text);
    output.commit();
    EXPECT_EQ(read_bytes(folder / "out/file"), text);
    EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"out"});
  }
  TE_EXPECT_REFUSED("out: exists", convert::OutputFolder(folder / "out", false, "x", always));
  TE_EXPECT_REFUSED("is not x; --force", convert::OutputFolder(folder / "out", true, "x", never));
  TE_EXPECT_REFUSED("is not x; --force", convert::OutputFolder(folder / "out/file", true, "x", always));
  EXPECT_EQ(read_bytes(folder / "out/file"), "2");
  fs::create_directory(folder / "empty");
  convert::OutputFolder(folder / "empty", false, "x", never).commit();
}

}  // namespace
}  // namespace te::testing
