// Keys of a JSON object with their types and rules; what breaks one is a UserError of one line. Private to src/convert.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"

namespace te::convert {

class JsonKeys {
 public:
  /// The object of a file. UserError when it cannot be read or is no JSON object.
  static JsonKeys of_file(const std::filesystem::path& file);
  JsonKeys(std::string where, nlohmann::json object) : where_(std::move(where)), object_(std::move(object)) {}

  const std::string& where() const { return where_; }
  const nlohmann::json& object() const { return object_; }
  /// Present and not null.
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  /// An object within this one.
  JsonKeys within(const char* key) const;

  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t absent) const { return has(key) ? integer(key) : absent; }
  double number(const char* key) const;
  double number(const char* key, double absent) const { return has(key) ? number(key) : absent; }
  bool boolean(const char* key, bool absent) const;
  std::string text(const char* key, const std::string& absent) const;

  /// `why` says what te-train does instead, or what the user can do.
  template <class T>
  void must_be(const char* key, const T& value, const T& wanted, const char* why) const {
    if (value != wanted)
      refuse(key, fmt::format("is {}, must be {}", shown(key), nlohmann::json(wanted).dump()), why);
  }
  void must_be_one_of(const char* key, const std::string& value, const std::vector<std::string>& wanted,
                      const char* why) const;
  [[noreturn]] void refuse(const char* key, const std::string& rule, const char* remedy) const {
    user_error("{}: {} {}; {}", where_, key, rule, remedy);
  }

 private:
  std::string shown(const char* key) const;
  const nlohmann::json& at(const char* key) const;

  std::string where_;
  nlohmann::json object_;
};

}  // namespace te::convert
