// Reads the lines of a file in bounded memory: long lines are returned in parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/readers/byte_stream.h"

namespace te::text {

class LineReader {
 public:
  /// A line with its line break, or a part of about kPart bytes of a longer line. The view is valid until the next
  /// call.
  struct Line {
    std::string_view text;
    bool begins = true, ends = true;  ///< whether this part begins and ends the line
  };
  static constexpr size_t kPart = size_t{1} << 20;

  explicit LineReader(const std::string& path) : stream_(path), buffer_(kPart) {}

  /// As ByteStream::peek(); must be called before the first line is read.
  std::string_view peek(size_t size) { return stream_.peek(size); }
  bool next(Line* line);  ///< false at the end
  /// The complete next line. UserError if a long line exceeds 1 GiB or contains a NUL byte.
  bool next_full_line(std::string_view* line);

  std::string place() const;  ///< "FILE:LINE" of the line returned last
  int64_t take_bytes();       ///< bytes of the file read since the last call

 private:
  bool fill();

  ByteStream stream_;
  std::vector<char> buffer_;
  std::string whole_;  // a line that next_full_line() has assembled from parts
  size_t begin_ = 0, end_ = 0;
  bool in_line_ = false;
  int64_t number_ = 0, bytes_taken_ = 0;
};

/// `line` without a trailing \n or \r\n.
std::string_view without_line_break(std::string_view line);

}  // namespace te::text
