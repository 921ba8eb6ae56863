#include "convert/peft.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "config/adapter.h"
#include "convert/architecture.h"
#include "convert/json_keys.h"
#include "convert/layout.h"
#include "convert/tensor_files.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/stored_values.h"

namespace te::convert {
namespace {

using checkpoint::Block;
using checkpoint::TensorInfo;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";

/// An adapter of one matrix: its place in the tensors of its linear layer and its names in PEFT's files.
struct Matrix {
  LinearId id;
  std::string block;  ///< "q_proj"
  std::string name;   ///< "base_model.model.model.layers.0.self_attn.q_proj."
  int64_t a_row = 0, b_row = 0, rows = 0, in = 0;
  const Part* part = nullptr;

  /// PEFT's row of B for row i.
  int64_t row_of(int64_t i) const { return part->theirs ? (*part->theirs)[static_cast<size_t>(i)] : i; }
};

/// The matrices that an adapter of the model can have; A and B of each linear layer are stacked in this order.
class Matrices {
 public:
  Matrices(const config::ModelConfig& model, const std::string& source)
      : layout_(hugging_face_layout(model, architecture_for(model, source))) {
    for (const ParameterLayout& parameter : layout_) {
      const std::optional<LinearKind> kind = linear_kind_of(parameter.id.role);
      if (!kind || *kind == LinearKind::output_layer || parameter.id.part != ParameterPart::weight) continue;
      const std::vector<std::string> blocks = config::block_names(model, *kind);
      if (parameter.parts.size() != blocks.size() || parameter.parts[0].order == Order::transposed)
        user_error(
            "{}: transformers stores {} of this model in one tensor, so PEFT has no adapter of each matrix",
            source, parameter.name);
      for (size_t i = 0; i < blocks.size(); ++i) {
        const Part& part = parameter.parts[i];
        const std::string name = part.name.substr(0, part.name.rfind("weight"));
        all_.push_back({.id = {parameter.id.layer, *kind},
                        .block = blocks[i],
                        .name = "base_model.model." + name,
                        .rows = part.rows(),
                        .in = parameter.cols(),
                        .part = &part});
      }
    }
  }

  /// The matrices that `adapter` targets, with their places.
  std::vector<Matrix> targeted(const config::AdapterConfig& adapter, const config::ModelConfig& model) const {
    std::vector<Matrix> result;
    for (const Matrix& matrix : all_) {
      const std::vector<std::string> blocks = config::block_names(model, matrix.id.kind);
      const auto targets = config::adapted_blocks(adapter, model, matrix.id.kind);
      if (std::none_of(targets.begin(), targets.end(), [&](size_t i) { return blocks[i] == matrix.block; }))
        continue;
      Matrix found = matrix;
      if (!result.empty() && result.back().id == matrix.id) {
        found.a_row = result.back().a_row + adapter.rank;
        found.b_row = result.back().b_row + result.back().rows;
      }
      result.push_back(std::move(found));
    }
    return result;
  }
  const std::vector<Matrix>& all() const { return all_; }

 private:
  std::vector<ParameterLayout> layout_;
  std::vector<Matrix> all_;
};

std::string a_name(const Matrix& matrix) {
  return matrix.id.parameter(ParameterPart::lora_a).name();
}
std::string b_name(const Matrix& matrix) {
  return matrix.id.parameter(ParameterPart::lora_b).name();
}

/// An adapter in host memory, because PEFT's files have other rows than te-train's tensors.
class PeftWeights final : public checkpoint::WeightSource {
 public:
  explicit PeftWeights(std::string title) : title_(std::move(title)) {}
  std::string title() const override { return title_; }
  std::string config() const override { return ""; }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  uint64_t hash() const override {
    uint64_t hash = 0;
    for (const auto& [name, tensor] : tensors_) {
      const uint64_t both[] = {
          hash, checkpoint::checksum(tensor.values.data(), tensor.values.size() * sizeof(float))};
      hash = checkpoint::checksum(both, sizeof(both));
    }
    return hash;
  }
  std::optional<TensorInfo> info(std::string_view name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return std::nullopt;
    return TensorInfo{DType::f32, {found->second.rows, found->second.cols}};
  }
  void read(std::string_view name, const Block& block, float* out) const override {
    const Stored& stored = tensors_.find(name)->second;
    checkpoint::for_each_overlap(Block::rows(0, stored.rows, stored.cols), block,
                                 [&](int64_t from, int64_t to, int64_t run) {
                                   std::copy_n(stored.values.data() + from, run, out + to);
                                 });
  }
  /// Rows from `first` of a tensor, which grows as needed.
  float* rows(const std::string& name, int64_t first, int64_t count, int64_t cols) {
    Stored& stored = tensors_[name];
    stored.rows = std::max(stored.rows, first + count);
    stored.cols = cols;
    stored.values.resize(static_cast<size_t>(stored.rows * cols));
    return stored.values.data() + first * cols;
  }

