#include "train/log_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/error.h"
#include "core/file.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 64 << 10;

[[noreturn]] void refuse(const fs::path& path, const std::string& reason) {
  user_error("logging.directory: {}: {}; check the folder's permissions", path.string(), reason);
}

[[noreturn]] void refuse(const fs::path& path) {
  refuse(path, std::strerror(errno));
}

/// Reads the complete lines of a file backward.
class LinesFromEnd {
 public:
  LinesFromEnd(const File& file, const fs::path& path)
      : file_(file.descriptor()), path_(path), begin_(static_cast<int64_t>(file.bytes())) {}
  /// Returns the previous line without its newline; false at the start of the file. Text after the last newline is
  /// ignored.
  bool next(std::string_view& line, int64_t& end) {
    const size_t newline = find_newline();
    if (newline == std::string::npos) return false;
    text_.resize(newline);
    end = begin_ + static_cast<int64_t>(newline) + 1;
    const size_t before = find_newline();
    const size_t first = before == std::string::npos ? 0 : before + 1;
    line_ = text_.substr(first);
    text_.resize(first);
    line = line_;
    return true;
  }

 private:
  size_t find_newline() {
    size_t found = text_.rfind('\n');
    while (found == std::string::npos && begin_ > 0) {
      const int64_t bytes = std::min(kBlock, begin_);
      std::string block(static_cast<size_t>(bytes), '\0');
      if (::pread(file_, block.data(), block.size(), begin_ - bytes) != bytes) refuse(path_);
      begin_ -= bytes;
      text_.insert(0, block);
      found = text_.rfind('\n', static_cast<size_t>(bytes));
    }
    return found;
  }

  int file_;
  const fs::path& path_;
  int64_t begin_;     ///< position of text_ in the file
  std::string text_;  ///< up to the end of the line before the last one returned
  std::string line_;
};

/// Rewrites the log with a header.
void add_header(const fs::path& path, std::string_view header) {
  const fs::path aside = path.string() + ".tmp";
  {
    File in(path), out(aside, O_WRONLY | O_CREAT | O_TRUNC);
    if (!in.is_open()) refuse(path, in.error());
    if (!out.is_open()) refuse(aside, out.error());
    std::string block(kBlock, '\0');
    bool written = out.write_all(header);
    for (int64_t got = 0; written && (got = in.read(block.data(), block.size())) > 0;)
      written = out.write_all(std::string_view(block).substr(0, static_cast<size_t>(got)));
    if (!written || ::fsync(out.descriptor()) != 0) {
      const int error = errno;
      ::unlink(aside.c_str());
      errno = error;
      refuse(path);
    }
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) refuse(path);
}

/// A descriptor that appends to the log, which has the header or is empty.
int open_log(const fs::path& path, std::string_view header) {
  {
    File probe(path, O_RDWR | O_CREAT);
    if (!probe.is_open()) refuse(path, probe.error());
    if (probe.bytes() > 0 && probe.read_at(0, header.size()) != header) add_header(path, header);
  }
  File file(path, O_WRONLY | O_APPEND);
  if (!file.is_open()) refuse(path, file.error());
  return file.release();
}

}  // namespace

int64_t last_logged_step(const fs::path& path, StepOf step_of) {
  const File file(path);
  if (!file.is_open()) return 0;
  LinesFromEnd lines(file, path);
  std::string_view line;
  int64_t end = 0;
  while (lines.next(line, end))
    if (const int64_t step = step_of(line); step >= 0) return step;
  return 0;
}

int64_t truncate_log(const fs::path& path, int64_t last_step, StepOf step_of) {
  const File file(path, O_RDWR);
  if (file.is_missing()) return 0;
  if (!file.is_open()) refuse(path, file.error());
  LinesFromEnd lines(file, path);
  std::string_view line;
  int64_t end = 0, kept = 0, dropped = 0;
  while (lines.next(line, end)) {
    const int64_t step = step_of(line);
    if (step >= 0 && step <= last_step) {
      kept = end;
      break;
    }
    ++dropped;
  }
  if (kept < static_cast<int64_t>(file.bytes()) && ::ftruncate(file.descriptor(), kept) != 0) refuse(path);
  return dropped;
}

fs::path rotate_log(const fs::path& path) {
  for (int number = 1;; ++number) {
    const fs::path aside = path.string() + "." + std::to_string(number);
    if (std::error_code ignored; fs::exists(fs::symlink_status(aside, ignored))) continue;
    if (::rename(path.c_str(), aside.c_str()) != 0) refuse(path);
    return aside;
  }
}

LogFile::LogFile(const fs::path& path, std::string_view header)
    : file_(path, open_log(path, header), "lines") {
  if (std::error_code ignored; fs::file_size(path, ignored) == 0) append(header);
}

void LogFile::truncated(int64_t last_step, StepOf step_of) {
  file_.truncated(
      [&](std::string_view line) { return step_of(line.substr(0, line.size() - 1)) <= last_step; });
}

void LogFile::append(std::string_view lines) {
  while (!lines.empty()) {
    const size_t length = std::min(lines.find('\n'), lines.size() - 1) + 1;
    file_.append(std::string(lines.substr(0, length)));
    lines.remove_prefix(length);
  }
}

}  // namespace te::train
