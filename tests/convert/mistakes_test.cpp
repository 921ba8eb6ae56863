// What te-train cannot represent, and folders that are not whole, are refused in one line.
#include "convert/convert_testing.h"
#include "convert/hugging_face_config.h"
#include "convert/output_folder.h"

namespace te::testing {
namespace {

using nlohmann::json;

struct Refusal {
  const char* fixture;
  json patch;
  const char* message;
};

TEST(ConfigJson, WhatTeTrainCannotRepresent) {
  const std::vector<Refusal> cases = {
      {"llama",
       {{"architectures", {"GemmaForCausalLM"}}},
       "architectures is [\"GemmaForCausalLM\"], must be Llama"},
      {"llama",
       {{"architectures", nullptr}, {"model_type", "opt"}},
       "model_type is \"opt\", must be llama or"},
      {"llama",
       {{"hidden_act", "gelu"}},
       "hidden_act is \"gelu\", must be silu or swish; te-train's llama has SwiGLU"},
      {"llama", {{"attention_bias", true}}, "attention_bias is true, must be false"},
      {"llama", {{"mlp_bias", true}}, "mlp_bias is true, must be false"},
      {"llama", {{"rope_parameters", {{"rope_type", "yarn"}}}}, "rope_parameters: rope_type is \"yarn\""},
      {"llama", {{"rope_parameters", {{"rope_type", "llama3"}}}}, "rope_parameters: factor is missing"},
      {"llama",
       {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "full_attention is an object"},
      {"llama", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5, must be 1.0"},
      {"llama",
       {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
       "must be 1.0; te-train rotates whole heads"},
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
       "weight_block_size must be two whole numbers"},
      {"llama",
       {{"quantization_config", {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}}},
       "format is \"pack-quantized\""},
      {"llama", {{"hidden_size", "36"}}, "hidden_size is \"36\", must be a whole number"},
      {"llama", {{"num_hidden_layers", -1}}, "num_hidden_layers is -1"},
      {"llama", {{"num_hidden_layers", 0}}, "model.num_layers"},
      {"llama", {{"vocab_size", nullptr}}, "vocab_size is missing"},
      {"llama", {{"num_key_value_heads", 4}}, "as te-train's config: model.num_attention_heads (6)"},
      {"llama", {{"head_dim", 9}}, "must be even"},
      {"llama", {{"tie_word_embeddings", "yes"}}, "must be true or false"},
      {"llama",
       {{"architectures", {"MistralForCausalLM"}}, {"sliding_window", 16}},
       "sliding_window must be null"},
      {"qwen2", {{"use_sliding_window", true}}, "use_sliding_window is true, must be false"},
      {"qwen2",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types must all be full_attention"},
      {"gpt2", {{"activation_function", "relu"}}, "activation_function is \"relu\""},
      {"gpt2", {{"scale_attn_by_inverse_layer_idx", true}}, "scales all layers alike"},
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

TEST(ConfigJson, WhatMeansTheSameIsTaken) {
  const std::vector<std::pair<const char*, json>> cases = {
      {"llama", {{"architectures", nullptr}, {"hidden_act", "swish"}, {"attention_bias", nullptr}}},
      {"llama",
       {{"architectures", {"MistralForCausalLM"}}, {"sliding_window", nullptr}, {"model_type", "mistral"}}},
      {"qwen2", {{"sliding_window", 16}, {"max_window_layers", 1}}},  // not used
      {"gpt2", {{"n_ctx", 24}, {"activation_function", "gelu_pytorch_tanh"}}},
  };
  for (const auto& [name, patch] : cases) {
    const TemporaryFolder folder;
    const fs::path copy = copy_fixture(name, folder / "hf");
    const auto yaml = [&] {
      return config::to_yaml(convert::whole_config(convert::read_hugging_face_config(copy / "config.json")));
    };
    const std::string before = yaml();
    patch_config(copy, patch);
    EXPECT_EQ(yaml(), before);
  }
}

TEST(ConfigJson, NotJson) {
  const TemporaryFolder folder;
  for (const char* text : {"", "[]", "{\"architectures\": [", "\xff\xfe"}) {
    write_bytes(folder / "config.json", text);
    TE_EXPECT_REFUSED("is not a JSON object", convert::read_hugging_face_config(folder / "config.json"));
  }
  TE_EXPECT_REFUSED("not found", convert::read_hugging_face_config(folder / "nothing/config.json"));
}

// Files that do not hold the model of their config.
TEST(HuggingFaceFolder, TensorsThatDoNotFit) {
  const TemporaryFolder folder;
  const fs::path gpt2 = copy_fixture("gpt2", folder / "gpt2");
  patch_config(gpt2, {{"n_inner", 52}});
  TE_EXPECT_REFUSED("transformer.h.0.mlp.c_fc.weight is [36, 50], must be [36, 52]",
                    convert::open_hugging_face(gpt2));
  patch_config(gpt2, {{"n_inner", 50}, {"n_layer", 1}});
  TE_EXPECT_REFUSED("has no place in the model", convert::open_hugging_face(gpt2));
  patch_config(gpt2, {{"n_layer", 3}});
  TE_EXPECT_REFUSED("tensor transformer.h.2.ln_1.weight is missing", convert::open_hugging_face(gpt2));
  patch_config(gpt2, {{"n_layer", 2}, {"tie_word_embeddings", false}});
  TE_EXPECT_REFUSED("tensor lm_head.weight is missing", convert::open_hugging_face(gpt2));
  fs::remove(gpt2 / "model.safetensors");
  TE_EXPECT_REFUSED("has neither model.safetensors nor", convert::open_hugging_face(gpt2));
  // A head that is saved though it is tied.
  const fs::path untied = copy_fixture("gpt2_untied_bf16", folder / "untied");
  patch_config(untied, {{"tie_word_embeddings", true}});
  TE_EXPECT_REFUSED("lm_head.weight is not transformer.wte.weight", convert::open_hugging_face(untied));
}

TEST(HuggingFaceFolder, Shards) {
  const TemporaryFolder folder;
  const fs::path llama = copy_fixture("llama", folder / "llama");
  const fs::path index = llama / "model.safetensors.index.json";
  const json good = json::parse(read_bytes(index));
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
}

TEST(OutputFolder, IsThereWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const auto never = [](const fs::path&) { return false; };
  const auto always = [](const fs::path&) { return true; };
  {
    const convert::OutputFolder output(folder / "out", "--out", false, "x", never);
    write_bytes(output.path() / "file", "1");
  }
  EXPECT_TRUE(entries(folder.path()).empty());
  for (const char* text : {"1", "2"}) {
    convert::OutputFolder output(folder / "out/", "--out", true, "x", always);
    write_bytes(output.path() / "file", text);
    output.commit();
    EXPECT_EQ(read_bytes(folder / "out/file"), text);
    EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"out"});
  }
  TE_EXPECT_REFUSED("out: exists", convert::OutputFolder(folder / "out", "--out", false, "x", always));
  TE_EXPECT_REFUSED("is not x, which", convert::OutputFolder(folder / "out", "--out", true, "x", never));
  TE_EXPECT_REFUSED("is not x, which",
                    convert::OutputFolder(folder / "out/file", "--out", true, "x", always));
  EXPECT_EQ(read_bytes(folder / "out/file"), "2");
  fs::create_directory(folder / "empty");
  convert::OutputFolder(folder / "empty", "--out", false, "x", never).commit();
}

}  // namespace
}  // namespace te::testing
