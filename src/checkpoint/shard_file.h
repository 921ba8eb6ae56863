// Writes a safetensors file of a checkpoint and computes the checksums of its blocks for the manifest. Private to
// src/checkpoint.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"

namespace te::checkpoint {

class ShardFile {
 public:
  ShardFile(const std::filesystem::path& folder, const std::string& name,
            const std::vector<SafetensorsSpec>& tensors);
  ~ShardFile();
  ShardFile(ShardFile&&) noexcept;

  /// Writes the next bytes of a tensor.
  void write(const std::string& name, const void* data, size_t bytes);
  /// Syncs the file and renames it to its final name; returns its entry in the manifest.
  StoredFile finish();

 private:
  struct Sums;
  std::string name_;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::map<std::string, std::unique_ptr<Sums>, std::less<>> sums_;
};

/// Writes the FP8 state to a separate file and appends the file's entry to `files`. Returns the manifest's entry of the
/// FP8 state, which refers to the file by index.
Fp8Part write_fp8(const std::filesystem::path& folder, const std::string& name, const Fp8State& state,
                  std::vector<StoredFile>& files);

}  // namespace te::checkpoint
