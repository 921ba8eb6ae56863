#include "common/output_file.h"

#include <fcntl.h>

#include <system_error>
#include <utility>

#include "core/error.h"

namespace te::apps {

namespace fs = std::filesystem;

OutputFile::OutputFile(std::string option, const std::string& path, Appears appears)
    : option_(std::move(option)), path_(path) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path_, ignored).type();
  // Pipes, devices and links (/dev/stdout) keep their names.
  const bool replaceable = type == fs::file_type::regular || type == fs::file_type::not_found;
  if (appears == Appears::when_complete && replaceable) temporary_ = path + ".part";
  file_ = File(temporary_.empty() ? path_ : temporary_, O_WRONLY | O_CREAT | O_TRUNC, FileKind::input);
  if (!file_.is_open()) {
    temporary_.clear();
    fail(file_.error());
  }
}

OutputFile::~OutputFile() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove(temporary_, ignored);
}

void OutputFile::write(std::string_view text) {
  if (!file_.write_all(text)) fail(file_.error());
}

void OutputFile::finish() {
  file_ = {};
  if (temporary_.empty()) return;
  std::error_code error;
  fs::rename(temporary_, path_, error);
  if (error) fail(error.message());
  temporary_.clear();
}

void OutputFile::fail(const std::string& reason) const {
  user_error("{} {}: cannot be written ({}); check the folder's permissions and free space", option_,
             path_.string(), reason);
}

fs::path replaceable_file(const std::string& option, const fs::path& path) {
  std::error_code error;
  fs::path file = path;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::regular) {
    file = fs::canonical(path, error);
  } else if (type == fs::file_type::not_found) {
    while (fs::is_symlink(file, error)) file = file.parent_path() / fs::read_symlink(file, error);
    error.clear();
  } else if (type != fs::file_type::none) {
    user_error("{} {}: is not a regular file; name one, or a file that does not exist", option,
               path.string());
  }
  if (error) user_error("{} {}: cannot be written: {}", option, path.string(), error.message());
  return file;
}

}  // namespace te::apps
