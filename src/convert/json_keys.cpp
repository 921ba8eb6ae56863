#include "convert/json_keys.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/file.h"
#include "core/json.h"

namespace te::convert {
namespace {

constexpr const char* kRemedy = "compare with the model's original";
constexpr int64_t kMaxInteger = 1'000'000'000'000;

nlohmann::json parse(const std::string& text, const std::string& where) {
  try {
    return parse_json(text);
  } catch (const nlohmann::json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte - 1, text.size()));
    user_error("{}: is not valid JSON (line {}); {}", where, 1 + std::count(text.begin(), end, '\n'),
               kRemedy);
  } catch (const nlohmann::json::out_of_range&) {  // 1e999
    user_error("{}: is not valid JSON (a number exceeds the range of a double); {}", where, kRemedy);
  }
}

}  // namespace

JsonKeys JsonKeys::of_file(const std::filesystem::path& file) {
  const FileText read = read_file(file);
  if (read.missing) user_error("{}: not found; give the folder of a Hugging Face model", file.string());
  if (!read) user_error("{}: {}; {}", file.string(), read.error, kRemedy);
  nlohmann::json object = parse(read.text, file.string());
  if (!object.is_object()) user_error("{}: is not a JSON object; {}", file.string(), kRemedy);
  return {file.string(), std::move(object)};
}

const nlohmann::json& JsonKeys::at(const char* key) const {
  if (!given(key)) refuse(key, "is missing", kRemedy);
  return object_.at(key);
}

// A value as one line of about 60 characters at most.
std::string JsonKeys::shown(const char* key) const {
  std::string text = given(key) ? dump_json(object_.at(key), -1, true) : "absent";
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

JsonKeys JsonKeys::within(const char* key) const {
  if (!at(key).is_object()) refuse(key, fmt::format("is {}, must be an object", shown(key)), kRemedy);
  return {where_ + ": " + printable(key), at(key)};
}

int64_t JsonKeys::integer(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_number_integer() || value.get<double>() < 0)
    refuse(key, fmt::format("is {}, must be a non-negative integer", shown(key)), kRemedy);
  if (value.get<double>() > kMaxInteger)
    refuse(key, fmt::format("is {}, must be at most {}", shown(key), kMaxInteger), kRemedy);
  return value.get<int64_t>();
}

double JsonKeys::number(const char* key) const {
  if (!at(key).is_number()) refuse(key, fmt::format("is {}, must be a number", shown(key)), kRemedy);
  return at(key).get<double>();
}

bool JsonKeys::boolean(const char* key, bool absent) const {
  if (!given(key)) return absent;
  if (!at(key).is_boolean()) refuse(key, fmt::format("is {}, must be true or false", shown(key)), kRemedy);
  return at(key).get<bool>();
}

std::string JsonKeys::text(const char* key, const std::string& absent) const {
  if (!given(key)) return absent;
  if (!at(key).is_string()) refuse(key, fmt::format("is {}, must be a string", shown(key)), kRemedy);
  return at(key).get<std::string>();
}

void JsonKeys::must_be_one_of(const char* key, const std::string& value,
                              const std::vector<std::string>& wanted, const char* why) const {
  for (const std::string& good : wanted)
    if (value == good) return;
  refuse(key, fmt::format("is {}, must be {}", shown(key), fmt::join(wanted, " or ")), why);
}

void JsonKeys::refuse_unread(std::span<const std::string_view> harmless, const char* remedy) const {
  for (const auto& [key, value] : object_.items()) {
    const bool empty = value.is_null() || (value.is_structured() && value.empty());
    if (!empty && !read_->contains(key) && !std::ranges::binary_search(harmless, key))
      refuse(key.c_str(), fmt::format("is {}, which te-train does not know", shown(key.c_str())), remedy);
  }
}

}  // namespace te::convert
