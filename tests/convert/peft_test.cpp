// PEFT folders with an adapter that te-train does not support, or that is of another model: each is refused with one
// line. They are the folder of scripts/make_peft_fixtures.py with a change.
#include <functional>

#include "convert/adapter.h"
#include "convert/convert_testing.h"

namespace te::testing {
namespace {

class PeftFolder : public ::testing::Test {
 protected:
  static constexpr const char* kLayer = "base_model.model.model.layers.1.";

  PeftFolder() { use("peft/trained"); }
  /// Starts with another adapter.
  void use(const std::string& adapter) const {
    fs::remove_all(peft());
    fs::copy(fs::path(TE_SOURCE_DIR) / "tests/fixtures" / adapter, peft());
  }
  fs::path peft() const { return folder_ / "peft"; }
  fs::path weights() const { return peft() / "adapter_model.safetensors"; }

  void set(const char* key, const nlohmann::json& value) const {
    const fs::path path = peft() / "adapter_config.json";
    nlohmann::json config = parse_json(read_bytes(path));
    config[key] = value;
    write_bytes(path, config.dump());
  }
  /// Writes the tensors again under the names that `renamed` gives; without those for which it gives "".
  void rename(const std::function<std::string(const std::string&)>& renamed) const {
    const fs::path original = folder_ / "original.safetensors";
    fs::copy_file(weights(), original, fs::copy_options::overwrite_existing);
    const SafetensorsReader file(original);
    std::vector<SafetensorsSpec> specs;
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const std::string name = renamed(std::string(tensor.name));
      if (!name.empty()) specs.push_back({name, *tensor.dtype, tensor.shape});
    }
    SafetensorsWriter writer(weights(), specs);
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const std::string name = renamed(std::string(tensor.name));
      if (!name.empty()) writer.write(name, tensor.data, tensor.bytes);
    }
    writer.finish();
  }
  void open(const char* base = "llama") const {
    convert::open_adapter(peft(), convert::open_hugging_face(fixture(base)).model());
  }

  TemporaryFolder folder_;
};

TEST_F(PeftFolder, OtherModelsAreRefused) {
  open();
  TE_EXPECT_REFUSED("q_proj.lora_A.weight has another shape, must be [8, ", open("qwen2"));
  TE_EXPECT_REFUSED(
      "transformers stores layers.0.self_attention.linear_qkv.weight of this model in one tensor",
      open("gpt2"));
}

TEST_F(PeftFolder, OtherRanksAreRefused) {
  for (const int rank : {4, 16}) {
    set("r", rank);
    TE_EXPECT_REFUSED(fmt::format("q_proj.lora_A.weight has another shape, must be [{}, 36]", rank), open());
  }
  set("r", 0);
  TE_EXPECT_REFUSED("adapter_config.json: r and lora_alpha must be above 0", open());
  set("r", 8);
  set("rank_pattern", {{"q_proj", 16}});
  TE_EXPECT_REFUSED(
      "adapter_config.json: rank_pattern is not supported; te-train supports LoRA with one rank", open());
}

TEST_F(PeftFolder, MissingAndUnknownTargetsAreRefused) {
  const std::string module = std::string(kLayer) + "mlp.down_proj.";
  for (const std::string& part : {module + "lora_A.weight", module + "lora_B.weight"}) {
    rename([&](const std::string& name) { return name == part ? "" : name; });
    TE_EXPECT_REFUSED("tensor " + part + " is missing, must be [", open());
    fs::copy_file(folder_ / "original.safetensors", weights(), fs::copy_options::overwrite_existing);
  }
  open();
  rename([&](const std::string& name) {
    return name == module + "lora_A.weight" ? "base_model.model.lm_head.lora_A.weight" : name;
  });
  TE_EXPECT_REFUSED(module + "lora_A.weight is missing", open());
  rename([](const std::string& name) { return "lm_head." + name; });
  TE_EXPECT_REFUSED("lora_A.weight is not an adapter of a linear layer of this model", open());
  rename([](const std::string&) { return ""; });
  TE_EXPECT_REFUSED("has no adapter of a linear layer", open());
}

TEST_F(PeftFolder, OtherMethodsAreRefused) {
  for (const auto& [key, value] : {std::pair<const char*, nlohmann::json>{"use_dora", true},
                                   {"peft_type", "IA3"},
                                   {"bias", "all"},
                                   {"fan_in_fan_out", true},
                                   {"modules_to_save", {"lm_head"}},
                                   {"layers_to_transform", {0}},
                                   {"target_parameters", {"mlp.experts.gate_up_proj"}}}) {
    const fs::path config = peft() / "adapter_config.json";
    const std::string before = read_bytes(config);
    set(key, value);
    TE_EXPECT_REFUSED(fmt::format("adapter_config.json: {} ", key), open());
    write_bytes(config, before);
  }
  open();
}

