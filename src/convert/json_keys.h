// Reads the keys of a JSON object and checks types and rules; a violation is a UserError of one line. Private to
// src/convert.
//
// An object records which of its keys were read, so that refuse_unread() can name a key that no code reads. Copies
// share the record; a section that within() returns has its own.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/printable.h"

namespace te::convert {

class JsonKeys {
 public:
  /// The object of a file. UserError if the file cannot be read or is not a JSON object.
  static JsonKeys of_file(const std::filesystem::path& file);
  JsonKeys(std::string where, nlohmann::json object) : where_(std::move(where)), object_(std::move(object)) {}

  const std::string& where() const { return where_; }
  const nlohmann::json& object() const { return object_; }
  /// The key is present, possibly as null.
  bool given(const char* key) const {
    read_->insert(key);
    return object_.contains(key);
  }
  /// The key is present and not null.
  bool has(const char* key) const { return given(key) && !object_.at(key).is_null(); }
  /// An object within this one.
  JsonKeys within(const char* key) const;

  int64_t integer(const char* key) const;
  double number(const char* key) const;
  /// `absent` is the default of a missing key; null is refused, as in transformers.
  int64_t integer(const char* key, int64_t absent) const { return given(key) ? integer(key) : absent; }
  double number(const char* key, double absent) const { return given(key) ? number(key) : absent; }
  bool boolean(const char* key, bool absent) const;
  std::string text(const char* key, const std::string& absent) const;
  /// For keys that may be null: `otherwise` is the default for both null and a missing key.
  int64_t integer_or(const char* key, int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  double number_or(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }

  /// Marks keys as read that have no effect in this object, whatever their value.
  void without_effect(std::initializer_list<const char*> keys) const {
    read_->insert(keys.begin(), keys.end());
  }
  /// UserError that names the first key that was not read, is not in `harmless` (sorted), and is not null, {} or [].
  void refuse_unread(std::span<const std::string_view> harmless, const char* remedy) const;

  /// `why`: what te-train does instead, or what the user can do.
  template <class T>
  void must_be(const char* key, const T& value, const T& wanted, const char* why) const {
    if (value != wanted)
      refuse(key, fmt::format("is {}, must be {}", shown(key), nlohmann::json(wanted).dump()), why);
  }
  void must_be_one_of(const char* key, const std::string& value, const std::vector<std::string>& wanted,
                      const char* why) const;
  [[noreturn]] void refuse(const char* key, const std::string& rule, const char* remedy) const {
    user_error("{}: {} {}; {}", where_, printable(key), rule, remedy);
  }

 private:
  std::string shown(const char* key) const;
  const nlohmann::json& at(const char* key) const;

  std::string where_;
  nlohmann::json object_;
  std::shared_ptr<std::set<std::string, std::less<>>> read_ =
      std::make_shared<std::set<std::string, std::less<>>>();
};

}  // namespace te::convert
