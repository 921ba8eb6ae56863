// Writes the weights of a checkpoint as a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/kept_files.h"
#include "checkpoint/reader.h"
#include "convert/architecture.h"
#include "convert/fp8_export.h"
#include "convert/importer.h"

namespace te::convert {

struct ExportOptions {
  /// f32 or bf16; empty: the dtypes of the checkpoint, or BF16 for the weights that an FP8 export does not quantize.
  std::optional<DType> dtype;
  int64_t max_shard_bytes =
      5'000'000'000;  ///< sum of the tensors' bytes, as in transformers; a larger tensor gets its own file
  std::vector<checkpoint::KeptFile> kept;  ///< tokenizer files, optionally config.json; empty: none
  Fp8Format fp8 = Fp8Format::off;          ///< format of the linear layers
  /// The keys bos_token_id, eos_token_id and pad_token_id of config.json, if `kept` has no config.json with them.
  /// Without them transformers takes ids of its own for the class.
  std::function<nlohmann::json()> token_ids = {};
};

/// A checkpoint and the model that it contains.
struct ExportSource {
  /// UserError if transformers has no such model.
  explicit ExportSource(const std::filesystem::path& checkpoint);

  checkpoint::Reader reader;
  config::Config config;  ///< config of the run
  config::ModelConfig model;
  Architecture architecture;
  std::string tokenizer;  ///< data.tokenizer of the run
};

/// Bytes of weights that write_hugging_face() writes.
int64_t exported_bytes(const ExportSource& source, const ExportOptions& options);

/// Writes config.json, model.safetensors (or shards and model.safetensors.index.json) and the kept files into a folder.
/// UserError if transformers has no such model, if the tensors of the checkpoint do not match its config, or if the FP8
/// state that options.fp8 needs is missing.
Converted write_hugging_face(const ExportSource& source, const std::filesystem::path& folder,
                             const ExportOptions& options, const OnProgress& progress);

}  // namespace te::convert
