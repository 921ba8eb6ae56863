// Read access to the named tensors of a te-train checkpoint, a safetensors file, or a folder of such files.
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
  std::string dtype;  ///< safetensors name: "F32", "BF16", ...
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
  /// Reads elements [first, first + count) of entries()[index], as stored. UserError if a file is damaged.
  virtual void read(size_t index, int64_t first, int64_t count, std::byte* out) const = 0;

 protected:
  std::vector<TensorEntry> entries_;
};

/// The safetensors files of a path: the file itself, or those of a folder (as its index lists them, if it has one).
/// UserError if there are none, or if the index names a missing file.
std::vector<std::filesystem::path> safetensors_files(const std::filesystem::path& path);

/// Opens the tensors of a path. A checkpoint has parameters, moments, and "fp8/LINEAR/ROLE": the scale, then the amax
/// history.
std::unique_ptr<TensorSource> open_tensors(const std::filesystem::path& path);

}  // namespace te::convert
