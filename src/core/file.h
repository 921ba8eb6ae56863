// Opens files that a user or another program can replace. Opening a pipe must not block: a blocking open waits for a
// writer, and a signal whose handler only sets a flag does not end the wait.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace te {

/// Kinds of files that a path may lead to.
enum class FileKind : uint8_t {
  regular,  ///< only a regular file: entries of folders, and paths that come from a file
  input,  ///< also a pipe or a device: a path given as an option, such as /dev/stdin or a shell's <(command)
};

/// An open file, closed by its destructor. Failures are reported by error(), not by exceptions.
class File {
 public:
  File() = default;
  /// Does not block. `flags` and `mode` are those of open(2).
  explicit File(const std::filesystem::path& path, int flags = O_RDONLY, FileKind kind = FileKind::regular,
                unsigned mode = 0666);
  static File standard_input();
  ~File();
  File(File&& other) noexcept { swap(other); }
  File& operator=(File&& other) noexcept {
    File(std::move(other)).swap(*this);
    return *this;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }
  uint64_t bytes() const { return bytes_; }     ///< size of a regular file when it was opened
  bool is_missing() const { return missing_; }  ///< there is no such file
  /// The reason of the last failure, for example "Permission denied" or "is a pipe, not a regular file".
  const std::string& error() const { return error_; }

  /// Reads the next bytes; returns 0 at the end, -1 after a failure. Waits for a pipe's writer until a signal arrives.
  int64_t read(void* to, size_t bytes);
  /// Appends the rest of the file to `text`. False after a failure, also if `text` would exceed `max_bytes`.
  bool read_all(std::string& text, uint64_t max_bytes);
  /// False after a failure; a part may have been written.
  bool write_all(std::string_view text);
  /// Reads `count` bytes at `offset`; fewer at the end of the file.
  std::string read_at(uint64_t offset, uint64_t count);

 private:
  void swap(File& other) noexcept;
  bool fail(std::string error);

  int descriptor_ = -1;
  bool regular_ = false, missing_ = false;
  uint64_t bytes_ = 0;
  std::string error_;
};

/// Whether `path` leads to the open file. Another process may have renamed or removed the file since it was opened.
bool is_file_at(int descriptor, const std::filesystem::path& path);

constexpr uint64_t kMaxTextFileBytes = uint64_t{64} << 20;
constexpr uint64_t kAnySize = UINT64_MAX;

/// A file's content, or why it could not be read.
struct FileText {
  std::string text;
  std::string error;     ///< empty: the text was read
  bool missing = false;  ///< there is no such file
  explicit operator bool() const { return error.empty(); }
};
FileText read_file(const std::filesystem::path& path, uint64_t max_bytes = kMaxTextFileBytes,
                   FileKind kind = FileKind::regular);

}  // namespace te
