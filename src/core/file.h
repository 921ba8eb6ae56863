// Opening files that a user or another program can replace. A pipe under the name of a file must not make a program
// wait: opening one blocks until a writer comes, and a signal whose handler only sets a flag does not end that.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace te {

/// What a path may lead to.
enum class FileKind : uint8_t {
  regular,  ///< a regular file alone: names in folders, and what a file names
  input,    ///< also a pipe or a device: a path given as an option, as /dev/stdin or a shell's <(command)
};

/// An open file, closed at the end of its scope. Opening and reading fail without an exception.
class File {
 public:
  File() = default;
  /// Returns at once. `flags` and `mode` as of open(2).
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
  bool is_regular() const { return regular_; }
  uint64_t bytes() const { return bytes_; }     ///< of a regular file when it was opened
  bool is_missing() const { return missing_; }  ///< there is no such file
  /// What was wrong with the last call that failed, e.g. "Permission denied" or "is a pipe, not a regular file".
  const std::string& error() const { return error_; }

  /// The next bytes; 0 at the end, -1 after a failure. Waits for a pipe's writer, until a signal is handled.
  int64_t read(void* to, size_t bytes);
  /// All that follows, unless it is more than `most` bytes; false after a failure.
  bool read_all(std::string& text, uint64_t most);
  /// False after a failure; a part may be written then.
  bool write_all(std::string_view text);
  /// `count` bytes at `offset`; fewer where the file ends.
  std::string read_at(uint64_t offset, uint64_t count);

 private:
  void swap(File& other) noexcept;
  bool fail(std::string error);

  int descriptor_ = -1;
  bool regular_ = false, missing_ = false;
  uint64_t bytes_ = 0;
  std::string error_;
};

constexpr uint64_t kLargestTextFile = uint64_t{64} << 20;
constexpr uint64_t kAnySize = UINT64_MAX;

/// A file's content, or why there is none.
struct FileText {
  std::string text;
  std::string error;     ///< empty: the text was read
  bool missing = false;  ///< there is no such file
  explicit operator bool() const { return error.empty(); }
};
FileText read_file(const std::filesystem::path& path, uint64_t most = kLargestTextFile,
                   FileKind kind = FileKind::regular);

}  // namespace te
