#include "text/readers/input_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "text/readers/byte_stream.h"

namespace te::text {
namespace {

namespace fs = std::filesystem;

bool looks_binary(const std::string& path) {
  constexpr size_t kHead = 65536;
  std::vector<char> head(kHead);
  size_t filled = 0;
  try {
    ByteStream stream(path);
    while (filled < kHead) {
      const size_t count = stream.read(head.data() + filled, kHead - filled);
      if (count == 0) break;
      filled += count;
    }
  } catch (const UserError&) {
    return false;  // the reader will report the reason
  }
  return std::memchr(head.data(), 0, filled) != nullptr;
}

/// Refuses Parquet, Arrow and Feather files, which begin with the name of their format.
void refuse_tables(const std::string& path) {
  const std::string head = File(path).read_at(0, 8);
  const std::string name = without_compression_suffix(path);
  const bool is_table =
      head.starts_with("PAR1") || head.starts_with("ARROW1") || head.starts_with("FEA1") ||
      ((name.ends_with(".parquet") || name.ends_with(".arrow")) && head.find('\0') != std::string::npos);
  if (!is_table) return;
  user_error(
      "{}: Parquet and Arrow tables are not supported; convert the file: scripts/parquet_to_jsonl.py {} | "
      "te-data COMMAND --input - --format jsonl ...",
      path, path);
}

void list_folder(const std::string& folder, InputFiles& files) {
  std::error_code error;
  std::vector<std::string> found;
  std::string listed = folder;  // what an error of the iterator refers to
  fs::recursive_directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.')) {
      if (it->is_directory(ignored)) it.disable_recursion_pending();
      continue;
    }
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) listed = it->path().string();
    if (!it->is_regular_file(ignored)) {
      files.skipped_links += it->is_symlink(ignored) ? 1 : 0;
      continue;
    }
    refuse_tables(it->path().string());
    if (looks_binary(it->path().string())) {
      ++files.skipped;
    } else {
      found.push_back(it->path().string());
    }
  }
  if (error) user_error("{}: cannot be listed ({}); correct its rights or --input", listed, error.message());
  if (found.empty()) user_error("{}: contains no text file; correct --input", folder);
  std::ranges::sort(found);
  files.paths.insert(files.paths.end(), found.begin(), found.end());
}

}  // namespace

InputFiles list_input_files(const std::vector<std::string>& inputs) {
  InputFiles files;
  for (const std::string& input : inputs) {
    std::error_code error;
    const fs::file_status status = input == "-" ? fs::file_status() : fs::status(input, error);
    if (input != "-" && !fs::exists(status)) user_error("{}: no such file or folder; correct --input", input);
    if (fs::is_directory(status)) {
      list_folder(input, files);
    } else {
      if (fs::is_regular_file(status)) refuse_tables(input);
      files.paths.push_back(input);
    }
  }
  for (const std::string& path : files.paths) {
    std::error_code error;
    const bool regular = path != "-" && fs::is_regular_file(path, error);
    const auto size = regular ? fs::file_size(path, error) : 0;
    if (!regular || error) {
      files.bytes = -1;
      break;
    }
    files.bytes += static_cast<int64_t>(size);
  }
  return files;
}

}  // namespace te::text
