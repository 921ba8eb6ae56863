// Reads tensors in chunks from one or several files of another program: safetensors shards, or one flat file.
//
// Data is read with pread, not mapped, so that only the caller's buffers take memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace te::convert {

/// Floating point types of other programs' files.
enum class FileType : uint8_t { f32, bf16, f16, e4m3 };
constexpr size_t file_type_size(FileType type) {
  return type == FileType::f32 ? 4 : type == FileType::e4m3 ? 1 : 2;
}

/// Factors by which the codes of an E4M3 matrix are multiplied, one per block.
struct Multipliers {
  int64_t block_rows = 0, block_cols = 0;  ///< size of a block; the last blocks may be smaller
  int64_t cols = 0;                        ///< blocks per row of blocks
  bool whole = false;                      ///< the format's blocks are the matrix or its rows
  std::vector<float> values;               ///< [rows of blocks, cols]
};

struct StoredTensor {
  int file = 0;
  uint64_t offset = 0;  ///< of the first byte in the file
  FileType type = FileType::f32;
  std::vector<int64_t> shape;
  std::shared_ptr<const Multipliers> multipliers;  ///< required to read an E4M3 matrix

  int64_t numel() const;
};

class TensorFiles {
 public:
  TensorFiles() = default;
  ~TensorFiles();
  TensorFiles(TensorFiles&&) noexcept;
  TensorFiles& operator=(TensorFiles&&) = delete;

  /// Opens a file and returns its number. UserError if it cannot be opened.
  int open(const std::filesystem::path& path);
  /// Opens a safetensors file and adds its tensors of a FileType. For the others, only name and type are kept
  /// (untyped()).
  void add_safetensors(const std::filesystem::path& path);
  /// UserError if there is a tensor of this name.
  void add(const std::string& name, StoredTensor tensor);
  void attach(const std::string& name, std::shared_ptr<const Multipliers> multipliers);
  void remove(const std::string& name);  ///< removes it from the list, if present

  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  /// Tensors of other types (boolean masks, quantized weights): name -> type.
  const std::map<std::string, std::string, std::less<>>& untyped() const { return untyped_; }
  const StoredTensor* find(std::string_view name) const;
  std::string path_of(const StoredTensor& tensor) const;
  uint64_t bytes_of_file(int file) const;
  uint64_t hash() const;  ///< of all bytes of all files

  /// Elements [first, first + count) as f32 or bf16. F16 and BF16 can be widened to f32; F32 and F16 cannot be read as
  /// bf16. E4M3 is read as code times multiplier, rounded to BF16, or as e4m3: the codes. UserError if the file is
  /// truncated or unreadable.
  void read(const StoredTensor& tensor, int64_t first, int64_t count, DType as, std::byte* out) const;

 private:
  struct File {
    std::filesystem::path path;
    int descriptor = -1;
    uint64_t bytes = 0;
  };
  void read_bytes(const File& file, uint64_t offset, size_t count, std::byte* out) const;

  std::vector<File> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> untyped_;
};

}  // namespace te::convert
