// Values of config.json that te-train cannot represent or that versions of transformers read differently, and folders
// that transformers loads in another way, are refused with one line that names the key or file.
#include <array>
#include <cmath>
#include <variant>

#include "config/key_table.h"
#include "convert/convert_testing.h"
#include "convert/hugging_face_config.h"
#include "core/error.h"
#include "core/json.h"

namespace te::testing {
namespace {

using nlohmann::json;

/// A copy of a fixture's folder whose config.json has other values; unlike a merge patch's, they may be null.
class ConfigValues : public ::testing::Test {
 protected:
  config::ModelConfig model_of(const char* name, const json& values) const {
    json config = parse_json(read_bytes(fixture(name) / "config.json"));
    config.update(values);
    write_bytes(file(), config.dump());
    return convert::read_hugging_face_config(file());
  }
  void expect_refused(const char* name, const json& values, const std::string& part) const {
    const std::string text = refusal([&] { model_of(name, values); });
    EXPECT_NE(text.find(part), std::string::npos) << name << " " << values << ": " << text;
    EXPECT_EQ(text.find(file().string()), 0U) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  fs::path file() const { return folder_ / "config.json"; }

  TemporaryFolder folder_;
};

// Without layer_types, transformers 4 gives all layers of a Qwen2-MoE the window, transformers 5 every other one.
TEST_F(ConfigValues, AWindowOfQwen2MoeNeedsLayerTypes) {
  const json window = {{"use_sliding_window", true}, {"sliding_window", 16}};
  const auto with_types = [&](const json& types) {
    json values = window;
    values["layer_types"] = types;
    return values;
  };
  for (const int first : {0, 1, 2, 28}) {
    json values = with_types(nullptr);
    values["max_window_layers"] = first;
    expect_refused("qwen2_moe", values,
                   "layer_types is missing, and versions of transformers differ in the layers that have the "
                   "window; add layer_types");
  }
  json unused = with_types(nullptr);
  unused["sliding_window"] = 48;  // max_position_embeddings
  EXPECT_EQ(model_of("qwen2_moe", unused).sliding_window, 0);
  const json all = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(model_of("qwen2_moe", with_types(all)).sliding_window, 16);
  EXPECT_EQ(model_of("qwen2_moe", with_types({"sliding_attention", "full_attention"})).window_pattern, "w f");
  EXPECT_EQ(model_of("qwen2_moe", {{"layer_types", nullptr}}).sliding_window, 0);
  EXPECT_EQ(model_of("qwen3_moe", window).sliding_window, 16);
}

TEST_F(ConfigValues, AnExportedWindowOfQwen2MoeHasLayerTypes) {
  config::ModelConfig model = model_of("qwen2_moe", json::object());
  EXPECT_FALSE(parse_json(convert::hugging_face_config(model, DType::f32, {}, "X")).contains("layer_types"));
  model.sliding_window = 16;
  const json written = parse_json(convert::hugging_face_config(model, DType::f32, {}, "X"));
  EXPECT_EQ(written.at("layer_types"), json({"sliding_attention", "sliding_attention"}));
  EXPECT_EQ(written.at("max_window_layers"), 0);
  write_bytes(file(), written.dump());
  EXPECT_EQ(convert::read_hugging_face_config(file()).sliding_window, 16);
}

TEST_F(ConfigValues, AWindowOfZeroIsRefused) {
  const char* const rule = "sliding_window is 0, must be above 0; for no window, set it to null";
  json qwen = {{"use_sliding_window", true}, {"sliding_window", 0}, {"max_window_layers", 0}};
  expect_refused("qwen3_windows", qwen, rule);
  qwen["layer_types"] = nullptr;
  for (const char* name : {"mistral_window", "mixtral", "phi3_partial", "gemma3"})
    expect_refused(name, {{"sliding_window", 0}}, rule);
  for (const char* name : {"qwen2", "qwen3", "qwen3_moe"}) expect_refused(name, qwen, rule);
  qwen["layer_types"] = {"sliding_attention", "sliding_attention"};
  expect_refused("qwen2_moe", qwen, rule);
  expect_refused("mistral_window",
                 {{"sliding_window", 0}, {"layer_types", {"full_attention", "sliding_attention"}}}, rule);
  // transformers writes 0 into models without a window.
  EXPECT_EQ(model_of("qwen2_moe", {{"use_sliding_window", false}, {"sliding_window", 0}}).sliding_window, 0);
  for (const char* name : {"mistral_window", "mixtral", "phi3_partial"})
    EXPECT_EQ(model_of(name, {{"sliding_window", nullptr}}).sliding_window, 0) << name;
  EXPECT_EQ(model_of("qwen3_moe", {{"use_sliding_window", true}, {"sliding_window", nullptr}}).sliding_window,
            0);
}

// te-train's config has 0 for a factor or base that is not given.
TEST_F(ConfigValues, ZeroIsNotTakenForAMissingValue) {
  const auto yarn = [](const json& more) {
    json rope = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 12}};
    rope.update(more);
    return json{{"rope_scaling", rope}};
  };
  for (const double factor : {0.0, -1.5})
    expect_refused("llama", yarn({{"attention_factor", factor}}),
                   fmt::format("attention_factor is {:.1f}, must be above 0", factor));
  const double zero = -10 / std::log(4.0);  // the mscale whose attention factor is 0
  for (const auto& [mscale, all] : {std::pair{zero, 1.0}, {1.0, zero}, {2 * zero, 1.0}})
    expect_refused("llama", yarn({{"mscale", mscale}, {"mscale_all_dim", all}}),
                   "mscale and mscale_all_dim give an attention factor that is not above 0");
  json local = {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 0.0}}}};
  expect_refused("gemma3", {{"rope_parameters", local}}, "rope_theta is 0.0, must be above 0");
}

