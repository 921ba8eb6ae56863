// manifest.json: tensors of a checkpoint and where they are stored. docs/reference/file-formats.md has an example.
//
// Each tensor has a logical name, global shape, dtype, and slices. A slice is a range of elements of a tensor with the
// same name in one of the checkpoint's safetensors files. A checkpoint written by one rank has one slice per tensor.
// The manifest is written after all other files. It has a checksum of itself and, in blocks of kChecksumBlock bytes, of
// every stored tensor.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/block.h"
#include "checkpoint/progress.h"
#include "core/dtype.h"

namespace te::checkpoint {

/// Bytes of a stored tensor per checksum (the last block of a tensor may be shorter). A reader of a part of a tensor
/// verifies only the blocks that it touches.
constexpr int64_t kChecksumBlock = 4 << 20;

/// XXH3, 64 bits, seed 0 (https://xxhash.com): fast enough not to limit reading from disk.
uint64_t checksum(const void* data, size_t bytes);

struct Slice {
  int file = 0;        ///< index into Manifest::files
  int64_t offset = 0;  ///< first element of the slice in the stored tensor
  Block block;         ///< elements of the full tensor
};

/// A full tensor of the model, independent of how ranks shard it.
struct LogicalTensor {
  std::string name;  ///< a parameter's name, or "exp_avg/" or "exp_avg_sq/" and a parameter's name
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<Slice> slices;  ///< each element of the tensor is in exactly one slice

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t cols() const;  ///< elements per row: the product of all sizes except the first
  int64_t numel() const { return rows() * cols(); }
  size_t bytes() const { return static_cast<size_t>(numel()) * dtype_size(dtype); }
  bool is_moment() const { return name.starts_with("exp_avg"); }
};

struct StoredFile {
  std::string name;  ///< without folder
  /// Checksums of the file's tensors by their names in the file, one per block.
  std::map<std::string, std::vector<uint64_t>, std::less<>> checksums;
};

/// A row of the FP8 scale table.
struct Fp8Operand {
  std::string name;   ///< name of the linear layer
  std::string role;   ///< "input", "weight" or "grad_output"
  float fp8_max = 0;  ///< largest number of the FP8 format that the scale belongs to
  bool operator==(const Fp8Operand&) const = default;
};

/// The FP8 state of one pipeline stage with n operands, in a file with the tensors "scale" [n, 1] FP32,
/// "amax_history" [history_len, n] FP32 and "position" [1] INT32. `operands` has the order of the rows.
struct Fp8Part {
  int file = 0;
  std::vector<Fp8Operand> operands;
};

/// A dataset that the run reads (data/dataset_fingerprint.h).
struct Dataset {
  std::string key;  ///< the config key that names it
  std::string prefix;
  int64_t documents = 0, tokens = 0;
  uint64_t hash = 0;
  bool operator==(const Dataset&) const = default;
};

/// The weights that an adapter was trained on, which its checkpoints do not hold.
struct Base {
  std::string path;   ///< of a checkpoint or a Hugging Face folder
  uint64_t hash = 0;  ///< WeightSource::hash()
  bool operator==(const Base&) const = default;
};

struct Manifest {
  Progress progress;
  std::string config;             ///< the effective config as YAML
  std::vector<Dataset> datasets;  ///< empty if there are none or they are unknown
  std::optional<Base> base;       ///< of an adapter; else the checkpoint has all parameters
  std::vector<StoredFile> files;
  std::vector<LogicalTensor> tensors;
  std::vector<Fp8Part> fp8;  ///< empty without FP8 state

  const LogicalTensor* find(std::string_view name) const;
};

/// The text of manifest.json. Its last entry is a checksum of everything before it.
std::string to_text(const Manifest& manifest);

/// Parses the text of manifest.json. UserError (one line with `file`, the key and the rule) if it is not a manifest, if
/// it was changed after it was written, or if the slices do not cover their tensors exactly.
Manifest parse_manifest(const std::string& file, const std::string& text);

/// Parses the manifest of one rank, which has no checksum of the text and whose slices need not cover the tensors.
Manifest parse_manifest_part(const std::string& file, const std::string& text);

/// Reads FOLDER/manifest.json. UserError as above, or if it cannot be read.
Manifest read_manifest(const std::filesystem::path& folder);

/// Merges the ranks' manifests. InternalError if their slices do not cover the tensors exactly.
Manifest merge(const std::vector<Manifest>& parts);

}  // namespace te::checkpoint
