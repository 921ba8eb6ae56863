// A safetensors file of a checkpoint while it is written: data goes to the file, checksums of its blocks to the
// manifest. Private to src/checkpoint.
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

  /// The next bytes of a tensor.
  void write(const std::string& name, const void* data, size_t bytes);
  /// Syncs the file and gives it its name; returns its entry in the manifest.
  StoredFile finish();

 private:
  struct Sums;
  std::string name_;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::map<std::string, std::unique_ptr<Sums>, std::less<>> sums_;
};

/// Writes the FP8 state as a file of its own, appends its entry to `files` and returns the operands' (with its index).
Fp8Part write_fp8(const std::filesystem::path& folder, const std::string& name, const Fp8State& state,
                  std::vector<StoredFile>& files);

}  // namespace te::checkpoint
