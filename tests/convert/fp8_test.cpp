// Export and import of FP8 in DeepSeek's blocks of 128 x 128. scripts/fp8_export_check.py reads such folders with
// transformers.
#include <cmath>
#include <functional>

#include "convert/convert_testing.h"
#include "core/json.h"
#include "core/random.h"

namespace te::testing {
namespace {

using nlohmann::json;

constexpr int64_t kHidden = 128, kFfn = 192;

float value_at(size_t i) {
  const auto word = static_cast<int32_t>(philox(7, 1, i).word[0]);
  return to_float(to_bf16(static_cast<float>(word) * 0x1p-31f *
                          static_cast<float>(std::exp2(static_cast<double>(i % 7)))));
}

struct Tensor8 {
  DType dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor8>;

Tensor8 bf16_tensor(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<bfloat16> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_bf16(value_at(i));
  return {DType::bf16, shape, std::string(reinterpret_cast<const char*>(values.data()), 2 * values.size())};
}

Tensor8 f32_tensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return {DType::f32, shape, std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size())};
}

/// A Llama with one layer, head_dim 64 and a tied output layer; the MLP's width 192 is not a multiple of 128.
Tensors llama_tensors() {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", bf16_tensor({67, kHidden})},
          {layer + "self_attn.q_proj.weight", bf16_tensor({kHidden, kHidden})},
          {layer + "self_attn.k_proj.weight", bf16_tensor({kHidden, kHidden})},
          {layer + "self_attn.v_proj.weight", bf16_tensor({kHidden, kHidden})},
          {layer + "self_attn.o_proj.weight", bf16_tensor({kHidden, kHidden})},
          {layer + "mlp.gate_proj.weight", bf16_tensor({kFfn, kHidden})},
          {layer + "mlp.up_proj.weight", bf16_tensor({kFfn, kHidden})},
          {layer + "mlp.down_proj.weight", bf16_tensor({kHidden, kFfn})},
          {layer + "input_layernorm.weight", bf16_tensor({kHidden})},
          {layer + "post_attention_layernorm.weight", bf16_tensor({kHidden})},
          {"model.norm.weight", bf16_tensor({kHidden})}};
}

json llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", kHidden},
          {"intermediate_size", kFfn},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 2},
          {"vocab_size", 67},
          {"tie_word_embeddings", true},
          {"max_position_embeddings", 32},
          {"torch_dtype", "bfloat16"}};
}

void write_folder(const fs::path& folder, const Tensors& tensors, const json& config) {
  fs::create_directories(folder);
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes.data(), tensor.bytes.size());
  writer.finish();
  write_bytes(folder / "config.json", config.dump());
}

