#include "convert/peft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "config/adapter.h"
#include "convert/architecture.h"
#include "convert/foreign_model.h"
#include "convert/json_keys.h"
#include "convert/layout.h"
#include "convert/peft_experts.h"
#include "convert/tensor_files.h"
#include "core/error.h"
#include "core/json.h"
#include "core/printable.h"
#include "core/random.h"
#include "core/stored_values.h"

namespace te::convert {
namespace {

using checkpoint::Block;
using checkpoint::TensorInfo;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";

/// An adapter of one matrix: its place in the tensors of its linear layer and its names in PEFT's files.
struct Matrix {
  LinearId id;  ///< of experts the first's
  int64_t expert = 0;
  size_t block_index = 0;
  std::string block;  ///< "q_proj"
  std::string name;   ///< "base_model.model.model.layers.0.self_attn.q_proj."
  int64_t a_row = 0, b_row = 0, rows = 0, in = 0;
  const Part* part = nullptr;

  /// "q_proj", as the model calls it.
  std::string module() const {
    const std::string path = name.substr(0, name.size() - 1);
    return path.substr(path.rfind('.') + 1);
  }
  bool of_experts() const { return id.expert >= 0; }
  /// In fused tensors, which have transformers 5's names.
  ExpertMatrix fused() const {
    std::string experts = name.substr(0, name.find(".experts.") + 9);
    if (const size_t at = experts.find("block_sparse_moe"); at != std::string::npos)
      experts.replace(at, 16, "mlp");
    return {experts, id.kind, expert, static_cast<int64_t>(block_index), rows, in};
  }
  /// PEFT's row of B for row i.
  int64_t row_of(int64_t i) const { return part->theirs ? (*part->theirs)[static_cast<size_t>(i)] : i; }
};

/// The linear layer whose weight a parameter is.
std::optional<LinearId> adaptable(const config::ModelConfig& model, const ParameterId& id) {
  if (id.layer == kNoLayer) return std::nullopt;
  for (const LinearId& linear : config::layer_linears(model, id.layer))
    if (linear.parameter(ParameterPart::weight) == id) return linear;
  return std::nullopt;
}

/// The matrices that an adapter of the model can have; A and B of each linear layer, or of its experts, are stacked in
/// this order.
class Matrices {
 public:
  Matrices(const config::ModelConfig& model, Architecture architecture, const std::string& source)
      : layout_(hugging_face_layout(model, architecture)) {
    for (const ParameterLayout& parameter : layout_) {
      const std::optional<LinearId> id = adaptable(model, parameter.id);
      if (!id) continue;
      const std::vector<std::string> blocks = config::block_names(model, id->kind);
      const size_t experts = id->expert >= 0 ? static_cast<size_t>(model.num_moe_experts) : 1;
      if (parameter.parts.size() != experts * blocks.size() || parameter.parts[0].order == Order::transposed)
        user_error(
            "{}: transformers stores {} of this model in one tensor, so PEFT has no adapter of each matrix",
            source, parameter.name);
      for (size_t i = 0; i < parameter.parts.size(); ++i) {
        const Part& part = parameter.parts[i];
        const std::string name = part.name.substr(0, part.name.rfind("weight"));
        all_.push_back({.id = *id,
                        .expert = static_cast<int64_t>(i / blocks.size()),
                        .block_index = i % blocks.size(),
                        .block = blocks[i % blocks.size()],
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
      if (std::ranges::none_of(targets, [&](size_t i) { return blocks[i] == matrix.block; })) continue;
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

/// Keys that do not change what a trained adapter computes: metadata, settings of training and of initialization (see
/// check_initialization), and keys that matter only together with one that is refused. Tensors say what is targeted.
constexpr auto kHarmlessKeys = std::to_array<std::string_view>(
    {"auto_mapping",  "base_model_name_or_path", "corda_config",   "ensure_weight_tying",
     "eva_config",    "inference_mode",          "layers_pattern", "loftq_config",
     "lora_dtype",    "lora_ga_config",          "lorap_emb_lr",   "lorap_lr_ratio",
     "megatron_core", "merge_weights",           "peft_version",   "qalora_group_size",
     "revision",      "runtime_config",          "target_modules", "task_type"});
static_assert(std::ranges::is_sorted(kHarmlessKeys));

/// PEFT initializes a LoRA before it loads the tensors, and all initializations but these change the base weights.
void check_initialization(const JsonKeys& keys) {
  constexpr const char* key = "init_lora_weights";
  if (!keys.has(key)) return;
  const nlohmann::json& value = keys.object().at(key);
  if (value.is_boolean() || value == "gaussian" || value == "orthogonal" || value == "eva") return;
  keys.refuse(key,
              "is " + printable(dump_json(value, -1, true)) +
                  ", must be true, false, \"gaussian\", \"orthogonal\" or \"eva\"",
              "PEFT changes the base weights for this adapter; save it as a plain LoRA with PEFT's "
              "save_pretrained(path_initial_model_for_weight_conversion=...), or merge it in PEFT");
}

/// PEFT does not load the tensors of excluded modules.
void check_not_excluded(const JsonKeys& keys, const Matrix& matrix) {
  constexpr const char* key = "exclude_modules";
  if (!keys.has(key)) return;
  const nlohmann::json& modules = keys.object().at(key);
  if (modules.is_string() && modules.get<std::string>().empty()) return;
  if (!modules.is_array())
    keys.refuse(key, "is not a list of modules, which is not supported",
                "set it to null, because the tensors say which modules have an adapter");
  const std::string path = "." + matrix.name.substr(0, matrix.name.size() - 1);
  for (const nlohmann::json& module : modules)
    if (module.is_string() && path.ends_with("." + module.get<std::string>()))
      keys.refuse(key, "has " + printable(module.get<std::string>()) + ", but the folder has its adapter",
                  "set it to null, or remove the adapter's tensors");
}

// Every key that would change what the adapter computes must have the value that te-train implements.
config::AdapterConfig read_config(const JsonKeys& keys) {
  const char* remedy = "te-train supports LoRA with one rank and alpha";
  keys.must_be<std::string>("peft_type", keys.text("peft_type", ""), "LORA", remedy);
  keys.must_be("use_dora", keys.boolean("use_dora", false), false, remedy);
  keys.must_be("fan_in_fan_out", keys.boolean("fan_in_fan_out", false), false, remedy);
  keys.must_be("lora_bias", keys.boolean("lora_bias", false), false, remedy);
  keys.must_be("use_qalora", keys.boolean("use_qalora", false), false, remedy);
  keys.must_be<std::string>("bias", keys.text("bias", "none"), "none", remedy);
  for (const char* key : {"modules_to_save", "layers_to_transform", "layer_replication",
                          "alora_invocation_tokens", "trainable_token_indices", "arrow_config", "kasa_config",
                          "velora_config", "monteclora_config", "use_bdlora"})
    if (keys.has(key) && !keys.object().at(key).empty()) keys.refuse(key, "is not supported", remedy);
  check_initialization(keys);
  config::AdapterConfig adapter;
  adapter.type = config::AdapterType::lora;
  adapter.rank = keys.integer("r");
  adapter.alpha = keys.number("lora_alpha");
  adapter.use_rslora = keys.boolean("use_rslora", false);
  adapter.dropout = keys.number_or("lora_dropout", 0.0);
  if (adapter.rank < 1 || !(adapter.alpha > 0)) keys.refuse("r", "and lora_alpha must be above 0", remedy);
  return adapter;
}

/// A of a new adapter, whose B is zero. PEFT can adapt the experts without the shared expert, or the other way around.
void start_adapter(const Matrix& matrix, int64_t rank, float* a) {
  const float bound = 1.0f / std::sqrt(static_cast<float>(matrix.in));  // as PEFT does
  for (int64_t i = 0; i < rank * matrix.in; ++i)
    a[i] = bound *
           (2.0f * uniform_open(philox(0, stream_of(matrix.name), static_cast<uint64_t>(i)).word[0]) - 1.0f);
}

nlohmann::json config_json(const config::AdapterConfig& adapter, const std::vector<Matrix>& matrices,
                           const FusedTargets& fused, const std::string& base) {
  // PEFT refuses dropout for fused experts, to which it converts single ones, although the adapter is not trained.
  const bool experts =
      std::ranges::any_of(matrices, [](const Matrix& matrix) { return matrix.of_experts(); });
  std::set<std::string> targets;
  for (const Matrix& matrix : matrices)
    if (!matrix.of_experts() || !fused.any()) targets.insert(matrix.module());
  nlohmann::json keys = {{"peft_type", "LORA"},
                         {"task_type", "CAUSAL_LM"},
                         {"base_model_name_or_path", base},
                         {"r", adapter.rank},
                         {"lora_alpha", adapter.alpha},
                         {"lora_dropout", experts ? 0.0 : adapter.dropout},
                         {"use_rslora", adapter.use_rslora},
                         {"target_modules", targets},
                         {"bias", "none"},
                         {"fan_in_fan_out", false},
                         {"inference_mode", true},
                         {"init_lora_weights", true}};
  if (fused.any()) fused.write(keys, adapter);
  return keys;
}

/// The fused parameters of an export. transformers 5 fuses the experts of all models. PEFT converts adapters of single
/// experts for it, which other programs read, too, but not of Qwen2-MoE, nor of gate without up or up without gate.
FusedTargets fused_targets(const config::Config& config, const std::string& source) {
  const config::ModelConfig& model = config.model;
  const size_t gate_up = config::adapted_blocks(config.adapter, model, LinearKind::fc1).size();
  const bool down = !config::adapted_blocks(config.adapter, model, LinearKind::fc2).empty();
  if (model.num_moe_experts == 0 || !config::adapts_mlp(config.adapter, model)) return {};
  if (architecture_for(model, source) != Architecture::qwen2_moe) {
    for (int layer = 0; layer < model.num_layers; ++layer)
      if (!model.has_experts(layer))
        user_error(
            "{}: PEFT has no adapters of experts together with adapters of the MLP in layer {}; run "
            "te-convert "
            "merge instead",
            source, layer);
    if (gate_up != 1) return {};
  }
  return {.gate_up = gate_up > 0, .down = down, .own_rows = gate_up == 2};
}

/// The adapter of one matrix, or of a fused parameter, in PEFT's tensors.
struct PeftTensors {
  std::string name;  ///< before "lora_A.weight"
  int64_t a_rows = 0, in = 0, b_rows = 0, b_cols = 0;
  std::vector<float> a, b;
};

PeftTensors of_matrix(const Matrix& matrix, int64_t rank) {
  return {.name = matrix.name, .a_rows = rank, .in = matrix.in, .b_rows = matrix.rows, .b_cols = rank};
}

/// `matrix`: the first of a fused parameter.
PeftTensors of_fused(const Matrix& matrix, const FusedTargets& fused, const config::Config& config) {
  const std::vector<int64_t> blocks = config::linear_blocks(config.model, matrix.id);
  const auto targets =
      static_cast<int64_t>(config::adapted_blocks(config.adapter, config.model, matrix.id.kind).size());
  const int64_t columns = config.model.num_moe_experts * targets * config.adapter.rank;
  return {.name = fused.name(matrix.fused().experts, matrix.id.kind),
          .a_rows = columns,
          .in = matrix.in,
          .b_rows = matrix.rows * static_cast<int64_t>(blocks.size()),
          .b_cols = columns};
}

void read_tensors(const checkpoint::Reader& reader, const Matrix& matrix, const config::Config& config,
                  bool fused, PeftTensors& to) {
  const int64_t rank = config.adapter.rank;
  to.a.resize(static_cast<size_t>(to.a_rows * to.in));
  reader.read_rows(a_name(matrix), matrix.a_row, to.a_rows, to.a.data());
  if (fused) {
    const auto targets = config::adapted_blocks(config.adapter, config.model, matrix.id.kind);
    const int64_t experts = config.model.num_moe_experts,
                  rows = experts * static_cast<int64_t>(targets.size()) * matrix.rows;
    std::vector<float> stacked(static_cast<size_t>(rows * rank));
    reader.read_rows(b_name(matrix), 0, rows, stacked.data());
    to.b = fuse_b(stacked, experts, rank, config::linear_blocks(config.model, matrix.id), targets);
    return;
  }
  std::vector<float> ours(static_cast<size_t>(matrix.rows * rank));
  reader.read_rows(b_name(matrix), matrix.b_row, matrix.rows, ours.data());
  to.b.resize(ours.size());
  for (int64_t i = 0; i < matrix.rows; ++i)
    std::copy_n(ours.data() + i * rank, rank, to.b.data() + matrix.row_of(i) * rank);
}

}  // namespace

bool is_peft_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path / kConfig, error);
}

Adapter open_peft(const std::filesystem::path& folder, const config::ModelConfig& model) {
  const JsonKeys keys = JsonKeys::of_file(folder / kConfig);
  config::AdapterConfig adapter = read_config(keys);
  const FusedTargets fused_targets = FusedTargets::of(keys, adapter, model);
  keys.given("exclude_modules");  // read for every adapter below
  keys.refuse_unread(kHarmlessKeys, "remove it if it does not change what the adapter computes");
  const std::string file = (folder / kWeights).string();
  const Matrices matrices(model, architecture_for(model, folder.string()), folder.string());
  TensorFiles files;
  files.add_safetensors(file);
  // The tensors say what is targeted: target_modules may be a pattern.
  std::set<std::string> targets, known;
  std::set<std::pair<int, std::string>> present;  // of experts, the shared expert and other layers
  for (const Matrix& matrix : matrices.all())
    if (files.find(matrix.name + "lora_A.weight") != nullptr ||
        (matrix.of_experts() && fused_targets.has(matrix.id.kind))) {
      check_not_excluded(keys, matrix);
      targets.insert(matrix.block);
      present.emplace(matrix.id.expert, matrix.block);
    }
  adapter.target.assign(targets.begin(), targets.end());
  auto weights = std::make_unique<PeftWeights>(folder.string());
  FusedExperts fused(files, file, fused_targets, model.num_moe_experts, adapter.rank);
  for (const Matrix& matrix : matrices.targeted(adapter, model)) {
    const std::string a = matrix.name + "lora_A.weight", b = matrix.name + "lora_B.weight";
    float* const ours_a = weights->rows(a_name(matrix), matrix.a_row, adapter.rank, matrix.in);
    float* const ours = weights->rows(b_name(matrix), matrix.b_row, matrix.rows, adapter.rank);
    if (!present.contains({matrix.id.expert, matrix.block})) {
      start_adapter(matrix, adapter.rank, ours_a);
      continue;
    }
    if (matrix.of_experts() && fused_targets.any()) {
      fused.read(matrix.fused(), ours_a, ours);
      continue;
    }
    read_peft_tensor(files, file, a, adapter.rank, matrix.in, ours_a);
    std::vector<float> theirs(static_cast<size_t>(matrix.rows * adapter.rank));
    read_peft_tensor(files, file, b, matrix.rows, adapter.rank, theirs.data());
    for (int64_t i = 0; i < matrix.rows; ++i)
      std::copy_n(theirs.data() + matrix.row_of(i) * adapter.rank, adapter.rank, ours + i * adapter.rank);
    known.insert({a, b});
  }
  known.insert(fused.names().begin(), fused.names().end());
  for (const auto& [name, tensor] : files.tensors())
    if (!known.contains(name))
      user_error(
          "{}: tensor {} is not an adapter of a linear layer of this model; te-train does not support it",
          file, printable(name));
  if (known.empty()) user_error("{}: has no adapter of a linear layer", file);
  return {adapter, std::move(weights), 0};
}

/// The class of an adapter's base, whose tensors PEFT names: that of a Hugging Face folder, or the one that te-convert
/// export gives a checkpoint.
Architecture architecture_of_base(const checkpoint::Reader& adapter, const config::ModelConfig& model) {
  const std::filesystem::path& base = adapter.manifest().base->path;
  if (is_foreign_model(base) && std::filesystem::is_directory(base))
    return architecture_of(JsonKeys::of_file(base / "config.json"));
  return architecture_for(model, adapter.folder().string());
}

int64_t write_peft(const checkpoint::Reader& reader, const std::filesystem::path& folder) {
  const config::Config config = reader.run_config();
  const config::AdapterConfig& adapter = config.adapter;
  if (adapter.train_norms || adapter.train_embeddings)
    user_error("{}: adapter.{} is not part of a PEFT adapter; run te-convert merge instead",
               reader.folder().string(), adapter.train_norms ? "train_norms" : "train_embeddings");
  const Matrices all(config.model, architecture_of_base(reader, config.model), reader.folder().string());
  const std::vector<Matrix> matrices = all.targeted(adapter, config.model);
  const FusedTargets fused = fused_targets(config, reader.folder().string());
  std::vector<std::pair<const Matrix*, PeftTensors>> tensors;
  std::vector<SafetensorsSpec> specs;
  for (const Matrix& matrix : matrices) {
    const bool fuses = matrix.of_experts() && fused.any();
    if (fuses && matrix.a_row > 0) continue;
    PeftTensors one = fuses ? of_fused(matrix, fused, config) : of_matrix(matrix, adapter.rank);
    specs.push_back({one.name + "lora_A.weight", DType::f32, {one.a_rows, one.in}});
    specs.push_back({one.name + "lora_B.weight", DType::f32, {one.b_rows, one.b_cols}});
    tensors.emplace_back(&matrix, std::move(one));
  }
  SafetensorsWriter writer(folder / kWeights, specs, {{"format", "pt"}});
  for (auto& [matrix, one] : tensors) {
    read_tensors(reader, *matrix, config, matrix->of_experts() && fused.any(), one);
    writer.write(one.name + "lora_A.weight", one.a.data(), one.a.size() * sizeof(float));
    writer.write(one.name + "lora_B.weight", one.b.data(), one.b.size() * sizeof(float));
    one.a = one.b = {};
  }
  writer.finish();
  checkpoint::write_text(
      folder / kConfig,
      dump_json(config_json(adapter, matrices, fused, reader.manifest().base->path), 2) + "\n");
  return static_cast<int64_t>(specs.size());
}

}  // namespace te::convert