 private:
  struct Stored {
    int64_t rows = 0, cols = 0;
    std::vector<float> values;
  };
  std::string title_;
  std::map<std::string, Stored, std::less<>> tensors_;
};

// Every key that would change what the adapter computes must have the value that te-train implements.
config::AdapterConfig read_config(const std::filesystem::path& folder) {
  const JsonKeys keys = JsonKeys::of_file(folder / kConfig);
  const char* remedy = "te-train supports LoRA with one rank and alpha";
  keys.must_be<std::string>("peft_type", keys.text("peft_type", ""), "LORA", remedy);
  keys.must_be("use_dora", keys.boolean("use_dora", false), false, remedy);
  keys.must_be("fan_in_fan_out", keys.boolean("fan_in_fan_out", false), false, remedy);
  keys.must_be("lora_bias", keys.boolean("lora_bias", false), false, remedy);
  keys.must_be("use_qalora", keys.boolean("use_qalora", false), false, remedy);
  keys.must_be<std::string>("bias", keys.text("bias", "none"), "none", remedy);
  for (const char* key :
       {"modules_to_save", "layers_to_transform", "layer_replication", "target_parameters",
        "alora_invocation_tokens", "trainable_token_indices", "rank_pattern", "alpha_pattern", "arrow_config",
        "kasa_config", "velora_config", "monteclora_config", "use_bdlora"})
    if (keys.has(key) && !keys.object().at(key).empty()) keys.refuse(key, "is not supported", remedy);
  config::AdapterConfig adapter;
  adapter.type = config::AdapterType::lora;
  adapter.rank = keys.integer("r");
  adapter.alpha = keys.number("lora_alpha");
  adapter.use_rslora = keys.boolean("use_rslora", false);
  adapter.dropout = keys.number_or("lora_dropout", 0.0);
  if (adapter.rank < 1 || !(adapter.alpha > 0)) keys.refuse("r", "and lora_alpha must be above 0", remedy);
  return adapter;
}

void copy_checked(const TensorFiles& files, const std::string& file, const std::string& name, int64_t rows,
                  int64_t cols, float* out) {
  const StoredTensor* stored = files.find(name);
  if (stored == nullptr || stored->shape != std::vector<int64_t>{rows, cols})
    user_error("{}: tensor {} {}, must be [{}, {}]; use an adapter of this model", file, printable(name),
               stored == nullptr ? "is missing" : "has another shape", rows, cols);
  files.read(*stored, 0, rows * cols, DType::f32, reinterpret_cast<std::byte*>(out));
  if (!are_finite(DType::f32, out, rows * cols))
    user_error("{}: tensor {} has infinite or NaN values; use another copy of the adapter", file,
               printable(name));
}

nlohmann::json config_json(const config::AdapterConfig& adapter, const std::vector<Matrix>& matrices,
                           const std::string& base) {
  std::set<std::string> targets;
  for (const Matrix& matrix : matrices) targets.insert(matrix.block);
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base},
          {"r", adapter.rank},
          {"lora_alpha", adapter.alpha},
          {"lora_dropout", adapter.dropout},
          {"use_rslora", adapter.use_rslora},
          {"target_modules", targets},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true}};
}

}  // namespace

bool is_peft_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path / kConfig, error);
}

