// te-convert inspect: shows the contents of a checkpoint, a safetensors file or a Hugging Face folder.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "convert/commands.h"
#include "convert/tensor_source.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/strings.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

struct InspectArguments {
  std::string path;
  bool tensors = false, verify = false;
};

std::string megabytes(uint64_t bytes) {
  return fmt::format("{:.3f} MB", static_cast<double>(bytes) / 1e6);
}

void print_row(const char* label, const std::string& text) {
  fmt::print("{:<12} {}\n", label, text);
}

/// "38 tensors, 1,234 elements: F32 4.9 MB, BF16 0.1 MB"
template <class Chosen>
std::string sums(const TensorSource& source, Chosen&& chosen) {
  int64_t tensors = 0, elements = 0;
  std::map<std::string, uint64_t> bytes;
  for (const TensorEntry& entry : source.entries()) {
    if (!chosen(entry.name)) continue;
    ++tensors;
    elements += entry.numel();
    bytes[entry.dtype] += entry.bytes;
  }
  if (tensors == 0) return "none";
  std::string text;
  for (const auto& [dtype, count] : bytes)
    text += (text.empty() ? "" : ", ") + dtype + " " + megabytes(count);
  return fmt::format("{} tensors, {} elements: {}", tensors, with_separators(elements), text);
}

void print_tensors(const TensorSource& source) {
  size_t name_width = 4, shape_width = 5;
  for (const TensorEntry& entry : source.entries()) {
    name_width = std::max(name_width, printable(entry.name).size());
    shape_width = std::max(shape_width, entry.shape_text().size());
  }
  fmt::print("\n{:<{}}  {:<7}  {:<{}}  {:>14}\n", "name", name_width, "dtype", "shape", shape_width, "bytes");
  for (const TensorEntry& entry : source.entries())
    fmt::print("{:<{}}  {:<7}  {:<{}}  {:>14}\n", printable(entry.name), name_width, entry.dtype,
               entry.shape_text(), shape_width, with_separators(static_cast<int64_t>(entry.bytes)));
}

// --- checkpoints -------------------------------------------------------------------------------------------

/// The value of a config key; "?" if it is missing, as it may be in configs of other versions.
std::string key(const YAML::Node& config, const char* section, const char* name) {
  try {
    const YAML::Node value = config[section][name];
    return value && value.IsScalar() ? printable(value.as<std::string>()) : "?";
  } catch (const YAML::Exception&) {
    return "?";
  }
}

YAML::Node config_of(const checkpoint::Reader& reader) {
  try {
    return YAML::Load(reader.config());
  } catch (const YAML::Exception&) {
    return {};
  }
}

std::string model_text(const YAML::Node& config) {
  const auto model = [&](const char* name) { return key(config, "model", name); };
  return fmt::format(
      "{}, {} layers, hidden {}, ffn {}, {} heads, {} query groups, vocabulary {}, sequences {}",
      model("family"), model("num_layers"), model("hidden_size"), model("ffn_hidden_size"),
      model("num_attention_heads"), model("num_query_groups"), model("vocab_size"), model("seq_length"));
}

/// Ranks are counted by their model files.
std::string layout_text(const checkpoint::Reader& reader, const YAML::Node& config) {
  int64_t ranks = 0;
  for (const checkpoint::StoredFile& file : reader.manifest().files) ranks += file.name.starts_with("model");
  return fmt::format("{} with model files, tensor {} x pipeline {}{}",
                     ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks),
                     key(config, "parallel", "tensor"), key(config, "parallel", "pipeline"),
                     key(config, "parallel", "virtual_stages") == "1"
                         ? ""
                         : " x " + key(config, "parallel", "virtual_stages") + " virtual stages");
}

