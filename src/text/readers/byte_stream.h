// The bytes of a file or of standard input, decompressed on the way: gzip, zstd and xz are known by their first
// bytes, whatever the file is called. Several compressed parts one after the other are one text, as for the
// tools of those formats. Memory does not depend on the file's size.
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

  /// Reads 1 to `size` bytes of text; 0 only at the end. UserError for a file that cannot be read, and for
  /// compressed data that is damaged or ends early.
  size_t read(char* buffer, size_t size);

  /// The first bytes of the text, at most `size`, which read() gives once more. Before the first read().
  std::string_view peek(size_t size);

  const std::string& name() const;  ///< the path, or "(standard input)"
  int64_t file_bytes_read() const;  ///< of the file as it lies there, compressed or not
  const char* compression() const;  ///< "gzip", "zstd", "xz", or "" for plain bytes

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The name without .gz, .zst or .xz: what the decompressed file would be called.
std::string without_compression_suffix(const std::string& path);

}  // namespace te::text
