// Reads and writes safetensors files: named tensors after a JSON header.
//
//   u64 n (little-endian) | n bytes of JSON, padded with spaces to 8 bytes | the tensors' data, without gaps
//   {"__metadata__": {"key": "text"}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// data_offsets count from the end of the header. Format: https://github.com/huggingface/safetensors.
// A reader trusts nothing: a damaged or hostile file is a UserError of one line (file, tensor, rule, remedy),
// never a crash, and never an allocation that the file's own size does not justify.
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

/// One tensor of an open file. `data` points into the file's mapping and lives as long as the reader.
struct SafetensorsTensor {
  std::string name;
  std::string_view file_dtype;  ///< as in the file: "F32", "BF16", "F16", "BOOL", ...
  std::optional<DType> dtype;   ///< empty where te-train has no such type (F16, F64, BOOL, ...)
  std::vector<int64_t> shape;   ///< empty for a scalar
  /// Dense, row-major, little-endian. Files of other writers may leave it unaligned: copy with memcpy.
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t offset = 0;  ///< of data within the file
};

/// A memory-mapped file, validated as a whole when opened.
class SafetensorsReader {
 public:
  /// UserError when the file cannot be read or breaks a rule of the format: header length against file size,
  /// JSON of the right types, no name twice, known dtypes, dtype and shape agreeing with the byte count, and
  /// offsets that cover the data exactly, without overlap or hole.
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// In the order of their data.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  /// Null when the file has no such tensor.
  const SafetensorsTensor* find(std::string_view name) const;
  /// UserError that names file and tensor when the file has no such tensor.
  const SafetensorsTensor& at(std::string_view name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const std::byte> mapping_;  ///< unmaps itself
  SafetensorsMetadata metadata_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  ///< name -> place in tensors_
};

/// A tensor to be written. Any DType of te-train.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

/// Writes a file tensor by tensor. The header is laid out as Python's safetensors lays it out (wide types
/// first, then by name), so the same tensors give the same bytes, and every tensor is aligned to its element
/// size.
///
/// Everything goes to PATH.tmp; finish() syncs it and renames it to PATH, so PATH is always either the old
/// file or the whole new one. A writer destroyed before finish() removes PATH.tmp.
class SafetensorsWriter {
 public:
  /// Creates PATH.tmp and writes the header. UserError when the file cannot be created or the disk is full.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& specs,
                    const SafetensorsMetadata& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Writes the next `bytes` bytes of a tensor. Tensors come in any order, each whole or in consecutive
  /// pieces.
  void write(std::string_view name, const void* data, size_t bytes);
  /// Checks that every tensor is complete, then makes the file durable and visible under its name.
  void finish();

 private:
  struct Slot {
    uint64_t next = 0, end = 0;  ///< file offsets: where the next piece goes, where the tensor ends
  };
  void write_at(uint64_t offset, const void* data, size_t bytes);

  std::filesystem::path path_, temporary_;
  int file_ = -1;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace te