TEST_F(ConfigValues, MlpOnlyLayersIsAList) {
  for (const json& value : {json(0), json{{"0", 0}}, json("0")})
    expect_refused("qwen3_moe", {{"mlp_only_layers", value}}, "must list the first layers in order");
  EXPECT_EQ(model_of("qwen3_moe", {{"mlp_only_layers", nullptr}}).first_k_dense, 0);
}

TEST_F(ConfigValues, ArchitecturesIsAListOfOneName) {
  for (const json& value :
       {json("LlamaForCausalLM"), json({"LlamaForCausalLM", "LlamaForCausalLM"}), json({1})})
    expect_refused("llama", {{"architectures", value}},
                   "architectures is " + value.dump() + ", must be a list of one name");
}

TEST_F(ConfigValues, IntegersAboveTheLimit) {
  expect_refused("llama", {{"max_position_embeddings", 2e12}}, "must be a non-negative integer");
  expect_refused("llama", {{"max_position_embeddings", int64_t{2000000000000}}},
                 "max_position_embeddings is 2000000000000, must be at most 1000000000000");
}

// The line of an error in a file that is not JSON.
TEST_F(ConfigValues, InvalidJsonNamesTheLine) {
  const std::string valid = read_bytes(fixture("llama") / "config.json");
  for (const std::string value : {"NaN", "Infinity", "\"\xe9\"", "1,", "\"\n\""}) {
    std::string text = valid;
    text.insert(text.find('{') + 1, "\n\"x\": " + value + ",");
    write_bytes(file(), text);
    TE_EXPECT_REFUSED("config.json: is not valid JSON (line 2", convert::read_hugging_face_config(file()));
  }
  write_bytes(file(), "{}\n// a comment");
  TE_EXPECT_REFUSED("config.json: is not valid JSON (line 2)", convert::read_hugging_face_config(file()));
  write_bytes(file(), "{\"x\": 1e999}");
  TE_EXPECT_REFUSED("config.json: is not valid JSON (a number", convert::read_hugging_face_config(file()));
}

// With PEFT, transformers adds an adapter in the folder to the model.
TEST_F(ConfigValues, AnAdapterNextToTheModelIsRefused) {
  const fs::path model = copy_fixture("llama", folder_ / "llama");
  convert::open_hugging_face(model);
  for (const auto& entry : fs::directory_iterator(fs::path(TE_SOURCE_DIR) / "tests/fixtures/peft/trained"))
    fs::copy(entry, model / entry.path().filename());
  TE_EXPECT_REFUSED(model.string() + ": has adapter_config.json next to the model",
                    convert::open_hugging_face(model));
}

// Like the embedding, a saved copy of a tied output layer may be in another precision.
TEST_F(ConfigValues, ATiedOutputLayerMayHaveAnotherDtype) {
  const fs::path tied = copy_fixture("llama3_tied_bf16", folder_ / "tied");
  const SafetensorsReader file(fixture("llama3_tied_bf16") / "model.safetensors");
  const SafetensorsTensor& embedding = file.at("model.embed_tokens.weight");
  const auto write = [&](float added) {
    std::vector<SafetensorsSpec> specs;
    for (const SafetensorsTensor& tensor : file.tensors())
      specs.push_back({std::string(tensor.name), *tensor.dtype, tensor.shape});
    specs.push_back({"lm_head.weight", DType::f32, embedding.shape});
    SafetensorsWriter writer(tied / "model.safetensors", specs);
    for (const SafetensorsTensor& tensor : file.tensors())
      writer.write(std::string(tensor.name), tensor.data, tensor.bytes);
    std::vector<float> head(embedding.bytes / 2);
    for (size_t i = 0; i < head.size(); ++i) {
      bfloat16 value;
      std::memcpy(&value, static_cast<const std::byte*>(embedding.data) + 2 * i, 2);
      head[i] = to_float(value);
    }
    head.back() += added;
    writer.write("lm_head.weight", head.data(), 4 * head.size());
    writer.finish();
  };
  write(0);
  convert::open_hugging_face(tied);
  write(1e-6f);
  TE_EXPECT_REFUSED("lm_head.weight differs from model.embed_tokens.weight",
                    convert::open_hugging_face(tied));
}

