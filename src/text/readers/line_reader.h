// Lines of a stream. A line of any length passes in bounded memory: longer ones come in parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/readers/byte_stream.h"

namespace te::text {

class LineReader {
 public:
  /// A line with its break, or a part of one of about kPart bytes. The view lives until the next call.
  struct Line {
    std::string_view text;
    bool begins = true, ends = true;  ///< whether this part begins and ends the line
  };
  static constexpr size_t kPart = size_t{1} << 20;

  explicit LineReader(const std::string& path) : stream_(path), buffer_(kPart) {}

  /// As ByteStream::peek(), before the first line.
  std::string_view peek(size_t size) { return stream_.peek(size); }
  bool next(Line* line);  ///< false at the end
  /// The next line whole. UserError when it is longer than a GiB.
  bool next_full_line(std::string_view* line);

  std::string place() const;  ///< "FILE:LINE" of the line returned last
  int64_t take_bytes();       ///< of the file, read since the last call

 private:
  bool fill();

  ByteStream stream_;
  std::vector<char> buffer_;
  std::string whole_;  // of next_whole(), for lines that came in parts
  size_t begin_ = 0, end_ = 0;
  bool in_line_ = false;
  int64_t number_ = 0, bytes_taken_ = 0;
};

/// `line` without \n or \r\n at its end.
std::string_view without_line_break(std::string_view line);

}  // namespace te::text
