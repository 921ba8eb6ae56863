// Writes the weights of a checkpoint as a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
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
  /// f32 or bf16; empty: as the checkpoint has them, and BF16 beside FP8.
  std::optional<DType> dtype;
  int64_t max_shard_bytes =
      5'000'000'000;  ///< of tensors, as transformers counts; a larger tensor has its own file
  std::vector<checkpoint::KeptFile> kept;  ///< tokenizer files, and perhaps config.json; empty: none
  Fp8Format fp8 = Fp8Format::off;          ///< of the linear layers
};

/// A checkpoint with the model that it holds.
struct ExportSource {
  /// UserError when transformers has no such model.
  explicit ExportSource(const std::filesystem::path& checkpoint);

  checkpoint::Reader reader;
  config::Config config;  ///< of the run
  config::ModelConfig model;
  Architecture architecture;
  std::string tokenizer;  ///< data.tokenizer of the run
};

int64_t exported_bytes(const ExportSource& source, const ExportOptions& options);  ///< of weights

/// Writes config.json, model.safetensors (or shards and model.safetensors.index.json) and the kept files into a folder.
/// UserError when transformers has no such model, or the checkpoint does not hold what its config says, or lacks what
/// options.fp8 needs.
Converted write_hugging_face(const ExportSource& source, const std::filesystem::path& folder,
                             const ExportOptions& options, const OnProgress& progress);

}  // namespace te::convert
