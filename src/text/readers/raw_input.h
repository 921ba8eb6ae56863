// Reads a file descriptor in blocks, and the interface of the decompressors that use it. Private to the folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"

namespace te::text {

class RawInput {
 public:
  explicit RawInput(const std::string& path);
  RawInput(const RawInput&) = delete;
  RawInput& operator=(const RawInput&) = delete;

  /// The bytes that are read but not consumed; reads more if there are none. Empty only at the end of the file.
  std::span<const uint8_t> peek();
  /// As peek(), with at least `count` bytes unless the file ends earlier.
  std::span<const uint8_t> peek(size_t count);
  void consume(size_t count);

  const std::string& name() const { return name_; }
  int64_t bytes_consumed() const { return bytes_consumed_; }

 private:
  bool fill();

  std::string name_;
  File file_;
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t bytes_consumed_ = 0;
};

class Decompressor {
 public:
  virtual ~Decompressor() = default;
  virtual size_t read(RawInput& input, char* buffer, size_t size) = 0;  ///< 0 only at the end
  virtual const char* name() const = 0;
};

/// The decompressor for data that begins with `head` (6 bytes, or all of a shorter file); null for uncompressed data.
std::unique_ptr<Decompressor> make_decompressor(std::span<const uint8_t> head);

}  // namespace te::text
