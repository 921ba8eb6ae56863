// Bases of adapters that a Hugging Face folder stores in FP8: the run holds the stored codes where its recipe has the
// same scales.
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/loader.h"
#include "checkpoint/safetensors.h"
#include "convert/foreign_model.h"
#include "core/random.h"
#include "te_train_testing.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "testing/testing.h"
#include "training_run.h"

namespace te::testing {
namespace {

namespace fs = std::filesystem;
using config::Fp8Recipe;
using nlohmann::json;
using parameters::Parameter;

constexpr int64_t kHidden = 128, kFfn = 256, kVocabulary = 67;

struct Stored {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, Stored>;

uint32_t word_of(const std::string& name, size_t i) {
  return philox(5, stream_of(name), i / 4).word[i % 4];
}

Stored small_values(const std::string& name, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.1f + static_cast<float>(static_cast<int32_t>(word_of(name, i))) * 0x1p-34f;
  return {DType::f32, std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size())};
}

/// Codes of all finite values, but no largest one in some blocks, so that quantization of their values gives others.
Stored codes_of(const std::string& name, int64_t rows, int64_t cols) {
  std::string bytes(static_cast<size_t>(rows * cols), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint32_t word = word_of(name, i);
    bytes[i] = static_cast<char>((word & 0x80u) | (word % 0x76u));
  }
  return {DType::e4m3, {rows, cols}, bytes};
}

/// A Llama whose linear layers are in FP8; scales of blocks, or one per matrix.
StoredTensors fp8_llama(bool blocks, bool equal_scales) {
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
    const int64_t count = blocks ? shape.first / 128 * (shape.second / 128) : 1;
    for (int64_t i = 0; i < count; ++i) scales.push_back(equal_scales ? next : next *= 1.1f);
    tensors[name + (blocks ? "_scale_inv" : "_scale")] = {
        DType::f32,
        blocks ? std::vector<int64_t>{shape.first / 128, shape.second / 128} : std::vector<int64_t>{1},
        std::string(reinterpret_cast<const char*>(scales.data()), 4 * scales.size())};
  }
  return tensors;
}

void write_model(const fs::path& folder, const StoredTensors& tensors, bool blocks) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes.data(), tensor.bytes.size());
  writer.finish();
  const json quantization =
      blocks ? json{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}
             : json{{"quant_method", "compressed-tensors"},
                    {"format", "float-quantized"},
                    {"config_groups",
                     {{"group_0",
                       {{"targets", {"Linear"}},
                        {"weights", {{"type", "float"}, {"num_bits", 8}, {"strategy", "tensor"}}}}}}}};
  const json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"hidden_size", kHidden},
                       {"intermediate_size", kFfn},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 4},
                       {"vocab_size", kVocabulary},
                       {"tie_word_embeddings", true},
                       {"max_position_embeddings", 32},
                       {"torch_dtype", "bfloat16"},
                       {"quantization_config", quantization}};
  write_file((folder / "config.json").string(), config.dump());
}

