// Named tensors to look at, wherever they are: a checkpoint of te-train, a safetensors file, or a folder of such files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace te::convert {

struct TensorEntry {
  std::string name;
  std::string dtype;  ///< as safetensors calls it: "F32", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t bytes = 0;

  int64_t numel() const;
  std::string shape_text() const;  ///< "[2, 3]"
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// Sorted by name.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  /// Elements [first, first + count) of entries()[index], as stored. UserError when a file is damaged.
  virtual void read(size_t index, int64_t first, int64_t count, std::byte* out) const = 0;

 protected:
  std::vector<TensorEntry> entries_;
};

/// The safetensors files that a path stands for: itself, or those of a folder (of its index, where it has one).
/// UserError when there are none, or the index names a file that is not there.
std::vector<std::filesystem::path> safetensors_files(const std::filesystem::path& path);

/// Of a checkpoint parameters and moments, and "fp8/LINEAR/ROLE": the scale, then the amax history.
std::unique_ptr<TensorSource> open_tensors(const std::filesystem::path& path);

}  // namespace te::convert
