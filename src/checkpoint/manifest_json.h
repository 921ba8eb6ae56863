// Typed access to a JSON document that is not to be trusted: every mistake is a UserError of one line with the file,
// the path of the value and the rule. Private to src/checkpoint.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace te::checkpoint {

class JsonNode {
 public:
  /// Keeps references to document and file name. `path` is "" for the root.
  JsonNode(const nlohmann::json& value, const std::string& file, std::string path)
      : value_(value), file_(file), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& rule) const;

  bool has(const char* key) const;
  JsonNode at(const std::string& key) const;  ///< of an object; refused when it has no such key
  JsonNode at(size_t index) const;            ///< of a list; index < size()
  size_t size() const;                        ///< of a list
  std::vector<std::string> keys() const;      ///< of an object

  bool is_null() const { return value_.is_null(); }
  int64_t integer(int64_t least, int64_t most) const;
  std::string text() const;
  float positive_float() const;
  double number() const;   ///< finite
  uint64_t hex64() const;  ///< 16 hexadecimal digits as text

 private:
  const nlohmann::json& value_;
  const std::string& file_;
  std::string path_;
};

}  // namespace te::checkpoint
