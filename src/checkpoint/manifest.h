// manifest.json: what a checkpoint holds and where. docs/reference/file-formats.md shows one.
//
// Every tensor is described as a whole (logical name, global shape, dtype) and as slices of it; a slice is a run of a
// tensor of the same name in one of the checkpoint's safetensors files. One rank's checkpoint has one slice per tensor.
// The manifest is the last file of a checkpoint to be written and carries a checksum of itself and, in blocks of
// kChecksumBlock bytes, of every stored tensor.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/block.h"
#include "checkpoint/progress.h"
#include "core/dtype.h"

namespace te::checkpoint {

/// Bytes of a stored tensor that have one checksum (the last block of a tensor may be shorter): a reader that wants a
/// part of a tensor verifies the blocks it touches.
constexpr int64_t kChecksumBlock = 4 << 20;

/// XXH3, 64 bits, seed 0 (https://xxhash.com): faster than any disk.
uint64_t checksum(const void* data, size_t bytes);

struct Slice {
  int file = 0;        ///< index into Manifest::files
  int64_t offset = 0;  ///< elements before it in the stored tensor
  Block block;         ///< which elements of the whole tensor these are
};

/// A tensor of the whole model.
struct LogicalTensor {
  std::string name;  ///< a parameter's name, or "exp_avg/" or "exp_avg_sq/" and a parameter's name
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<Slice> slices;  ///< each element of the tensor is in exactly one

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t cols() const;  ///< of a row, that is the product of all sizes but the first
  int64_t numel() const { return rows() * cols(); }
  size_t bytes() const { return static_cast<size_t>(numel()) * dtype_size(dtype); }
  bool is_moment() const { return name.starts_with("exp_avg"); }
};

struct StoredFile {
  std::string name;  ///< without folder
  /// Of every tensor of the file, by its name there: one checksum per block.
  std::map<std::string, std::vector<uint64_t>, std::less<>> checksums;
};

/// A row of the FP8 scale table.
struct Fp8Operand {
  std::string name;   ///< the linear layer's
  std::string role;   ///< "input", "weight" or "grad_output"
  float fp8_max = 0;  ///< largest number of the format that the scale was made for
  bool operator==(const Fp8Operand&) const = default;
};

/// The FP8 state of one pipeline stage: tensors "scale" [n, 1], "amax_history" [history_len, n] and "position" [1] of a
/// file, n operands in this order.
struct Fp8Part {
  int file = 0;
  std::vector<Fp8Operand> operands;
};

/// A dataset that the run reads (data/dataset_fingerprint.h).
struct Dataset {
  std::string key;  ///< of the config, that names it
  std::string prefix;
  int64_t documents = 0, tokens = 0;
  uint64_t hash = 0;
  bool operator==(const Dataset&) const = default;
};

struct Manifest {
  Progress progress;
  std::string config;             ///< the effective config as YAML
  std::vector<Dataset> datasets;  ///< empty where they are not known, and without any
  std::vector<StoredFile> files;
  std::vector<LogicalTensor> tensors;
  std::vector<Fp8Part> fp8;  ///< empty where there is no FP8 state

  const LogicalTensor* find(std::string_view name) const;
};

/// The text of manifest.json; its last line is a checksum of all before it.
std::string to_text(const Manifest& manifest);

/// The inverse. UserError of one line that names `file`, the key and the rule when the text is not a manifest, was
/// changed after it was written, or its slices do not make up their tensors.
Manifest parse_manifest(const std::string& file, const std::string& text);

/// The same without the checksum of the text, and of a rank's part: its slices need not make up the tensors.
Manifest parse_manifest_part(const std::string& file, const std::string& text);

/// FOLDER/manifest.json. UserError as above, or when it cannot be read.
Manifest read_manifest(const std::filesystem::path& folder);

/// Puts the ranks' parts together. InternalError when their slices do not make up the tensors.
Manifest merge(const std::vector<Manifest>& parts);

}  // namespace te::checkpoint
