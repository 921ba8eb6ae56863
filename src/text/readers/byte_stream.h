// The bytes of a file or of standard input, decompressed while reading. gzip, zstd and xz are recognized by their first
// bytes, independent of the file's name. Concatenated compressed parts are read as one text, as the tools of these
// formats do. A UTF-8 byte order mark at the beginning is
// not part of the text. Memory use does not depend on the file's size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace te::text {

class ByteStream {
 public:
  /// path "-" is standard input. UserError when it cannot be opened.
  explicit ByteStream(const std::string& path);
  ~ByteStream();
  ByteStream(ByteStream&&) noexcept;
  ByteStream& operator=(ByteStream&&) = delete;

  /// Reads 1 to `size` bytes; returns 0 only at the end. UserError for a file that cannot be read, and for compressed
  /// data that is damaged or truncated.
  size_t read(char* buffer, size_t size);

  /// The first bytes, at most `size`, without consuming them. Must be called before the first read().
  std::string_view peek(size_t size);

  const std::string& name() const;  ///< the path, or "(standard input)"
  int64_t file_bytes_read() const;  ///< bytes of the file as stored, compressed or not

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The name without .gz, .zst or .xz: the name of the decompressed file.
std::string without_compression_suffix(const std::string& path);

}  // namespace te::text
