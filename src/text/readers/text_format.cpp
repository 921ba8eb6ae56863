#include "text/readers/text_format.h"

#include <algorithm>
#include <optional>

#include "core/json.h"
#include "text/readers/byte_stream.h"
#include "text/readers/json_records.h"

namespace te::text {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

std::string_view skip_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
  return text;
}

/// The JSON object at the beginning of a text, which can end inside the object.
struct FirstObject {
  std::string_view text;  ///< the object, or its beginning
  bool whole = false;     ///< `text` is the complete object
  nlohmann::json value;   ///< the parsed object if it is complete and valid
};

std::optional<FirstObject> first_object(std::string_view text) {
  if (!text.starts_with('{')) return {};
  FirstObject object{text, false, {}};
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size() && !object.whole; ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    depth += (c == '{' || c == '[' ? 1 : 0) - (c == '}' || c == ']' ? 1 : 0);
    if (depth > 0) continue;
    object.text = text.substr(0, i + 1);
    object.whole = true;
  }
  try {
    object.value = parse_json(object.text);
  } catch (const nlohmann::json::parse_error& error) {
    constexpr size_t kMaxIncomplete = 8;  // the text can end inside a character or an escape
    if (object.whole || error.byte + kMaxIncomplete < object.text.size()) return {};
  } catch (const nlohmann::json::out_of_range&) {  // a number; the reader will report it
  }
  return object;
}

bool has_text(const FirstObject& object, std::string_view field) {
  if (object.whole) {
    const nlohmann::json* value = object.value.is_object() ? find_field(object.value, field) : nullptr;
    return value != nullptr && value->is_string();
  }
  // The object is incomplete, so search for the key only.
  const std::string key = '"' + std::string(field.substr(field.rfind('.') + 1)) + '"';
  return object.text.find(key) != std::string_view::npos;
}

bool one_line(const FirstObject& object) {
  return object.text.find('\n') == std::string_view::npos;
}

}  // namespace

TextFormat format_of_name(const std::string& path) {
  std::string name = path;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  name = without_compression_suffix(name);
  const auto is_one_of = [&](std::initializer_list<const char*> suffixes) {
    return std::ranges::any_of(suffixes, [&](const char* suffix) { return name.ends_with(suffix); });
  };
  if (is_one_of({".jsonl", ".jsonlines", ".ndjson"})) return TextFormat::kJsonl;
  if (is_one_of({".json"})) return TextFormat::kJson;
  return is_one_of({".txt", ".text", ".md"}) ? TextFormat::kText : TextFormat::kAuto;
}

ContentFormat format_of_content(std::string_view head, std::string_view field) {
  head = skip_blanks(head);
  const bool list = head.starts_with('[');
  if (list) head = skip_blanks(head.substr(1));
  const std::optional<FirstObject> first = first_object(head);
  if (!first) return {};
  const bool lines = !list && one_line(*first);
  if (has_text(*first, field)) return {lines ? TextFormat::kJsonl : TextFormat::kJson};
  if (!lines || !first->whole) return {TextFormat::kText, true};
  const std::string_view rest = head.substr(first->text.size());
  const std::string_view next = skip_blanks(rest);
  const bool next_line = rest.substr(0, rest.size() - next.size()).find('\n') != std::string_view::npos;
  const std::optional<FirstObject> second = next_line ? first_object(next) : std::nullopt;
  if (second && one_line(*second)) return {TextFormat::kJsonl};
  return {TextFormat::kText, true};
}

bool is_script_failure(std::string_view line) {
  return line.starts_with("incomplete: ") && line.ends_with(" has failed");
}

bool is_json_list(std::string_view head) {
  head = skip_blanks(head);
  if (head.starts_with('[')) return true;
  const std::optional<FirstObject> first = first_object(head);
  return first && !one_line(*first);
}

}  // namespace te::text
