#include "generate/evaluation/csv.h"

#include "core/error.h"
#include "generate/evaluation/task_files.h"

namespace te::generate {
namespace {

/// Reads the field at `at` and moves `at` to the comma or line break after it, or to the end.
std::string read_field(const std::string& text, size_t& at, int64_t& line, const std::string& place) {
  std::string field;
  if (at >= text.size() || text[at] != '"') {
    const size_t end = std::min(text.find_first_of(",\n", at), text.size());
    field = text.substr(at, end - at);
    at = end;
    if (field.ends_with('\r')) field.pop_back();
    return field;
  }
  for (++at;; ++at) {
    if (at >= text.size()) user_error("{}: a quoted field has no closing quote", place);
    line += text[at] == '\n' ? 1 : 0;
    if (text[at] == '"' && (at + 1 >= text.size() || text[at + 1] != '"')) break;
    if (text[at] == '"') ++at;
    field += text[at];
  }
  const size_t end = std::min(text.find_first_of(",\n", at + 1), text.size());
  field += text.substr(
      at + 1, end - at - 1);  // as in Python's reader, text after the closing quote belongs to the field
  at = end;
  if (field.ends_with('\r')) field.pop_back();
  return field;
}

}  // namespace

std::vector<CsvRow> read_csv(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  std::vector<CsvRow> rows;
  int64_t line = 1;
  for (size_t at = 0; at < text.size(); ++at, ++line) {
    CsvRow row{{}, fmt::format("{}:{}", file.string(), line)};
    for (;; ++at) {
      row.fields.push_back(read_field(text, at, line, row.place));
      if (at >= text.size() || text[at] == '\n') break;
    }
    if (row.fields.size() > 1 || !row.fields[0].empty()) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace te::generate