config::Config config_on(const fs::path& base, Fp8Recipe recipe) {
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

void load(TrainingRun& run, const convert::ForeignModel& base) {
  checkpoint::load_weights(run.context(), base, run.config(), run.runner().training_state());
  run.runner().publish_weights();
}

/// The parts of a linear layer's weight, in order.
std::vector<std::string> modules_of(ParameterRole role) {
  switch (role) {
    case ParameterRole::linear_qkv:
      return {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    case ParameterRole::linear_proj:
      return {"self_attn.o_proj"};
    case ParameterRole::linear_fc1:
      return {"mlp.gate_proj", "mlp.up_proj"};
    default:
      return {"mlp.down_proj"};
  }
}

struct StoredBase {
  const char* name;
  Fp8Recipe recipe;
  bool blocks, equal_scales;
  int held;  ///< of the four linear layers
};
constexpr StoredBase kStoredBases[] = {{"blockwise_of_blocks", Fp8Recipe::blockwise, true, false, 4},
                                       {"rowwise_of_matrices", Fp8Recipe::rowwise, false, false, 4},
                                       {"tensorwise_of_equal", Fp8Recipe::tensorwise, false, true, 4},
                                       {"tensorwise_of_matrices", Fp8Recipe::tensorwise, false, false, 2},
                                       {"delayed_of_equal", Fp8Recipe::delayed, false, true, 4},
                                       {"delayed_of_blocks", Fp8Recipe::delayed, true, false, 0}};

TEST(LoraBase, HoldsTheCodesOfTheFolder) {
  for (const StoredBase& form : kStoredBases) {
    const TemporaryFolder folder;
    const StoredTensors tensors = fp8_llama(form.blocks, form.equal_scales);
    write_model(folder.path(), tensors, form.blocks);
    const convert::ForeignModel base = convert::open_hugging_face(folder.path());
    TrainingRun run(config_on(folder.path(), form.recipe));
    load(run, base);
    int held = 0;
    for (const Parameter& parameter : run.parameters()) {
      if (!parameter.dropped) continue;
      std::string codes;
      for (const std::string& module : modules_of(parameter.id.role))
        codes += tensors.at("model.layers.0." + module + ".weight").bytes;
      held += bytes_at(parameter.rowwise->values) == codes ? 1 : 0;
      if (parameter.id.role != ParameterRole::linear_fc2) continue;
      const std::string suffix = form.blocks ? ".weight_scale_inv" : ".weight_scale";
      float stored = 0, own = parameter.rowwise->scales.as<float>()[form.blocks ? 1 : 0];
      std::memcpy(&stored,
                  tensors.at("model.layers.0.mlp.down_proj" + suffix).bytes.data() + (form.blocks ? 4 : 0),
                  sizeof(stored));
      EXPECT_EQ(own == stored, form.held > 0) << form.name;
    }
    EXPECT_EQ(held, form.held) << form.name;
    EXPECT_TRUE(std::isfinite(run.step(1))) << form.name;
  }
}

// Ranks of tensor parallelism read the codes and scales of their rows or columns, if these are whole blocks.
TEST(LoraBase, RanksReadTheirPartOfTheCodes) {
  using parameters::ParameterShard;
  const TemporaryFolder folder;
  write_model(folder.path(), fp8_llama(true, false), true);
  const convert::ForeignModel base = convert::open_hugging_face(folder.path());
  const std::string fc1 = LinearId{0, LinearKind::fc1}.parameter(ParameterPart::weight).name(),
                    fc2 = LinearId{0, LinearKind::fc2}.parameter(ParameterPart::weight).name();
  const auto rows = base.read_codes(fc1, ParameterShard::full({2 * kFfn, kHidden})),
             cols = base.read_codes(fc2, ParameterShard::full({kHidden, kFfn}));
  for (int rank = 0; rank < 2; ++rank) {
    const auto half =
        base.read_codes(fc1, ParameterShard::of_rows({2 * kFfn, kHidden}, {kFfn, kFfn}, rank, 2));
    for (int64_t row = 0; row < kFfn; ++row) {
      const int64_t full = row % 128 + (row / 128 * 2 + rank) * 128;  // half of gate, then half of up
      EXPECT_EQ(half->scales[row], rows->scales[full]);
      for (int64_t col = 0; col < kHidden; ++col)
        ASSERT_EQ(half->codes[row * kHidden + col], rows->codes[full * kHidden + col]) << row << " " << col;
    }
    const auto part = base.read_codes(fc2, ParameterShard::of_columns({kHidden, kFfn}, rank, 2));
    for (int64_t row = 0; row < kHidden; ++row) {
      EXPECT_EQ(part->scales[row], cols->scales[row * 2 + rank]);
      for (int64_t col = 0; col < kFfn / 2; ++col)
        ASSERT_EQ(part->codes[row * kFfn / 2 + col], cols->codes[row * kFfn + rank * kFfn / 2 + col]);
    }
    EXPECT_FALSE(base.read_codes(fc2, ParameterShard::of_columns({kHidden, kFfn}, rank, 4)));
  }
}

// A columnwise layout that is kept equals the one that passes make from the rowwise layout.
TEST(LoraBase, StoredCodesGiveTheSameBitsInBothLayouts) {
  for (const StoredBase& form : kStoredBases) {
    const TemporaryFolder folder;
    write_model(folder.path(), fp8_llama(form.blocks, form.equal_scales), form.blocks);
    const convert::ForeignModel base = convert::open_hugging_face(folder.path());
    std::vector<float> losses;
    for (const auto kept : {config::Fp8KeptWeights::rowwise, config::Fp8KeptWeights::both}) {
      config::Config config = config_on(folder.path(), form.recipe);
      config.precision.fp8_keep_weights = kept;
      TrainingRun run(config);
      load(run, base);
      run.step(1), run.step(2);
      losses.push_back(run.step(3));
    }
    EXPECT_EQ(losses[0], losses[1]) << form.name;
  }
}

// The ranks agree on the scales of a base while they load it. One that cannot read its part must not leave the other
// waiting.
TEST(LoraBase, DamageThatOneRankSeesEndsTheRun) {
  TrainFolder folder;
  folder.use_ranks(2);
  const fs::path base = folder / "base";
  fs::create_directory(base);
  StoredTensors tensors = fp8_llama(true, false);
  tensors.at("model.layers.0.mlp.gate_proj.weight").bytes.back() =
      '\x7f';  // NaN in the rows of the second rank
  write_model(base, tensors, true);
  config::Config config = config_on(base, Fp8Recipe::delayed);
  config.parallel.tensor = 2;
  config.logging.directory = folder / "run";
  config.checkpoint.directory = folder / "run/checkpoints";
  write_file(folder / "damaged.yaml", config::to_yaml(config));
  const Result result = folder.run_raw("--config " + (folder / "damaged.yaml"));
  EXPECT_EQ(result.code, 2) << result.error;
  TE_EXPECT_CONTAINS(result.error, "has infinite or NaN values");
}

}  // namespace
}  // namespace te::testing
