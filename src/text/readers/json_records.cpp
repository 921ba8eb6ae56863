#include "text/readers/json_records.h"

#include <algorithm>
#include <exception>

#include "core/error.h"
#include "core/json.h"
#include "text/readers/line_reader.h"
#include "text/readers/text_format.h"

namespace te::text {
namespace {

using OnRecord = std::function<void(const JsonRecord& record)>;
using OnBad = std::function<void(const std::string& message)>;

/// An exception that take_object() must not catch.
struct BypassingError {
  std::exception_ptr error;
};

constexpr std::string_view kBlanks = " \t\r\n";

nlohmann::json parse_object(std::string_view text, const std::string& place) {
  nlohmann::json object;
  try {
    object = parse_json(text);
  } catch (const nlohmann::json::parse_error& error) {
    user_error("{}: not valid JSON at byte {} of the {}", place, error.byte,
               text.find('\n') == std::string_view::npos ? "line; every line must be one JSON object"
                                                         : "object that begins on this line");
  } catch (const nlohmann::json::out_of_range&) {  // 1e999
    user_error("{}: a number exceeds the range of a double; correct it, or put it in quotes", place);
  }
  if (!object.is_object()) {
    user_error("{}: found a JSON {}, not an object; every line must be one JSON object", place,
               object.type_name());
  }
  return object;
}

void take_object(std::string_view text, const std::string& place, int64_t bytes, const OnRecord& on_record,
                 const OnBad& on_bad) {
  try {
    const nlohmann::json object = parse_object(text, place);
    on_record({object, place, bytes});
  } catch (const UserError& error) {
    if (!on_bad) throw;
    on_bad(error.what());
  }
}

/// Must be called outside take_object(): --skip-bad-lines must not accept the part that the script has written.
void check_script_succeeded(std::string_view line, const LineReader& lines) {
  if (!is_script_failure(without_line_break(line))) return;
  user_error(
      "{}: the script that wrote this input has failed (see its error), so the input is incomplete; run it "
      "again",
      lines.place());
}

void read_lines(LineReader& lines, const OnRecord& on_record, const OnBad& on_bad) {
  std::string_view line;
  while (lines.next_full_line(&line)) {
    line = without_line_break(line);
    if (line.find_first_not_of(kBlanks) == std::string_view::npos) continue;
    check_script_succeeded(line, lines);
    take_object(line, lines.place(), lines.take_bytes(), on_record, on_bad);
  }
}

/// Splits a list into its objects by counting brackets outside strings; the JSON parser then checks each object. A line
/// break in a string, which is never valid JSON, ends the object: otherwise a malformed object with an odd number of
/// quotes would extend to the next such object. The lines up to the next object are then skipped.
class ListCutter {
 public:
  /// The part of a line to pass to take(); empty while lines are skipped.
  std::string_view unskipped(const LineReader::Line& line) {
    constexpr size_t kNone = std::string_view::npos;
    if (!line.begins) return skipping_ ? std::string_view() : line.text;
    line_indent_ = line.text.find_first_not_of(" \t\r\n,[");
    if (depth_ > 0 && indent_limit_ == kNone && line_indent_ != kNone)
      indent_limit_ = std::max(line_indent_, object_indent_ + 1);
    if (!skipping_) return line.text;
    if (line_indent_ == kNone || line_indent_ >= indent_limit_) return {};
    // "}, {" ends and begins an object.
    const size_t next = line.text.find_first_not_of(" \t,}", line_indent_);
    if (next == kNone || (line.text[next] != '{' && line.text[next] != ']')) return {};
    skipping_ = false;
    return line.text.substr(next);
  }

  /// Adds the next character. True if it completes an object, or ends a malformed one, which is then in object().
  bool take(char c, const LineReader& lines) {
    if (depth_ == 0) return between(c, lines);
    object_ += c;
    constexpr size_t kLongest = size_t{1} << 30;
    if (object_.size() > kLongest) user_error("{}: the object is longer than 1 GiB; split it", place_);
    if (in_string_ && c == '\n') {
      in_string_ = escaped_ = false;
      skipping_ = true;
      depth_ = 0;
      return true;
    }
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return false;
    }
    in_string_ = c == '"';
    depth_ += (c == '{' || c == '[' ? 1 : 0) - (c == '}' || c == ']' ? 1 : 0);
    return depth_ == 0;
  }

  void finish(const LineReader& lines) const {
    if (depth_ > 0)
      user_error("{}: the object that begins on this line does not end; the file is truncated", place_);
    if (state_ == State::kInList)
      user_error("{}: the list does not end; the file is truncated", lines.place());
  }

  const std::string& object() const { return object_; }
  const std::string& place() const { return place_; }

 private:
  enum class State { kStart, kInList, kAfterList };

