// A small Llama in FP8 as a Hugging Face folder, the base of an adapter.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/loader.h"
#include "checkpoint/safetensors.h"
#include "convert/foreign_model.h"
#include "core/random.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "testing/testing.h"
#include "training_run.h"

namespace te::testing::fp8_base {

namespace fs = std::filesystem;
using config::Fp8Recipe;
using nlohmann::json;

inline constexpr int64_t kHidden = 128, kFfn = 256, kVocabulary = 67;

struct Stored {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, Stored>;

inline uint32_t word_of(const std::string& name, size_t i) {
  return philox(5, stream_of(name), i / 4).word[i % 4];
}

inline Stored small_values(const std::string& name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.1f + static_cast<float>(static_cast<int32_t>(word_of(name, i))) * 0x1p-34f;
  return {DType::f32, std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size())};
}

/// Codes of all finite values, but no largest one in some blocks, so that quantization of their values gives others.
inline Stored codes_of(const std::string& name, int64_t rows, int64_t cols) {
  std::string bytes(static_cast<size_t>(rows * cols), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint32_t word = word_of(name, i);
    bytes[i] = static_cast<char>((word & 0x80u) | (word % 0x76u));
  }
  return {DType::e4m3, {rows, cols}, bytes};
}

/// Scales of compressed-tensors, or of DeepSeek's blocks.
enum class Scales : uint8_t { matrix, channels, blocks, deepseek };
inline bool in_blocks(Scales scales) {
  return scales == Scales::blocks || scales == Scales::deepseek;
}
inline const char* scale_suffix(Scales scales) {
  return scales == Scales::deepseek ? "_scale_inv" : "_scale";
}

/// A Llama whose linear layers are in FP8.
inline StoredTensors fp8_llama(Scales kind, bool equal_scales) {
  StoredTensors tensors = {
      {"model.embed_tokens.weight", small_values("embed", {kVocabulary, kHidden})},
      {"model.norm.weight", small_values("norm", {kHidden})},
      {"model.layers.0.input_layernorm.weight", small_values("in", {kHidden})},
      {"model.layers.0.post_attention_layernorm.weight", small_values("post", {kHidden})}};
  const std::map<std::string, std::pair<int64_t, int64_t>> shapes = {
      {"self_attn.q_proj", {kHidden, kHidden}}, {"self_attn.k_proj", {kHidden, kHidden}},
      {"self_attn.v_proj", {kHidden, kHidden}}, {"self_attn.o_proj", {kHidden, kHidden}},
      {"mlp.gate_proj", {kFfn, kHidden}},       {"mlp.up_proj", {kFfn, kHidden}},
      {"mlp.down_proj", {kHidden, kFfn}}};
  float next = 0.00013f;  // no power of two
  for (const auto& [module, shape] : shapes) {
    const std::string name = "model.layers.0." + module + ".weight";
    tensors[name] = codes_of(module, shape.first, shape.second);
    std::vector<float> scales;
    const std::vector<int64_t> size = in_blocks(kind)
                                          ? std::vector<int64_t>{shape.first / 128, shape.second / 128}
                                      : kind == Scales::channels ? std::vector<int64_t>{shape.first, 1}
                                                                 : std::vector<int64_t>{1};
    const int64_t count = size[0] * size.back();
    for (int64_t i = 0; i < count; ++i)
      scales.push_back(equal_scales ? next : next *= kind == Scales::channels ? 1.001f : 1.1f);
    tensors[name + scale_suffix(kind)] = {
        DType::f32, size, std::string(reinterpret_cast<const char*>(scales.data()), 4 * scales.size())};
  }
  return tensors;
}

inline json quantization_of(Scales scales) {
  if (scales == Scales::deepseek) return {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  json weights = {{"type", "float"},
                  {"num_bits", 8},
                  {"group_size", nullptr},
                  {"strategy", scales == Scales::matrix     ? "tensor"
                               : scales == Scales::channels ? "channel"
                                                            : "block"}};
  if (scales == Scales::blocks) weights["block_structure"] = {128, 128};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

inline void write_model(const fs::path& folder, const StoredTensors& tensors, Scales scales) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes.data(), tensor.bytes.size());
  writer.finish();
  const json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"hidden_size", kHidden},
                       {"intermediate_size", kFfn},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 4},
                       {"vocab_size", kVocabulary},
                       {"tie_word_embeddings", true},
                       {"max_position_embeddings", 128},
                       {"torch_dtype", "bfloat16"},
                       {"quantization_config", quantization_of(scales)}};
  write_file((folder / "config.json").string(), config.dump());
}

inline config::Config config_on(const fs::path& base, Fp8Recipe recipe) {
  config::Config config = config::parse_config(convert::open_hugging_face(base).config(), "base.yaml");
  config.model.seq_length = 32;
  config.training.micro_batch_size = config.training.global_batch_size = 2;
  config.training.train_steps = 4;
  config.training.device = config::DeviceChoice::cpu;
  config.precision.fp8 = config::Fp8Mode::hybrid;
  config.precision.fp8_recipe = recipe;
  config.data.synthetic = true;
  config.adapter.type = config::AdapterType::lora;
  config.adapter.rank = 8;
  config.checkpoint.init_from = base.string();
  config::resolve_defaults(config);
  config::validate(config);
  return config;
}

inline void load(TrainingRun& run, const convert::ForeignModel& base) {
  checkpoint::load_weights(run.context(), base, run.config(), run.runner().training_state());
  run.runner().publish_weights();
}

struct StoredBase {
  const char* name;
  Fp8Recipe recipe;
  Scales scales;
  bool equal_scales;
  int held;  ///< of the four linear layers
};
inline constexpr StoredBase kStoredBases[] = {
    {"blockwise_of_deepseek", Fp8Recipe::blockwise, Scales::deepseek, false, 4},
    {"blockwise_of_blocks", Fp8Recipe::blockwise, Scales::blocks, false, 4},
    {"rowwise_of_matrices", Fp8Recipe::rowwise, Scales::matrix, false, 4},
    {"rowwise_of_channels", Fp8Recipe::rowwise, Scales::channels, false, 4},
    {"tensorwise_of_equal", Fp8Recipe::tensorwise, Scales::matrix, true, 4},
    {"tensorwise_of_matrices", Fp8Recipe::tensorwise, Scales::matrix, false, 2},
    {"tensorwise_of_channels", Fp8Recipe::tensorwise, Scales::channels, false, 0},
    {"delayed_of_equal", Fp8Recipe::delayed, Scales::matrix, true, 4},
    {"delayed_of_deepseek", Fp8Recipe::delayed, Scales::deepseek, false, 0}};

}  // namespace te::testing::fp8_base
