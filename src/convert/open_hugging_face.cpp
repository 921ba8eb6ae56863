// Finds the tensors of a Hugging Face folder and checks that each belongs to the model.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "convert/foreign_model.h"
#include "convert/fp8_import.h"
#include "convert/hugging_face_config.h"
#include "convert/json_keys.h"
#include "core/error.h"
#include "core/printable.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";

// Opens the shards that the index names, and checks that each tensor is in the shard that the index gives for it.
TensorFiles open_shards(const fs::path& folder) {
  const JsonKeys index = JsonKeys::of_file(folder / kIndex);
  const JsonKeys map = index.within("weight_map");
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map.object().items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos)
      map.refuse(tensor.c_str(), "must be the name of a file in the folder", "copy the index again");
    shards.insert(file.get<std::string>());
  }
  TensorFiles files;
  for (const std::string& shard : shards) files.add_safetensors(folder / shard);
  for (const auto& [tensor, file] : map.object().items()) {
    const StoredTensor* stored = files.find(tensor);
    if (stored == nullptr && files.untyped().contains(tensor)) continue;
    if (stored == nullptr || fs::path(files.path_of(*stored)).filename() != file.get<std::string>())
      map.refuse(tensor.c_str(), fmt::format("is not in {}", printable(file.get<std::string>())),
                 "copy index and shards again");
  }
  return files;
}

TensorFiles open_files(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "model.safetensors", error)) {
    TensorFiles files;
    files.add_safetensors(folder / "model.safetensors");
    return files;
  }
  if (fs::exists(folder / kIndex, error)) return open_shards(folder);
  for (const char* pickled : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!fs::exists(folder / pickled, error)) continue;
    // Unpickling can run arbitrary code; transformers loads the file with torch's weights_only, which does not.
    user_error(
        "{}: has {} but no model.safetensors; write one with python3 -c \"from transformers import "
        "AutoModelForCausalLM as M; M.from_pretrained('{}', torch_dtype='auto').save_pretrained('{}')\"",
        folder.string(), pickled, folder.string(), folder.string());
  }
  user_error(
      "{}: has neither model.safetensors nor {}; a model in another format can be saved as safetensors by "
      "transformers (save_pretrained)",
      folder.string(), kIndex);
}

// If peft is installed, transformers adds an adapter in a model's folder to the model.
void check_no_adapter(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "adapter_config.json", error))
    user_error(
        "{}: has adapter_config.json next to the model; move the adapter's files to another folder, and give "
        "that folder to --adapter or te-convert merge to use it",
        folder.string());
}

/// True for buffers that old versions of transformers saved although they follow from the config.
bool is_buffer(const std::string& name) {
  constexpr std::array<std::string_view, 5> kEndings = {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                                        ".attention.masked_bias", ".rotary_emb.inv_freq"};
  return std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); });
}

// If the files contain a tied output layer, it must equal the embedding.
void check_tied_output_layer(const TensorFiles& files, const std::string& embedding) {
  const StoredTensor *head = files.find("lm_head.weight"), *tied = files.find(embedding);
  if (head == nullptr || tied == nullptr) return;
  constexpr int64_t kChunk = 1 << 20;
  bool equal = head->shape == tied->shape;
  std::vector<std::byte> a(kChunk * 4), b(kChunk * 4);
  for (int64_t at = 0; equal && at < head->numel(); at += kChunk) {
    const int64_t count = std::min(kChunk, head->numel() - at);
    files.read(*head, at, count, DType::f32, a.data());
    files.read(*tied, at, count, DType::f32, b.data());
    equal = std::memcmp(a.data(), b.data(), static_cast<size_t>(count) * 4) == 0;
  }
  if (!equal)
    user_error(
        "{}: lm_head.weight differs from {}, although tie_word_embeddings is true; set it to false in "
        "config.json if the output layer is not tied",
        files.path_of(*head), embedding);
}

void check_all_used(const TensorFiles& files, const std::vector<ParameterLayout>& layout, bool tied) {
  std::set<std::string, std::less<>> used;
  for (const ParameterLayout& parameter : layout)
    for (const Part& part : parameter.parts) used.insert(part.name);
  if (tied) used.insert("lm_head.weight");
  const auto check = [&](const std::string& name, const std::string& file) {
    if (!used.contains(name) && !is_buffer(name))
      user_error("{}: tensor {} does not belong to the model of config.json; te-train does not support it",
                 file, printable(name));
  };
  for (const auto& [name, tensor] : files.tensors()) check(name, files.path_of(tensor));
  for (const auto& [name, type] : files.untyped()) check(name, "the model's files");
}

}  // namespace

ForeignModel open_hugging_face(const fs::path& folder) {
  check_no_adapter(folder);
  const config::ModelConfig model = read_hugging_face_config(folder / "config.json");
  const Architecture architecture = architecture_of(JsonKeys::of_file(folder / "config.json"));
  TensorFiles files = open_files(folder);
  attach_multipliers(files, read_quantization(JsonKeys::of_file(folder / "config.json")));
  const bool prefixed = files.find("wte.weight") == nullptr;
  std::vector<ParameterLayout> layout =
      hugging_face_layout(model, architecture, prefixed ? "transformer." : "");
  check_all_used(files, layout, model.tie_word_embeddings);
  if (model.tie_word_embeddings) check_tied_output_layer(files, layout.front().parts.front().name);
  return {folder.string(), model, std::move(layout), std::move(files)};
}

}  // namespace te::convert
