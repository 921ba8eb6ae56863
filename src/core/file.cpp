#include "core/file.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

namespace te {
namespace {

std::string reason_of(int error) {
  return std::generic_category().message(error);
}

const char* name_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

File::File(const std::filesystem::path& path, int flags, FileKind kind, unsigned mode) {
  // O_NONBLOCK has no effect on a regular file.
  descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
  const int reason = errno;
  struct stat info = {};
  const bool known = descriptor_ >= 0 ? ::fstat(descriptor_, &info) == 0 : ::stat(path.c_str(), &info) == 0;
  regular_ = known && S_ISREG(info.st_mode);
  bytes_ = regular_ ? static_cast<uint64_t>(info.st_size) : 0;
  const bool suits = regular_ || (kind == FileKind::input && !S_ISDIR(info.st_mode));
  if (descriptor_ >= 0 && suits) return;
  missing_ = descriptor_ < 0 && reason == ENOENT;
  // For a pipe without a reader and for a socket, open() reports "No such device or address".
  error_ =
      known && !suits ? fmt::format("is {}, not a regular file", name_of(info.st_mode)) : reason_of(reason);
  if (descriptor_ >= 0) ::close(release());
}

File File::standard_input() {
  File file;
  file.descriptor_ = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  if (file.descriptor_ < 0) file.error_ = reason_of(errno);
  return file;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::swap(File& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(regular_, other.regular_);
  std::swap(missing_, other.missing_);
  std::swap(bytes_, other.bytes_);
  std::swap(error_, other.error_);
}

bool File::fail(std::string error) {
  error_ = std::move(error);
  return false;
}

int64_t File::read(void* to, size_t bytes) {
  for (;;) {
    pollfd waiting = {descriptor_, POLLIN, 0};  // waits for data, and for the first writer of a pipe
    if (!regular_ && ::poll(&waiting, 1, -1) < 0) {
      fail(errno == EINTR ? "interrupted by a signal before a writer opened it" : reason_of(errno));
      return -1;
    }
    const ssize_t count = ::read(descriptor_, to, bytes);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) fail(reason_of(errno));
    return count;
  }
}

bool File::read_all(std::string& text, uint64_t max_bytes) {
  // The size is only a hint: files of /proc have size 0, and another program may be writing.
  std::vector<char> part(std::clamp<uint64_t>(bytes_ + 1, uint64_t{4} << 10, uint64_t{1} << 20));
  for (;;) {
    const int64_t count = read(part.data(), part.size());
    if (count <= 0) return count == 0;
    if (text.size() + static_cast<uint64_t>(count) > max_bytes)
      return fail(fmt::format("is larger than {} MiB", std::max<uint64_t>(1, max_bytes >> 20)));
    text.append(part.data(), static_cast<size_t>(count));
  }
}

bool File::write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {  // a full pipe
      pollfd waiting = {descriptor_, POLLOUT, 0};
      ::poll(&waiting, 1, -1);
      continue;
    }
    if (written < 0) return fail(reason_of(errno));
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

std::string File::read_at(uint64_t offset, uint64_t count) {
  std::string text(count, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got =
        ::pread(descriptor_, text.data() + done, text.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(reason_of(errno));
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

bool is_file_at(int descriptor, const std::filesystem::path& path) {
  struct stat opened = {}, named = {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

FileText read_file(const std::filesystem::path& path, uint64_t max_bytes, FileKind kind) {
  FileText result;
  File file(path, O_RDONLY, kind);
  result.missing = file.is_missing();
  if (!file.is_open() || !file.read_all(result.text, max_bytes)) {
    result.error = file.error();
    result.text.clear();
  }
  return result;
}

}  // namespace te