Adapter open_peft(const std::filesystem::path& folder, const config::ModelConfig& model) {
  config::AdapterConfig adapter = read_config(folder);
  const std::string file = (folder / kWeights).string();
  const Matrices matrices(model, folder.string());
  TensorFiles files;
  files.add_safetensors(file);
  // The tensors say what is targeted: target_modules may be a pattern.
  std::set<std::string> targets, known;
  for (const Matrix& matrix : matrices.all())
    if (files.find(matrix.name + "lora_A.weight") != nullptr) targets.insert(matrix.block);
  adapter.target.assign(targets.begin(), targets.end());
  auto weights = std::make_unique<PeftWeights>(folder.string());
  for (const Matrix& matrix : matrices.targeted(adapter, model)) {
    const std::string a = matrix.name + "lora_A.weight", b = matrix.name + "lora_B.weight";
    copy_checked(files, file, a, adapter.rank, matrix.in,
                 weights->rows(a_name(matrix), matrix.a_row, adapter.rank, matrix.in));
    std::vector<float> theirs(static_cast<size_t>(matrix.rows * adapter.rank));
    copy_checked(files, file, b, matrix.rows, adapter.rank, theirs.data());
    float* ours = weights->rows(b_name(matrix), matrix.b_row, matrix.rows, adapter.rank);
    for (int64_t i = 0; i < matrix.rows; ++i)
      std::copy_n(theirs.data() + matrix.row_of(i) * adapter.rank, adapter.rank, ours + i * adapter.rank);
    known.insert({a, b});
  }
  for (const auto& [name, tensor] : files.tensors())
    if (!known.contains(name))
      user_error(
          "{}: tensor {} is not an adapter of a linear layer of this model; te-train does not support it",
          file, printable(name));
  if (known.empty()) user_error("{}: has no adapter of a linear layer", file);
  return {adapter, std::move(weights), 0};
}

int64_t write_peft(const checkpoint::Reader& reader, const std::filesystem::path& folder) {
  const config::Config config =
      config::parse_config(reader.config(), (reader.folder() / "manifest.json").string());
  const config::AdapterConfig& adapter = config.adapter;
  if (adapter.train_norms || adapter.train_embeddings)
    user_error("{}: adapter.{} is not part of a PEFT adapter; run te-convert merge instead",
               reader.folder().string(), adapter.train_norms ? "train_norms" : "train_embeddings");
  if (config.model.num_moe_experts > 0 &&
      !(config::adapted_blocks(adapter, config.model, LinearKind::fc1).empty() &&
        config::adapted_blocks(adapter, config.model, LinearKind::fc2).empty()))
    user_error("{}: adapters of experts are not supported in PEFT's format; run te-convert merge instead",
               reader.folder().string());
  const Matrices all(config.model, reader.folder().string());
  const std::vector<Matrix> matrices = all.targeted(adapter, config.model);
  std::vector<SafetensorsSpec> specs;
  for (const Matrix& matrix : matrices) {
    specs.push_back({matrix.name + "lora_A.weight", DType::f32, {adapter.rank, matrix.in}});
    specs.push_back({matrix.name + "lora_B.weight", DType::f32, {matrix.rows, adapter.rank}});
  }
  SafetensorsWriter writer(folder / kWeights, specs, {{"format", "pt"}});
  for (const Matrix& matrix : matrices) {
    std::vector<float> a(static_cast<size_t>(adapter.rank * matrix.in)),
        b(static_cast<size_t>(matrix.rows * adapter.rank)), theirs(b.size());
    reader.read_rows(a_name(matrix), matrix.a_row, adapter.rank, a.data());
    reader.read_rows(b_name(matrix), matrix.b_row, matrix.rows, b.data());
    for (int64_t i = 0; i < matrix.rows; ++i)
      std::copy_n(b.data() + i * adapter.rank, adapter.rank, theirs.data() + matrix.row_of(i) * adapter.rank);
    writer.write(matrix.name + "lora_A.weight", a.data(), a.size() * sizeof(float));
    writer.write(matrix.name + "lora_B.weight", theirs.data(), theirs.size() * sizeof(float));
  }
  writer.finish();
  checkpoint::write_text(folder / kConfig,
                         config_json(adapter, matrices, reader.manifest().base->path).dump(2) + "\n");
  return static_cast<int64_t>(specs.size());
}

}  // namespace te::convert
