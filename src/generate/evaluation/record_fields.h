// Reads the fields of a JSON record of evaluation data; a missing field or another type is a UserError of one line.
// Private to generate/evaluation.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/readers/json_records.h"

namespace te::generate {

class RecordFields {
 public:
  explicit RecordFields(const text::JsonRecord& record) : object_(record.object), place_(record.place) {}
  RecordFields(const nlohmann::json& object, const std::string& place) : object_(object), place_(place) {}

  const std::string& place() const { return place_; }
  bool has(const char* field) const { return object_.contains(field); }
  bool is_object(const char* field) const { return has(field) && object_.at(field).is_object(); }
  bool is_list(const char* field) const { return has(field) && object_.at(field).is_array(); }
  std::string text(const char* field) const;
  std::vector<std::string> texts(const char* field) const;
  /// An integer or a string of digits, within [0, end).
  int64_t index(const char* field, int64_t end) const;
  bool truth(const char* field) const;  ///< true, false, 0 or 1
  RecordFields within(const char* field) const { return {at(field), place_}; }
  std::vector<RecordFields> objects(const char* field) const;
  [[noreturn]] void refuse(const char* field, const char* rule) const;

 private:
  const nlohmann::json& at(const char* field) const;

  const nlohmann::json& object_;
  std::string place_;
};

}  // namespace te::generate