json block_quantization() {
  return {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
}

/// The rows of a part of a model, as FP32.
std::vector<float> read_part(const convert::ForeignModel& model, const std::string& parameter, int64_t first,
                             int64_t rows) {
  const convert::ParameterLayout& layout = model.at(parameter);
  std::vector<float> values(static_cast<size_t>(rows * layout.cols()));
  model.read_rows(layout, first, rows, values.data());
  return values;
}

class Fp8Blocks : public ::testing::Test {
 protected:
  void SetUp() override {
    write_folder(folder_ / "hf", llama_tensors(), llama_config());
    import_to(folder_ / "hf", folder_ / "te");
  }
  TemporaryFolder folder_;
};

TEST_F(Fp8Blocks, RoundTrip) {
  for (const int64_t shard : {int64_t{1} << 30, int64_t{20000}}) {
    const fs::path out = folder_ / fmt::format("out{}", shard);
    const auto done =
        export_to(folder_ / "te", out,
                  {.dtype = {}, .max_shard_bytes = shard, .kept = {}, .fp8 = convert::Fp8Format::block});
    EXPECT_EQ(done.tensors, 15);
    EXPECT_EQ(done.kept, 3);
    EXPECT_EQ(done.files > 1, shard == 20000);
    const auto tensors = tensors_of(out), before = tensors_of(folder_ / "hf");
    EXPECT_EQ(tensors.size(), 15u);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      const std::string weight = fmt::format("model.layers.0.self_attn.{}.weight", name);
      EXPECT_TRUE(tensors.at(weight).starts_with("F8_E4M3 [128, 128] ")) << weight;
      EXPECT_TRUE(tensors.at(weight + "_scale_inv").starts_with("F32 [1, 1] ")) << weight;
    }
    // A block's multiplier is its amax / 448, up to the rounding of two divisions.
    float amax = 0.0f, multiplier = 0.0f;
    for (int64_t i = 0; i < kHidden * kHidden; ++i)
      amax = std::max(amax, std::abs(value_at(static_cast<size_t>(i))));
    const std::string& scale = tensors.at("model.layers.0.self_attn.o_proj.weight_scale_inv");
    std::memcpy(&multiplier, scale.data() + scale.size() - sizeof(multiplier), sizeof(multiplier));
    EXPECT_FLOAT_EQ(multiplier, amax / 448.0f);
    for (const auto& [name, tensor] : before)
      if (name.find("self_attn") == std::string::npos) {
        EXPECT_TRUE(tensors.at(name) == tensor) << name;
      }
    const json config = parse_json(read_bytes(out / "config.json"));
    EXPECT_EQ(config["torch_dtype"], "bfloat16");
    const json& quantization = config["quantization_config"];
    EXPECT_EQ(quantization["quant_method"], "fp8");
    EXPECT_EQ(quantization["weight_block_size"], json({128, 128}));
    EXPECT_EQ(quantization["modules_to_not_convert"],
              json({"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                    "model.layers.0.mlp.down_proj", "lm_head"}));
    // Import gives BF16 values: codes times multiplier, close to the weights.
    const convert::ForeignModel model = convert::open_hugging_face(out);
    const std::string qkv = "layers.0.self_attention.linear_qkv.weight";
    EXPECT_EQ(model.dtype(model.at(qkv)), DType::bf16);
    const std::vector<float> k = read_part(model, qkv, 128, 128);
    for (size_t i = 0; i < k.size(); ++i) {
      EXPECT_NEAR(k[i], value_at(i), std::abs(value_at(i)) / 14 + 2e-4) << i;
      EXPECT_EQ(k[i], to_float(to_bf16(k[i])));
    }
    import_to(out, folder_ / fmt::format("again{}", shard));
  }
  EXPECT_TRUE(read_bytes(folder_ / "again20000/step_00000000/model.safetensors") ==
              read_bytes(folder_ / fmt::format("again{}/step_00000000/model.safetensors", int64_t{1} << 30)));
}

TEST_F(Fp8Blocks, ImportsPartialBlocks) {
  Tensors tensors = llama_tensors();
  const std::string name = "model.layers.0.mlp.gate_proj.weight";
  std::string codes(static_cast<size_t>(kFfn * kHidden), '\0');
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<char>(to_e4m3(value_at(i)).bits);
  tensors[name] = {DType::e4m3, {kFfn, kHidden}, codes};
  json config = llama_config();
  config["quantization_config"] = block_quantization();
  const auto refused = [&](const std::string& part) {
    write_folder(folder_ / "in", tensors, config);
    try {
      convert::open_hugging_face(folder_ / "in");
      ADD_FAILURE() << "accepted: " << part;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused(name + "_scale_inv with 2 multipliers is missing");
  tensors[name + "_scale_inv"] = f32_tensor({1, 1}, {0.5f});
  refused(name + "_scale_inv with 2 multipliers is missing");
  for (const char* dtype : {"F8_E4M3", "F8_E8M0"}) {  // MXFP8's scales are in E8M0
    tensors[name + "_scale_inv"] = {DType::e4m3, {2, 1}, "xy"};
    write_folder(folder_ / "in", tensors, config);
    std::string changed = read_bytes(folder_ / "in/model.safetensors");
    changed.replace(changed.find("F8_E4M3", changed.find(name + "_scale_inv")), 7, dtype);
    write_bytes(folder_ / "in/model.safetensors", changed);
    TE_EXPECT_REFUSED(fmt::format("{}_scale_inv is {}, must be F32, BF16 or F16", name, dtype),
                      convert::open_hugging_face(folder_ / "in"));
  }
  tensors[name + "_scale_inv"] = f32_tensor({2, 1}, {0.5f, 4.0f});
  write_folder(folder_ / "in", tensors, config);
  const convert::ForeignModel model = convert::open_hugging_face(folder_ / "in");
  const std::vector<float> rows = read_part(model, "layers.0.mlp.linear_fc1.weight", 100, 60);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t element = i + 100 * static_cast<size_t>(kHidden);
    const float multiplier = i < 28 * static_cast<size_t>(kHidden) ? 0.5f : 4.0f;
    EXPECT_EQ(rows[i], to_float(to_bf16(to_float(to_e4m3(value_at(element))) * multiplier))) << i;
  }
  config.erase("quantization_config");
  refused(name + " is F8_E4M3, but config.json has no quantization_config");
  tensors.erase(name + "_scale_inv");
  refused(name + " is F8_E4M3, but config.json has no quantization_config");
}

/// compressed-tensors as llm-compressor writes it.
json compressed_quantization(const std::vector<json>& weights) {
  json groups;
  for (size_t i = 0; i < weights.size(); ++i) {
    json all = {{"num_bits", 8},         {"type", "float"},      {"symmetric", true},
                {"group_size", nullptr}, {"actorder", nullptr},  {"block_structure", nullptr},
                {"dynamic", false},      {"observer", "minmax"}, {"observer_kwargs", json::object()}};
    all.update(weights[i]);
    groups["group_" + std::to_string(i)] = {{"targets", {"Linear"}},
                                            {"weights", all},
                                            {"input_activations", {{"strategy", "token"}, {"dynamic", true}}},
                                            {"output_activations", nullptr}};
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups", groups},
          {"ignore", {"lm_head"}},
          {"kv_cache_scheme", nullptr},
          {"quantization_status", "compressed"}};
}

// Scales of rows in BF16, and of blocks.
TEST_F(Fp8Blocks, ImportsCompressedTensors) {
  Tensors tensors = llama_tensors();
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  std::string codes(static_cast<size_t>(kHidden * kFfn), '\0');
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<char>(to_e4m3(value_at(i)).bits);
  tensors[name] = {DType::e4m3, {kHidden, kFfn}, codes};
  json config = llama_config();
  const auto expect = [&](const std::function<float(int64_t row, int64_t col)>& scale) {
    write_folder(folder_ / "in", tensors, config);
    const convert::ForeignModel model = convert::open_hugging_face(folder_ / "in");
    const std::vector<float> rows = read_part(model, "layers.0.mlp.linear_fc2.weight", 0, kHidden);
    for (int64_t i = 0; i < kHidden * kFfn; ++i)
      ASSERT_EQ(
          rows[static_cast<size_t>(i)],
          to_float(to_bf16(to_float(to_e4m3(value_at(static_cast<size_t>(i)))) * scale(i / kFfn, i % kFfn))))
          << i;
  };
  const auto refused = [&](const std::string& part) {
    write_folder(folder_ / "in", tensors, config);
    TE_EXPECT_REFUSED(part, convert::open_hugging_face(folder_ / "in"));
  };
  config["quantization_config"] = compressed_quantization({{{"strategy", "channel"}}});
  std::vector<bfloat16> scales;
  for (int64_t row = 0; row < kHidden; ++row) scales.push_back(to_bf16(0.5f + static_cast<float>(row)));
  const auto channels = [&](int64_t count) {
    tensors[name + "_scale"] = {
        DType::bf16,
        {count, 1},
        std::string(reinterpret_cast<const char*>(scales.data()), 2 * static_cast<size_t>(count))};
  };
  channels(kHidden);
  expect([](int64_t row, int64_t) { return 0.5f + static_cast<float>(row); });
  channels(kHidden / 2);
  refused(name + "_scale with 128 multipliers is missing");
  config["quantization_config"] =
      compressed_quantization({{{"strategy", "block"}, {"block_structure", {128, 128}}}});
  refused(name + "_scale with 2 multipliers is missing");
  tensors[name + "_scale"] = f32_tensor({1, 2}, {0.5f, 4.0f});
  expect([](int64_t, int64_t col) { return col < 128 ? 0.5f : 4.0f; });
  config["quantization_config"] = compressed_quantization({{{"strategy", "block"}}});
  refused("block_structure is missing; te-train reads FP8 weights in");
  config["quantization_config"] = compressed_quantization(
      {{{"strategy", "channel"}}, {{"strategy", "block"}, {"block_structure", {128, 128}}}});
  refused("block_structure must be that of the other groups");
  config["quantization_config"] = compressed_quantization({{{"strategy", "group"}, {"group_size", 128}}});
  refused("strategy is \"group\", must be tensor or channel or block");
}

TEST_F(Fp8Blocks, RefusesModelsThatCannotBeConverted) {
  const auto refused = [&](const std::string& fixture_name, convert::Fp8Format format,
                           const std::string& part) {
    import_to(fixture(fixture_name), folder_ / ("te_" + fixture_name));
    try {
      export_to(folder_ / ("te_" + fixture_name), folder_ / "out",
                {.dtype = {}, .max_shard_bytes = 1 << 30, .kept = {}, .fp8 = format});
      ADD_FAILURE() << "accepted: " << part;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused("gpt2", convert::Fp8Format::block, "Conv1D");
  refused("llama", convert::Fp8Format::block, "no size is a multiple of 128");
  refused("qwen2", convert::Fp8Format::tensor, "no input scale of layers.0.self_attention.linear_qkv");
}

}  // namespace
}  // namespace te::testing