  bool between(char c, const LineReader& lines) {
    if (kBlanks.find(c) != std::string_view::npos || (c == ',' && state_ == State::kInList)) return false;
    if (c == '[' && state_ == State::kStart && object_.empty()) {
      state_ = State::kInList;
    } else if (c == ']' && state_ == State::kInList) {
      state_ = State::kAfterList;
    } else if (c == '{' && state_ != State::kAfterList) {
      depth_ = 1;
      object_ = c;
      object_indent_ = line_indent_;
      indent_limit_ = std::string_view::npos;
      place_ = lines.place();
    } else {
      user_error(
          "{}: found `{}` instead of a JSON object; the file must be a list of objects, or give "
          "--format jsonl or text",
          lines.place(), printable(c));
    }
    return false;
  }

  static std::string printable(char c) {
    return c >= ' ' && c < 127 ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }

  State state_ = State::kStart;
  int64_t depth_ = 0;
  bool in_string_ = false, escaped_ = false, skipping_ = false;
  size_t line_indent_ = 0, object_indent_ = 0;
  // Indentation of the object's second line: after a malformed object, what is indented as much may be inside it.
  size_t indent_limit_ = std::string_view::npos;
  std::string object_, place_;
};

/// Whether a malformed object has "}, {" before another key like its first one. Then it probably contains objects of
/// the list, because a quote or a bracket is missing.
bool contains_next_object(std::string_view object) {
  const size_t begin = object.find('"'), end = object.find('"', begin + 1);
  if (end == std::string_view::npos) return false;
  const std::string_view key = object.substr(begin, end - begin + 1);
  for (size_t at = object.find(key, end); at != std::string_view::npos; at = object.find(key, at + 1)) {
    const size_t brace = object.find_last_not_of(kBlanks, at - 1);
    if (object[brace] == '{' && object[object.find_last_not_of(" \t\r\n,", brace - 1)] == '}') return true;
  }
  return false;
}

void read_list(LineReader& lines, const OnRecord& on_record, const OnBad& on_bad) {
  ListCutter cutter;
  OnBad on_bad_object;
  if (on_bad) {
    on_bad_object = [&](const std::string& message) {
      const std::string& object = cutter.object();
      if (contains_next_object(object) && try_parse_json(object).is_discarded()) {
        user_error(
            "{}: the object that begins on this line is malformed and contains the next one, so it cannot be "
            "skipped; correct it, or write one object per line",
            cutter.place());
      }
      on_bad(message);
    };
  }
  LineReader::Line line;
  while (lines.next(&line)) {
    if (line.begins && line.ends) check_script_succeeded(line.text, lines);
    for (const char c : cutter.unskipped(line)) {
      if (!cutter.take(c, lines)) continue;
      take_object(cutter.object(), cutter.place(), lines.take_bytes(), on_record, on_bad_object);
    }
  }
  cutter.finish(lines);
}

}  // namespace

void read_json_records(const std::string& path, JsonLayout layout, const OnRecord& on_record,
                       const OnBad& on_bad) {
  LineReader lines(path);
  read_json_records(lines, layout, on_record, on_bad);
}

void read_json_records(LineReader& lines, JsonLayout layout, const OnRecord& on_record, const OnBad& on_bad) {
  if (layout == JsonLayout::kByContent)
    layout = is_json_list(lines.peek(kFormatHead)) ? JsonLayout::kList : JsonLayout::kLines;
  try {
    layout == JsonLayout::kLines ? read_lines(lines, on_record, on_bad) : read_list(lines, on_record, on_bad);
  } catch (const BypassingError& bypassing) {
    std::rethrow_exception(bypassing.error);
  }
}

void bypass_on_bad(const std::function<void()>& use) {
  try {
    use();
  } catch (...) {
    throw BypassingError{std::current_exception()};
  }
}

const nlohmann::json* find_field(const nlohmann::json& object, std::string_view path) {
  const auto field = object.find(std::string(path));
  if (field != object.end()) return &*field;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
    const auto parent = object.find(std::string(path.substr(0, dot)));
    if (parent == object.end() || !parent->is_object()) continue;
    if (const nlohmann::json* found = find_field(*parent, path.substr(dot + 1))) return found;
  }
  return nullptr;
}

const std::string& string_field(const JsonRecord& record, std::string_view path, std::string_view option) {
  const nlohmann::json* value = find_field(record.object, path);
  if (value == nullptr) {
    std::string names;
    for (const auto& item : record.object.items()) names += (names.empty() ? "" : ", ") + item.key();
    user_error("{}: no field `{}`; name the field with {}; the object has: {}", record.place, path, option,
               names.empty() ? "no field" : names);
  }
  if (!value->is_string()) {
    user_error("{}: field `{}` is a {}, not a string; name another field with {}", record.place, path,
               value->type_name(), option);
  }
  return value->get_ref<const std::string&>();
}

}  // namespace te::text
