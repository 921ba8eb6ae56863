// A text document is collected line by line until its boundary, or until it reaches the size of a chunk.
#include "text/readers/document_reader.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "text/readers/json_records.h"
#include "text/readers/line_reader.h"

namespace te::text {
namespace {

using OnChunk = std::function<void(const DocumentChunk& chunk)>;

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Where to split a text that continues: see DocumentChunk.
size_t split_point(const std::string& text) {
  constexpr size_t kSearch = size_t{1} << 20;
  const size_t lowest = text.size() > kSearch ? text.size() - kSearch : 1;
  for (size_t i = text.size() - 2; i > lowest; --i) {
    if (text[i] == ' ' && is_letter(text[i - 1]) && is_letter(text[i + 1])) return i;
  }
  size_t i = text.size();  // 0x80 to 0xbf continues a character, which has at most 4 bytes
  while (i > text.size() - 4 && (static_cast<unsigned char>(text[i - 1]) & 0xc0) == 0x80) --i;
  return i - 1;
}

class TextDocuments {
 public:
  TextDocuments(LineReader& lines, const DocumentOptions& options, const OnChunk& on_chunk)
      : lines_(lines), options_(options), on_chunk_(on_chunk) {}

  /// Returns the number of boundary lines.
  int64_t read() {
    int64_t boundaries = 0;
    LineReader::Line line;
    while (lines_.next(&line)) {
      if (line.text.find('\0') != std::string_view::npos) {
        user_error("{}: contains a NUL byte, so it is not text; leave the file out, or decompress it first",
                   lines_.place());
      }
      if (line.begins && line.ends && is_boundary(without_line_break(line.text))) {
        end_document();
        ++boundaries;
        continue;
      }
      text_ += line.text;
      if (options_.boundary == DocumentBoundary::kLine && line.ends) end_line_document();
      if (text_.size() >= options_.max_chunk_bytes) end_chunk();
    }
    end_document();
    return boundaries;
  }

 private:
  bool is_boundary(std::string_view line) const {
    switch (options_.boundary) {
      case DocumentBoundary::kSeparator:
        return line == options_.separator;
      case DocumentBoundary::kBlankLine:
      case DocumentBoundary::kLine:
        return line.find_first_not_of(" \t") == std::string_view::npos;
      default:
        return false;
    }
  }

  void end_line_document() {
    text_.resize(without_line_break(text_).size());
    end_document();
  }

  void end_document() {
    if (!text_.empty() || continued_) on_chunk_({text_, true, lines_.take_bytes()});
    text_.clear();
    continued_ = false;
  }

  void end_chunk() {
    const size_t end = split_point(text_);
    on_chunk_({std::string_view(text_).substr(0, end), false, lines_.take_bytes()});
    text_.erase(0, end);
    continued_ = true;
  }

  LineReader& lines_;
  const DocumentOptions& options_;
  const OnChunk& on_chunk_;
  std::string text_;        // the current document since its last chunk
  bool continued_ = false;  // whether a chunk of it has been passed to on_chunk
};

/// Determines the format of a file for which none is given; on_guess gets a message if the content decided it.
TextFormat guess_format(const std::string& path, LineReader& lines, const std::string& field,
                        const std::function<void(const std::string&)>& on_guess) {
  const TextFormat named = format_of_name(path);
  if (named == TextFormat::kJsonl || named == TextFormat::kJson) return named;
  const std::string_view head = lines.peek(kFormatHead);
  // All of the input if the script failed before its first object. The reader of JSON lines refuses it.
  if (named == TextFormat::kAuto && is_script_failure(without_line_break(head))) return TextFormat::kJsonl;
  const ContentFormat content = format_of_content(head, field);
  const bool json = content.format != TextFormat::kText;
  const TextFormat format = json && named == TextFormat::kAuto ? content.format : TextFormat::kText;
  if (!on_guess || (!json && !content.like_json)) return format;
  const std::string name = path == "-" ? "(standard input)" : path;
  if (format == TextFormat::kText) {
    on_guess(fmt::format(
        "{}: read as text, although it begins with {}; if its lines are objects, give --format jsonl", name,
        json ? "JSON objects" : fmt::format("a JSON object (without a field `{}`)", field)));
  } else {
    on_guess(fmt::format("{}: read as {} because of its content; --format text reads it as text", name,
                         format == TextFormat::kJsonl ? "JSON lines" : "JSON objects"));
  }
  return format;
}

}  // namespace

std::optional<int64_t> read_documents(const std::string& path, const DocumentOptions& options,
                                      const OnChunk& on_chunk,
                                      const std::function<void(const std::string&)>& on_bad,
                                      const std::function<void(const std::string&)>& on_guess) {
  LineReader lines(path);
  const TextFormat format = options.format == TextFormat::kAuto
                                ? guess_format(path, lines, options.json_field, on_guess)
                                : options.format;
  if (format == TextFormat::kText) return TextDocuments(lines, options, on_chunk).read();
  const JsonLayout layout = format == TextFormat::kJsonl ? JsonLayout::kLines : JsonLayout::kList;
  int64_t bytes = 0;
  const auto on_record = [&](const JsonRecord& record) {
    bytes += record.bytes;
    const std::string& text = string_field(record, options.json_field, "--jsonl-field");
    if (text.empty()) return;
    bypass_on_bad([&] { on_chunk({text, true, bytes}); });
    bytes = 0;
  };
  read_json_records(lines, layout, on_record, on_bad);
  return std::nullopt;
}

}  // namespace te::text
