// Tensors of one or several files of another program, read in pieces: safetensors shards, or one flat file.
//
// Data is read with pread, not mapped, so that memory stays at the caller's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace te::convert {

/// Floating point types of other programs' files.
enum class FileType : uint8_t { f32, bf16, f16 };
constexpr size_t file_type_size(FileType type) {
  return type == FileType::f32 ? 4 : 2;
}

struct StoredTensor {
  int file = 0;
  uint64_t offset = 0;  ///< of the first byte, in the file
  FileType type = FileType::f32;
  std::vector<int64_t> shape;

  int64_t numel() const;
};

class TensorFiles {
 public:
  TensorFiles() = default;
  ~TensorFiles();
  TensorFiles(TensorFiles&&) noexcept;
  TensorFiles& operator=(TensorFiles&&) = delete;

  /// Opens a file and returns its number. UserError when it cannot be opened.
  int open(const std::filesystem::path& path);
  /// Opens a safetensors file and adds its tensors of the types above. Others are kept by name alone (untyped()).
  void add_safetensors(const std::filesystem::path& path);
  /// UserError when there is one of this name.
  void add(const std::string& name, StoredTensor tensor);

  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  /// Tensors of other types (masks of booleans, quantized weights), by name: their type.
  const std::map<std::string, std::string, std::less<>>& untyped() const { return untyped_; }
  const StoredTensor* find(std::string_view name) const;
  std::string path_of(const StoredTensor& tensor) const;
  uint64_t bytes_of_file(int file) const;

  /// Elements [first, first + count) as f32 or bf16. F16 and BF16 are widened to f32; the other way is not offered.
  /// UserError when the file is cut short or cannot be read.
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

/// out[i] = the FP32 value of element i, which lies in the second half of out's own `4 * count` bytes.
void widen_bf16_in_place(std::byte* out, int64_t count);
void widen_f16_in_place(std::byte* out, int64_t count);

}  // namespace te::convert
