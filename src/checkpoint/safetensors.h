// Reads and writes safetensors files: a JSON header, then the data of named tensors.
//
//   u64 n (little-endian) | n bytes of JSON, padded with spaces to 8 bytes | data of the tensors, without gaps
//   {"__metadata__": {"key": "text"}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// data_offsets count from the end of the header. Format: https://github.com/huggingface/safetensors.
// The reader does not trust a file: a damaged or malicious one causes a UserError (one line with file, tensor, rule and
// remedy), never a crash or an allocation out of proportion to the file's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace te {

using SafetensorsMetadata = std::map<std::string, std::string>;

/// A tensor of an open file. `data` points into the file's mapping and is valid as long as the reader.
struct SafetensorsTensor {
  std::string name;
  std::string_view file_dtype;  ///< as in the file: "F32", "BF16", "F16", "BOOL", ...
  std::optional<DType> dtype;   ///< empty if te-train cannot read the type (F16, F64, BOOL, ...)
  std::vector<int64_t> shape;   ///< empty for a scalar
  /// Dense, row-major, little-endian. Files of other writers may leave it unaligned: copy with memcpy.
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t offset = 0;  ///< offset of data in the file
};

/// A memory-mapped file. Its header is validated completely when it is opened.
class SafetensorsReader {
 public:
  /// UserError if the file cannot be read or violates a rule of the format: the header fits into the file, JSON values
  /// have the right types, names are unique, dtypes are known, dtype and shape match the byte count, and offsets cover
  /// the data exactly, without overlap or gap.
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// In the order of their offsets.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  /// Null if the file has no such tensor.
  const SafetensorsTensor* find(std::string_view name) const;
  /// UserError with file and tensor if the file has no such tensor.
  const SafetensorsTensor& at(std::string_view name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const std::byte> mapping_;  ///< unmaps itself
  SafetensorsMetadata metadata_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  ///< name -> index in tensors_
};

/// A tensor to write. Any DType is possible except f16 and e2m1.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

/// Writes a file tensor by tensor. Tensors have the order of Python's safetensors (wide types first, then by name), so
/// the same tensors result in the same bytes, and each tensor is aligned to its element size.
///
/// Data is written to PATH.tmp; finish() syncs the file and renames it to PATH, so PATH is always either the old file
/// or the complete new one. A writer that is destroyed before finish() removes PATH.tmp.
class SafetensorsWriter {
 public:
  /// Creates PATH.tmp and writes the header. UserError if the file cannot be created or the disk is full.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& specs,
                    const SafetensorsMetadata& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Writes the next `bytes` bytes of a tensor. Tensors may be written in any order and in several calls.
  void write(std::string_view name, const void* data, size_t bytes);
  /// Checks that every tensor is complete, then syncs the file and renames it to PATH.
  void finish();

 private:
  struct Slot {
    uint64_t next = 0, end = 0;  ///< file offsets of the next write and of the tensor's end
  };
  void write_at(uint64_t offset, const void* data, size_t bytes);

  std::filesystem::path path_, temporary_;
  int file_ = -1;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace te
