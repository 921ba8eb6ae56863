// Reads full tensors of a checkpoint or parts of them, independent of how many ranks wrote it. Used by te-train's
// loading (loader.h) and by tools that stream through a checkpoint.
//
// Data is read in blocks with pread instead of mmap: the reader needs only one block (kChecksumBlock) of memory, a disk
// error is an exception instead of a signal, and the verified bytes are the ones used. Not thread-safe: use one Reader
// per thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/weight_source.h"
#include "core/error.h"

namespace te::config {
struct Config;
}

namespace te::checkpoint {

/// A checkpoint that differs from what was saved: a file is missing, truncated, altered or cannot be read. Another
/// checkpoint of the same run may be usable.
class Damaged : public UserError {
 public:
  using UserError::UserError;
};

/// Whether reads compare checksums. Sizes, names and shapes are always compared.
enum class Verify : uint8_t { off, on };

/// The FP8 state of all pipeline stages.
struct Fp8State {
  struct Row {
    Fp8Operand operand;
    float scale = 1.0f;
    std::vector<float> history;  ///< [history_len], a ring buffer

    /// Whether the operand has ever had an amax. The scale of an expert without tokens stays, while its history becomes
    /// zeros.
    bool measured() const;
  };
  int64_t history_len = 0;
  int32_t position = 0;  ///< next index of the ring buffer to write
  std::vector<Row> rows;
};

class Reader final : public WeightSource {
 public:
  /// `path` is a step folder, or a checkpoint directory (then its latest checkpoint, see find_latest in folder.h).
  /// UserError if there is no checkpoint; Damaged if its manifest is damaged. A shard is opened at its first read.
  explicit Reader(const std::filesystem::path& path, Verify verify = Verify::on);
  ~Reader() override;
  Reader(Reader&&) noexcept;

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const Progress& progress() const { return manifest_.progress; }
  std::string title() const override { return folder_.string(); }
  std::string config() const override;  ///< as this version writes it: config::upgrade_stored()
  config::Config run_config(const std::vector<std::string>& overrides = {}) const;  ///< config(), parsed
  std::vector<std::string> names() const override;
  uint64_t hash() const override;  ///< of the checksums

  /// All logical tensors: parameters and, if they were saved, moments (LogicalTensor::is_moment).
  const std::vector<LogicalTensor>& tensors() const { return manifest_.tensors; }
  const LogicalTensor* find(std::string_view name) const { return manifest_.find(name); }
  /// UserError with folder and tensor if there is no such tensor.
  const LogicalTensor& at(std::string_view name) const;
  std::optional<TensorInfo> info(std::string_view name) const override;
  bool has_optimizer() const;

  // Rows [first, first + count) of the tensor as a matrix [rows, cols] (block.h), assembled from all slices. UserError
  // if a shard is missing, truncated, altered (Verify::on) or does not match the manifest.
  /// As FP32; the stored dtype must be F32 or BF16, else UserError.
  void read_rows(std::string_view name, int64_t first, int64_t count, float* out) const;
  /// As stored: count * cols * dtype_size(dtype) bytes.
  void read_rows(std::string_view name, int64_t first, int64_t count, std::byte* out) const;
  /// Any block of the full tensor.
  void read(std::string_view name, const Block& block, float* out) const override {
    read(at(name), block, out);
  }
  void read(const LogicalTensor& tensor, const Block& block, float* out) const;
  void read(const LogicalTensor& tensor, const Block& block, std::byte* out) const;

  bool has_fp8() const { return !manifest_.fp8.empty(); }
  /// Without rows if the checkpoint has no FP8 state. UserError as above, or if the stages' histories do not match.
  Fp8State fp8() const;

  /// Reads every byte of every shard and compares checksums, also with Verify::off.
  void verify_all() const;

 private:
  class Shards;
  std::filesystem::path folder_;
  Manifest manifest_;
  std::unique_ptr<Shards> shards_;
};

}  // namespace te::checkpoint