std::string fp8_text(const checkpoint::Fp8State& state, const YAML::Node& config) {
  if (state.rows.empty()) return "none";
  std::vector<float> scales;
  for (const checkpoint::Fp8State::Row& row : state.rows)
    if (row.measured()) scales.push_back(row.scale);
  const size_t without = state.rows.size() - scales.size();
  return fmt::format("{}, {}: {} operands, amax histories of {} steps{}{}", key(config, "precision", "fp8"),
                     key(config, "precision", "fp8_recipe"), state.rows.size(), state.history_len,
                     scales.empty() ? ""
                                    : fmt::format(", scales from {:.4g} to {:.4g}", std::ranges::min(scales),
                                                  std::ranges::max(scales)),
                     without == 0 ? "" : fmt::format(", {} without a scale yet", without));
}

void verify(const checkpoint::Reader& reader, uint64_t bytes) {
  const double start = now_seconds();
  reader.verify_all();
  print_row("checksums", fmt::format("all {} files match ({} in {:.1f} s)", reader.manifest().files.size(),
                                     megabytes(bytes), now_seconds() - start));
}

void inspect_checkpoint(const InspectArguments& arguments) {
  const checkpoint::Reader reader(arguments.path);
  const std::unique_ptr<TensorSource> source = open_tensors(reader.folder());
  const YAML::Node config = config_of(reader);
  uint64_t bytes = 0;
  for (const checkpoint::StoredFile& file : reader.manifest().files) {
    std::error_code missing;
    const uint64_t size = fs::file_size(reader.folder() / file.name, missing);
    if (missing)
      user_error("{}: shard is missing; copy the checkpoint again", (reader.folder() / file.name).string());
    bytes += size;
  }
  print_row("checkpoint", reader.folder().string());
  print_row("step", fmt::format("{}, {} updates, {} samples", reader.progress().step,
                                reader.progress().updates, reader.progress().consumed_samples));
  print_row("model", model_text(config));
  print_row("layout", layout_text(reader, config));
  print_row("parameters", sums(*source, [](const std::string& name) {
              return !name.starts_with("exp_avg") && !name.starts_with("fp8/");
            }));
  print_row("optimizer", sums(*source, [](const std::string& name) { return name.starts_with("exp_avg"); }));
  print_row("FP8", fp8_text(reader.fp8(), config));
  print_row("files", fmt::format("{}, {}", reader.manifest().files.size(), megabytes(bytes)));
  if (arguments.verify) verify(reader, bytes);
  if (arguments.tensors) print_tensors(*source);
}

// --- safetensors -------------------------------------------------------------------------------------------

void inspect_safetensors(const InspectArguments& arguments) {
  if (arguments.verify)
    user_error("--verify: {} is not a te-train checkpoint; safetensors files have no checksums",
               arguments.path);
  const std::vector<fs::path> files = safetensors_files(arguments.path);
  const std::unique_ptr<TensorSource> source = open_tensors(arguments.path);
  uint64_t bytes = 0;
  for (const fs::path& file : files) bytes += fs::file_size(file);
  print_row("path", arguments.path);
  print_row("tensors", sums(*source, [](const std::string&) { return true; }));
  print_row("files", fmt::format("{}, {}", files.size(), megabytes(bytes)));
  for (const fs::path& file : files) {
    const SafetensorsReader reader(file);
    for (const auto& [name, value] : reader.metadata())
      print_row("metadata", printable(fmt::format("{}: {}", name, value.substr(0, 200))));
  }
  if (arguments.tensors) print_tensors(*source);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command =
      app.add_subcommand("inspect", "Show the contents of a checkpoint or a safetensors file");
  command
      ->add_option("path", arguments->path,
                   "Checkpoint or run folder, safetensors file, or folder of such files")
      ->required()
      ->type_name("PATH");
  command->add_flag("--tensors", arguments->tensors, "List all tensors");
  command->add_flag("--verify", arguments->verify, "Read the whole checkpoint and verify its checksums");
  command->callback([arguments] {
    checkpoint::is_checkpoint_path(arguments->path) ? inspect_checkpoint(*arguments)
                                                    : inspect_safetensors(*arguments);
  });
}

}  // namespace te::convert