// PEFT runs such an initialization again when it loads the adapter, and subtracts the result from the base weights.
TEST_F(PeftFolder, InitializationsThatChangeTheBaseAreRefused) {
  for (const char* name : {"pissa", "pissa_niter_16", "olora", "loftq", "corda", "lora_ga"}) {
    set("init_lora_weights", name);
    TE_EXPECT_REFUSED(fmt::format("adapter_config.json: init_lora_weights is \"{}\", must be true, false, "
                                  "\"gaussian\", \"orthogonal\" or \"eva\"; PEFT changes the base weights",
                                  name),
                      open());
  }
  const std::vector<nlohmann::json> harmless = {true, false, nullptr, "gaussian", "orthogonal", "eva"};
  for (const nlohmann::json& value : harmless) {
    set("init_lora_weights", value);
    open();
  }
}

TEST_F(PeftFolder, UnknownKeysAreRefused) {
  set("future_key", nullptr);
  open();
  set("future_key", {{"a", 1}});
  TE_EXPECT_REFUSED("adapter_config.json: future_key is {\"a\":1}, which te-train does not know; remove it",
                    open());
  set("future_key", nullptr);
  set("megatron_config", {{"num_layers", 2}});
  TE_EXPECT_REFUSED("adapter_config.json: megatron_config is ", open());
}

// The tensors say which modules have an adapter; exclude_modules must not contradict them.
TEST_F(PeftFolder, ExcludedModulesHaveNoAdapter) {
  set("exclude_modules", {"lm_head", "proj"});
  open();
  set("exclude_modules", {"lm_head", "layers.1.mlp.up_proj"});
  TE_EXPECT_REFUSED("exclude_modules has layers.1.mlp.up_proj, but the folder has its adapter", open());
  set("exclude_modules", ".*lm_head");
  TE_EXPECT_REFUSED("exclude_modules is not a list of modules, which is not supported", open());
}

// The keys that PEFT 0.10 and other programs write.
TEST_F(PeftFolder, KeysOfOtherVersionsAreRead) {
  write_bytes(peft() / "adapter_config.json", R"({
    "alpha_pattern": {}, "auto_mapping": {"base_model_class": "LlamaForCausalLM", "unsloth_fixed": true},
    "base_model_name_or_path": "llama", "bias": "none", "fan_in_fan_out": false, "inference_mode": true,
    "init_lora_weights": true, "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
    "loftq_config": {}, "lora_alpha": 12, "lora_dropout": 0.05, "lora_dtype": "float32",
    "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA",
    "r": 8, "rank_pattern": {}, "revision": "main", "target_modules": "all-linear",
    "task_type": "CAUSAL_LM", "use_dora": false,
    "use_rslora": false})");
  open();
}

// Adapters of fused experts (target_parameters).
TEST_F(PeftFolder, OtherParametersAndRanksOfExpertsAreRefused) {
  use("peft_experts/all_experts");
  open("mixtral");
  set("target_parameters", {"mlp.experts.gate_up_proj", "mlp.gate.weight"});
  TE_EXPECT_REFUSED("target_parameters has mlp.gate.weight; te-train supports gate_up_proj and down_proj",
                    open("mixtral"));
  for (const nlohmann::json& value : {nlohmann::json("down_proj"), nlohmann::json{{"a", "down_proj"}}}) {
    set("target_parameters", value);
    TE_EXPECT_REFUSED("target_parameters must be a list", open("mixtral"));
  }
  set("target_parameters", {"mlp.experts.gate_up_proj"});  // PEFT then has no base_layer
  TE_EXPECT_REFUSED("experts.lora_A.weight has another shape, must be [40, 48]", open("mixtral"));
  use("peft_experts/all_experts");
  set("rank_pattern", {{R"(.*\.gate_up_proj)", 16}});
  TE_EXPECT_REFUSED("rank_pattern is not supported; te-train supports LoRA with one rank", open("mixtral"));
  set("alpha_pattern", {{R"(.*\.gate_up_proj)", 24.0}});
  TE_EXPECT_REFUSED("base_layer.lora_A.weight has another shape, must be [80, 48]", open("mixtral"));
  use("peft_experts/all_experts");
  set("r", 4);  // with its own rows, gate and up have half of PEFT's rank
  set("lora_alpha", 6);
  set("target_parameters", {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"});
  set("rank_pattern", {{R"(.*\.gate_up_proj)", 8}});
  set("alpha_pattern", {{R"(.*\.gate_up_proj)", 12}});
  rename([](const std::string& name) { return name.find("base_layer") != std::string::npos ? name : ""; });
  TE_EXPECT_REFUSED("experts.base_layer.lora_B.weight mixes gate and up", open("mixtral"));
}

}  // namespace
}  // namespace te::testing
