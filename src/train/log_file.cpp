#include "train/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/error.h"
#include "core/log.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 64 << 10;

/// A file descriptor that is closed at the end of a scope.
struct File {
  int number;
  ~File() {
    if (number >= 0) ::close(number);
  }
};

[[noreturn]] void refuse(const fs::path& path) {
  user_error("logging.directory: {}: {}; check the folder's permissions", path.string(),
             std::strerror(errno));
}

int64_t size_of(int file, const fs::path& path) {
  struct stat info = {};
  if (::fstat(file, &info) != 0) refuse(path);
  if (!S_ISREG(info.st_mode)) user_error("logging.directory: {}: is not a regular file", path.string());
  return info.st_size;
}

/// Whole lines of a file, the last one first.
class LinesFromEnd {
 public:
  LinesFromEnd(int file, const fs::path& path) : file_(file), path_(path), begin_(size_of(file, path)) {}
  /// The line before the last one that was returned, without newline; false at the file's beginning. What stands behind
  /// the last newline is no line.
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
  int64_t begin_;     ///< where text_ begins in the file
  std::string text_;  ///< up to the end of the line before the last one returned
  std::string line_;
};

/// Writes all, or as much as goes; returns the bytes written.
size_t write_some(int file, std::string_view text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  return done;
}

bool begins_with(int file, std::string_view header) {
  std::string text(header.size(), '\0');
  return ::pread(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) && text == header;
}

/// The log anew, with its header before it.
void add_header(const fs::path& path, std::string_view header) {
  const fs::path aside = path.string() + ".tmp";
  {
    const File in{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    const File out{::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    if (in.number < 0 || out.number < 0) refuse(path);
    std::string block(kBlock, '\0');
    size_t bytes = 0;
    bool written = write_some(out.number, header) == header.size();
    for (ssize_t got = 0; written && (got = ::read(in.number, block.data(), block.size())) > 0;) {
      bytes = static_cast<size_t>(got);
      written = write_some(out.number, std::string_view(block).substr(0, bytes)) == bytes;
    }
    if (!written || ::fsync(out.number) != 0) {
      const int error = errno;
      ::unlink(aside.c_str());
      errno = error;
      refuse(path);
    }
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) refuse(path);
}

}  // namespace

int64_t last_logged_step(const fs::path& path, StepOf step_of) {
  const File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) return 0;
  LinesFromEnd lines(file.number, path);
  std::string_view line;
  int64_t end = 0;
  while (lines.next(line, end))
    if (const int64_t step = step_of(line); step >= 0) return step;
  return 0;
}

int64_t cut_log(const fs::path& path, int64_t last_step, StepOf step_of) {
  const File file{::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) {
    if (errno == ENOENT) return 0;
    refuse(path);
  }
  LinesFromEnd lines(file.number, path);
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
  if (kept < size_of(file.number, path) && ::ftruncate(file.number, kept) != 0) refuse(path);
  return dropped;
}

fs::path set_log_aside(const fs::path& path) {
  for (int number = 1;; ++number) {
    const fs::path aside = path.string() + "." + std::to_string(number);
    if (std::error_code ignored; fs::exists(fs::symlink_status(aside, ignored))) continue;
    if (::rename(path.c_str(), aside.c_str()) != 0) refuse(path);
    return aside;
  }
}

LogFile::LogFile(const fs::path& path, std::string_view header) : path_(path) {
  const File probe{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666)};
  if (probe.number < 0) refuse(path);
  const int64_t size = size_of(probe.number, path);
  const bool wants_header = !header.empty() && !begins_with(probe.number, header);
  if (wants_header && size > 0) add_header(path, header);
  file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) refuse(path);
  if (wants_header && size == 0) append(header);
}

LogFile::~LogFile() {
  if (!pending_.empty() && !write_pending()) {
    spdlog::warn("{}: {} lines are lost: {}", path_.string(),
                 dropped_ + std::count(pending_.begin(), pending_.end(), '\n'), std::strerror(errno));
  }
  ::close(file_);
}

bool LogFile::write_pending() {
  const size_t written = write_some(file_, pending_);
  if (written > 0) complete_ = pending_[written - 1] == '\n';
  pending_.erase(0, written);
  return pending_.empty();
}

// Whole lines go; the rest of a line that is half written stays.
void LogFile::drop_oldest() {
  const size_t keep = complete_ ? 0 : pending_.find('\n') + 1;
  size_t end = keep;
  while (pending_.size() - (end - keep) > kMostPending) {
    end = pending_.find('\n', end) + 1;
    ++dropped_;
  }
  pending_.erase(keep, end - keep);
}

void LogFile::append(std::string_view lines) {
  pending_ += lines;
  if (!write_pending()) {
    const int error = errno;
    if (failing_++ == 0) {
      spdlog::warn(
          "{}: could not be written: {}; the run goes on, and its lines wait in memory until there is room",
          path_.string(), std::strerror(error));
    }
    drop_oldest();
    return;
  }
  if (failing_ > 0) {
    spdlog::info("{}: is written again; {} lines are missing", path_.string(), dropped_);
    failing_ = dropped_ = 0;
  }
}

}  // namespace te::train
