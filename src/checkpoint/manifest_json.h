// Typed access to an untrusted JSON document. Every mistake is a UserError (one line) with the file, the path of the
// value and the rule. Private to src/checkpoint.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace te::checkpoint {

class JsonNode {
 public:
  /// Keeps references to the document and the file's name. `path` is "" for the root.
  JsonNode(const nlohmann::json& value, const std::string& file, std::string path)
      : value_(value), file_(file), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& rule) const;

  bool has(const char* key) const;
  JsonNode at(const std::string& key) const;  ///< value in an object; refuses a missing key
  JsonNode at(size_t index) const;            ///< item of a list; index < size()
  size_t size() const;                        ///< number of items of a list
  std::vector<std::string> keys() const;      ///< keys of an object

  /// make(item) of all items of a list.
  template <class Make>
  auto list(Make make) const {
    std::vector<decltype(make(*this))> items;
    for (size_t i = 0; i < size(); ++i) items.push_back(make(at(i)));
    return items;
  }

  bool is_null() const { return value_.is_null(); }
  int64_t integer(int64_t min, int64_t max) const;
  int64_t count() const;  ///< an integer of 0 or more
  std::string text() const;
  /// A name that is appended to a folder's path and must not lead out of it; `rule` is that of the message.
  std::string file_name(const char* rule) const;
  float positive_float() const;
  double number() const;   ///< finite
  uint64_t hex64() const;  ///< a string of 16 hexadecimal digits

 private:
  const nlohmann::json& value_;
  const std::string& file_;
  std::string path_;
};

}  // namespace te::checkpoint
