#include "text/tokenizers/json_reader.h"

#include <limits>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/printable.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

using nlohmann::json;

std::string read_tokenizer_file(const std::string& path, const std::string& where) {
  constexpr uint64_t kMaxBytes = uint64_t{512} << 20;
  FileText file = read_file(path, kMaxBytes);
  if (!file) user_error("{}: {} cannot be read: {}", where, path, file.error);
  return std::move(file.text);
}

json JsonReader::parse(const std::string& text, const std::string& where) {
  try {
    return parse_json(text);
  } catch (const json::parse_error& error) {
    user_error("{}: not valid JSON (error at byte {} of {}); download the file again", where, error.byte,
               text.size());
  } catch (const json::out_of_range&) {  // 1e999
    user_error("{}: a number exceeds the range of a double; download the file again", where);
  }
}

void JsonReader::fail(const std::string& rule) const {
  user_error("{}: {}", printable(where_), rule);
}

JsonReader JsonReader::at(std::string_view key) const {
  const auto found = object().find(std::string(key));
  if (found == object().end()) fail(fmt::format("`{}` is missing", key));
  return {found->second, fmt::format("{}.{}", where_, key)};
}

std::optional<JsonReader> JsonReader::find(std::string_view key) const {
  const auto found = object().find(std::string(key));
  if (found == object().end() || found->second.is_null()) return {};
  return JsonReader(found->second, fmt::format("{}.{}", where_, key));
}

JsonReader JsonReader::element(size_t index) const {
  return {array().at(index), fmt::format("{}[{}]", where_, index)};
}

const std::string& JsonReader::string() const {
  if (!value_.is_string()) fail(fmt::format("is of type {}; it must be a string", value_.type_name()));
  return value_.get_ref<const std::string&>();
}

int64_t JsonReader::integer() const {
  if (!value_.is_number_integer())
    fail(fmt::format("is of type {}; it must be an integer", value_.type_name()));
  // Numbers above the range of int64 are stored as uint64.
  if (value_.is_number_unsigned() &&
      value_.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    fail("is too large");
  }
  return value_.get<int64_t>();
}

bool JsonReader::boolean() const {
  if (!value_.is_boolean()) fail(fmt::format("is of type {}; it must be true or false", value_.type_name()));
  return value_.get<bool>();
}

const json::array_t& JsonReader::array() const {
  if (!value_.is_array()) fail(fmt::format("is of type {}; it must be an array", value_.type_name()));
  return value_.get_ref<const json::array_t&>();
}

const json::object_t& JsonReader::object() const {
  if (!value_.is_object()) fail(fmt::format("is of type {}; it must be an object", value_.type_name()));
  return value_.get_ref<const json::object_t&>();
}

std::string JsonReader::string_or(std::string_view key, std::string_view fallback) const {
  const auto member = find(key);
  return member ? member->string() : std::string(fallback);
}

bool JsonReader::boolean_or(std::string_view key, bool fallback) const {
  const auto member = find(key);
  return member ? member->boolean() : fallback;
}

}  // namespace te::text
