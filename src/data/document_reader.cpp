// Reads line by line; a text document grows until its separator or the end of the file.
#include "data/document_reader.h"

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace te {
namespace {

namespace fs = std::filesystem;

/// Lines of a file or of standard input, with their line break. The view lives until the next call.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : path_(path == "-" ? "(standard input)" : path) {
    file_ = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
    if (file_ == nullptr) user_error("{}: cannot be opened ({}); mend the path", path_, std::strerror(errno));
  }
  ~LineReader() {
    if (file_ != stdin) std::fclose(file_);
    std::free(buffer_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool next(std::string_view* line) {
    const ssize_t length = ::getline(&buffer_, &capacity_, file_);
    if (length < 0) {
      if (std::ferror(file_) != 0) {
        user_error("{}: cannot be read ({}); mend the path", path_, std::strerror(errno));
      }
      return false;
    }
    ++number_;
    *line = {buffer_, static_cast<size_t>(length)};
    return true;
  }

  std::string place() const { return fmt::format("{}:{}", path_, number_); }

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
  char* buffer_ = nullptr;
  size_t capacity_ = 0;
  int64_t number_ = 0;
};

using OnDocument = std::function<void(std::string_view, int64_t)>;

std::string_view without_line_break(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

void read_text(LineReader& lines, const std::string& separator, const OnDocument& on_document) {
  std::string document;
  std::string_view line;
  int64_t bytes = 0;
  const auto flush = [&] {
    if (!document.empty()) {
      on_document(document, bytes);
      bytes = 0;
    }
    document.clear();
  };
  while (lines.next(&line)) {
    bytes += static_cast<int64_t>(line.size());
    if (!separator.empty() && without_line_break(line) == separator) {
      flush();
    } else if (line.find('\0') != std::string_view::npos) {
      user_error("{}: holds a NUL byte, so it is not text; leave the file out, or decompress it first",
                 lines.place());
    } else {
      document += line;
    }
  }
  flush();
}

std::string jsonl_document(const LineReader& lines, std::string_view line, const std::string& field) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    user_error("{}: not valid JSON at byte {} of the line; every line must be one JSON object", lines.place(),
               error.byte);
  }
  if (!object.is_object()) {
    user_error("{}: holds a JSON {}, not an object; every line must be one JSON object", lines.place(),
               object.type_name());
  }
  const auto value = object.find(field);
  if (value == object.end()) {
    std::string names;
    for (const auto& item : object.items()) names += (names.empty() ? "" : ", ") + item.key();
    user_error("{}: has no field `{}`; name the text with --jsonl-field, this line has: {}", lines.place(),
               field, names.empty() ? "no field" : names);
  }
  if (!value->is_string()) {
    user_error("{}: field `{}` is a {}, not a string; name the text with --jsonl-field", lines.place(), field,
               value->type_name());
  }
  return value->get<std::string>();
}

void read_jsonl(LineReader& lines, const std::string& field, const OnDocument& on_document) {
  std::string_view line;
  int64_t bytes = 0;
  while (lines.next(&line)) {
    bytes += static_cast<int64_t>(line.size());
    line = without_line_break(line);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string document = jsonl_document(lines, line, field);
    if (document.empty()) continue;
    on_document(document, bytes);
    bytes = 0;
  }
}

bool looks_binary(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return false;  // reading it will name the reason
  char head[65536];
  const size_t count = std::fread(head, 1, sizeof(head), file);
  std::fclose(file);
  return std::memchr(head, 0, count) != nullptr;
}

}  // namespace

std::vector<std::string> list_input_files(const std::string& input, int64_t* skipped) {
  std::error_code error;
  if (input == "-") return {input};
  const fs::file_status status = fs::status(input, error);
  if (!fs::exists(status)) user_error("{}: no such file or folder; mend --input", input);
  if (!fs::is_directory(status)) return {input};
  std::vector<std::string> files;
  fs::recursive_directory_iterator it(input, fs::directory_options::skip_permission_denied, error), end;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.')) {
      if (it->is_directory(ignored)) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(ignored)) continue;
    if (looks_binary(it->path().string())) {
      ++*skipped;
    } else {
      files.push_back(it->path().string());
    }
  }
  if (error) user_error("{}: cannot be listed ({}); mend --input", input, error.message());
  if (files.empty()) user_error("{}: holds no text file; mend --input", input);
  std::sort(files.begin(), files.end());
  return files;
}

void read_documents(const std::string& path, const DocumentOptions& options, const OnDocument& on_document) {
  LineReader lines(path);
  const bool named_jsonl = path.ends_with(".jsonl") || path.ends_with(".ndjson");
  if (options.format == TextFormat::kJsonl || (options.format == TextFormat::kAuto && named_jsonl)) {
    read_jsonl(lines, options.jsonl_field, on_document);
  } else {
    read_text(lines, options.separator, on_document);
  }
}

}  // namespace te
