// Reads tensors of a checkpoint as wholes or in parts, however many ranks have written it. For te-train's own loading
// (loader.h) and for tools that stream through a checkpoint.
//
// Data is read with pread in blocks, not mapped: memory stays at one block (kChecksumBlock) beside the caller's
// buffers, an error of the disk is a message and not a signal, and what was verified is what is used. Not thread-safe:
// one Reader per thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/weight_source.h"
#include "core/error.h"

namespace te::checkpoint {

/// A checkpoint that is not what was saved: a file is missing, cut short, altered or cannot be read. Another checkpoint
/// of the same run may do.
class Damaged : public UserError {
 public:
  using UserError::UserError;
};

/// Whether reads compare checksums. Sizes, names and shapes are compared always.
enum class Verify : uint8_t { off, on };

/// The FP8 state of the whole model, whatever stages saved it.
struct Fp8State {
  struct Row {
    Fp8Operand operand;
    float scale = 1.0f;
    std::vector<float> history;  ///< [history_len], as a ring
  };
  int64_t history_len = 0;
  int32_t position = 0;  ///< the ring's next place
  std::vector<Row> rows;
};

class Reader final : public WeightSource {
 public:
  /// `path` is a step folder, or a checkpoint directory (then its latest checkpoint, as find_latest of folder.h says).
  /// UserError when there is no checkpoint; Damaged when its manifest is. Shards are opened when they are first read.
  explicit Reader(const std::filesystem::path& path, Verify verify = Verify::on);
  ~Reader() override;
  Reader(Reader&&) noexcept;

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const Progress& progress() const { return manifest_.progress; }
  std::string title() const override { return folder_.string(); }
  std::string config() const override { return manifest_.config; }

  /// All logical tensors: parameters and, unless they were left out, moments (LogicalTensor::is_moment).
  const std::vector<LogicalTensor>& tensors() const { return manifest_.tensors; }
  const LogicalTensor* find(std::string_view name) const { return manifest_.find(name); }
  /// UserError that names folder and tensor when there is none.
  const LogicalTensor& at(std::string_view name) const;
  std::optional<TensorInfo> info(std::string_view name) const override;
  bool has_optimizer() const;

  // Rows [first, first + count) of the tensor seen as [rows, cols] (block.h), assembled from all slices. UserError when
  // a shard is missing, cut short, altered (Verify::on) or not what the manifest says.
  /// As FP32; the stored dtype must be F32 or BF16, else UserError.
  void read_rows(std::string_view name, int64_t first, int64_t count, float* out) const;
  /// As stored: count * cols * dtype_size(dtype) bytes.
  void read_rows(std::string_view name, int64_t first, int64_t count, std::byte* out) const;
  /// Any block of the whole tensor.
  void read(std::string_view name, const Block& block, float* out) const override {
    read(at(name), block, out);
  }
  void read(const LogicalTensor& tensor, const Block& block, float* out) const;
  void read(const LogicalTensor& tensor, const Block& block, std::byte* out) const;

  bool has_fp8() const { return !manifest_.fp8.empty(); }
  /// Empty rows where the checkpoint has no FP8 state. UserError as above, or when stages disagree.
  Fp8State fp8() const;

  /// Reads every byte of every shard and compares checksums, whatever Verify says.
  void verify_all() const;

 private:
  class Shards;
  std::filesystem::path folder_;
  Manifest manifest_;
  std::unique_ptr<Shards> shards_;
};

}  // namespace te::checkpoint
