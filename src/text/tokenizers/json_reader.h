// Reader for untrusted JSON: every access checks the type, and errors name the file and the position in it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace te::text {

/// The contents of the file. UserError "WHERE: PATH ..." if it cannot be read or is larger than 512 MiB.
std::string read_tokenizer_file(const std::string& path, const std::string& where);

/// A value and its position, such as "tokenizer gpt2/tokenizer.json: model.vocab".
class JsonReader {
 public:
  /// Parses `text`. UserError if it is not valid JSON.
  static nlohmann::json parse(const std::string& text, const std::string& where);

  JsonReader(const nlohmann::json& value, std::string where) : value_(value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return value_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return value_.is_null(); }

  /// The member, which can be null. UserError if it is missing.
  JsonReader at(std::string_view key) const;
  /// The member; nullopt if it is missing or null.
  std::optional<JsonReader> find(std::string_view key) const;
  JsonReader element(size_t index) const;

  // The value as the given type. UserError if it has another type.
  const std::string& string() const;
  int64_t integer() const;
  bool boolean() const;
  const nlohmann::json::array_t& array() const;
  const nlohmann::json::object_t& object() const;

  std::string string_or(std::string_view key, std::string_view fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;

  /// UserError "WHERE: rule".
  [[noreturn]] void fail(const std::string& rule) const;

 private:
  const nlohmann::json& value_;
  std::string where_;
};

/// Calls add_part(type, json), which appends to `steps`, for a part of a tokenizer.json and, if it is a Sequence, for
/// its parts, which it has as `list`.
template <class Steps, class AddPart>
void add_parts(const JsonReader& json, const char* list, const Steps& steps, AddPart add_part,
               int depth = 0) {
  constexpr size_t kMax = 64;
  if (depth > 8 || steps.size() >= kMax) json.fail("has too many parts");
  const std::string& type = json.at("type").string();
  if (type != "Sequence") return add_part(type, json);
  const JsonReader parts = json.at(list);
  for (size_t i = 0; i < parts.array().size(); ++i)
    add_parts(parts.element(i), list, steps, add_part, depth + 1);
}

}  // namespace te::text