/// The model without what its logits do not depend on, and with one of several equivalent values of a key.
config::Config normalized(config::ModelConfig m) {
  const config::ModelConfig plain;
  m.make_vocab_size_divisible_by = 1;
  m.seq_length = m.max_position_embeddings;
  m.init_method_std = plain.init_method_std;
  m.embedding_init_method_std = plain.embedding_init_method_std;
  m.moe_router_load_balancing_type = plain.moe_router_load_balancing_type;
  m.moe_aux_loss_coeff = plain.moe_aux_loss_coeff;
  m.moe_z_loss_coeff = plain.moe_z_loss_coeff;
  m.moe_expert_capacity_factor = plain.moe_expert_capacity_factor;  // not in generation
  m.moe_router_bias_update_rate = plain.moe_router_bias_update_rate;
  if (m.query_pre_attn_scalar == 0.0) m.query_pre_attn_scalar = static_cast<double>(m.kv_channels);
  std::string windows;
  for (int64_t layer = 0; layer < m.num_layers; ++layer) windows += m.window_in(layer) ? "w " : "f ";
  if (!m.windowed() || windows.find('w') == std::string::npos) m.sliding_window = 0;
  if (m.sliding_window == 0) m.rope_local_theta = 0.0;
  m.window_pattern = m.sliding_window == 0 ? "" : windows;
  if (m.sliding_window != 0 && m.rope_scaling.kind == config::RopeScalingKind::none)
    m.rope_local_theta = m.with_local_rope().rope_theta;
  config::Config config;
  config.model = m;
  return config;
}

/// Calls test(key, model) for models that differ from `model` in one key of the table. They may be invalid.
template <class Test>
void with_other_values(const config::ModelConfig& model, Test&& test) {
  for (const config::Key& key : config::keys()) {
    if (key.section() != "model") continue;
    config::Config config;
    config.model = model;
    const config::Field field = key.field(config);
    const auto try_values = [&](auto& value, const auto& others) {
      for (const auto& other : others) {
        value = other;
        test(key.path, config.model);
      }
    };
    if (auto* const* integer = std::get_if<int64_t*>(&field))
      try_values(**integer, std::vector<int64_t>{0, 1, 2, 3, 16, 48});
    if (auto* const* number = std::get_if<double*>(&field))
      try_values(**number, std::vector<double>{0.0, 0.3, 0.5, 7.0});
    if (bool* const* flag = std::get_if<bool*>(&field)) try_values(**flag, std::array{false, true});
    if (std::string* const* text = std::get_if<std::string*>(&field))
      try_values(**text, std::array{"", "w f"});
    if (const auto* name = std::get_if<config::EnumField>(&field))
      for (uint8_t i = 0; i < name->names.size(); ++i) try_values(*name->index, std::array{i});
    if (config::RopeScaling* const* scaling = std::get_if<config::RopeScaling*>(&field))
      for (const auto kind : {config::RopeScalingKind::none, config::RopeScalingKind::linear,
                              config::RopeScalingKind::llama3, config::RopeScalingKind::yarn})
        try_values(**scaling, std::array{config::RopeScaling{.kind = kind, .factor = 4.0}});
  }
}

// Any value of any key that te-train accepts, alone and together with a window, is in the exported config.json, or no
// class has it. A new key that logits do not depend on belongs in normalized().
TEST_F(ConfigValues, ExportWritesOrRefusesEveryKey) {
  int64_t written = 0, refused = 0;
  const auto test = [&](std::string_view key, const config::ModelConfig& changed) {
    config::ModelConfig model;
    try {
      convert::check_model(changed, "X");
      model = convert::complete_config(changed).model;
    } catch (const UserError&) {
      return;  // te-train refuses it
    }
    try {
      write_bytes(file(), convert::hugging_face_config(model, DType::f32, {}, "X"));
    } catch (const UserError&) {
      ++refused;
      return;
    }
    ++written;
    const config::ModelConfig read = convert::read_hugging_face_config(file());
    for (const config::ChangedKey& lost :
         config::changed_keys(config::to_yaml(normalized(model)), normalized(read)))
      ADD_FAILURE() << lost.path << ": " << lost.before << " became " << lost.now << ", with another " << key;
  };
  for (const fs::directory_entry& folder : fs::directory_iterator(fixture(""))) {
    SCOPED_TRACE(folder.path().filename());
    config::ModelConfig model = convert::read_hugging_face_config(folder.path() / "config.json");
    with_other_values(model, test);
    model.sliding_window = 16;
    with_other_values(model, test);
  }
  EXPECT_GT(written, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace te::testing
