#include "text/readers/line_reader.h"

#include <cstring>

#include "core/error.h"

namespace te::text {

bool LineReader::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const size_t count = stream_.read(buffer_.data() + end_, buffer_.size() - end_);
  end_ += count;
  return count > 0;
}

bool LineReader::next(Line* line) {
  size_t searched = begin_;
  while (true) {
    const char* from = buffer_.data() + searched;
    const void* found = std::memchr(from, '\n', end_ - searched);
    const bool full = begin_ == 0 && end_ == buffer_.size();
    size_t stop = end_;
    if (found != nullptr) {
      stop = static_cast<size_t>(static_cast<const char*>(found) - buffer_.data()) + 1;
    } else if (!full) {
      searched = end_ - begin_;  // fill() moves what is left to the front
      if (fill()) continue;
      if (begin_ == end_) return false;
      stop = end_;
    }
    *line = {{buffer_.data() + begin_, stop - begin_}, !in_line_, found != nullptr || !full};
    if (line->begins) ++number_;
    in_line_ = !line->ends;
    begin_ = stop;
    return true;
  }
}

bool LineReader::next_full_line(std::string_view* line) {
  constexpr size_t kLongest = size_t{1} << 30;
  Line part;
  if (!next(&part)) return false;
  *line = part.text;
  if (part.ends) return true;
  whole_.clear();
  for (bool more = true; more; more = !part.ends && next(&part)) {
    if (part.text.find('\0') != std::string_view::npos)
      user_error("{}: contains a NUL byte, so it is not text; leave the file out", place());
    whole_ += part.text;
    if (whole_.size() > kLongest) user_error("{}: the line is longer than 1 GiB; split it", place());
  }
  *line = whole_;
  return true;
}

std::string LineReader::place() const {
  return fmt::format("{}:{}", stream_.name(), number_);
}

int64_t LineReader::take_bytes() {
  const int64_t taken = stream_.file_bytes_read() - bytes_taken_;
  bytes_taken_ += taken;
  return taken;
}

std::string_view without_line_break(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace te::text
