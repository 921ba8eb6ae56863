// Files that command-line options name, such as `--json FILE`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/file.h"

namespace te::apps {

/// Errors are UserErrors that name the option, the file and the reason. Opening does not block: a named pipe needs a
/// reader.
class OutputFile {
 public:
  enum class Appears : uint8_t {
    when_complete,  ///< under a temporary name until finish(), so that a failure keeps the old file
    at_once,        ///< readers can follow it
  };
  OutputFile(std::string option, const std::string& path, Appears appears = Appears::when_complete);
  ~OutputFile();  ///< removes an incomplete file
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view text);
  void finish();

 private:
  [[noreturn]] void fail(const std::string& reason) const;

  std::string option_;
  std::filesystem::path path_, temporary_;  ///< temporary_: empty if the file is written directly
  File file_;
};

/// For writers that rename a finished file to its name: `path` with symbolic links followed. UserError that names the
/// option if the result is neither a regular file nor missing: such a writer would replace a device or pipe by a file.
std::filesystem::path replaceable_file(const std::string& option, const std::filesystem::path& path);

}  // namespace te::apps
