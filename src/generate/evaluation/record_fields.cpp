#include "generate/evaluation/record_fields.h"

#include "core/error.h"

namespace te::generate {

void RecordFields::refuse(const char* field, const char* rule) const {
  user_error("{}: `{}` {}", place_, field, rule);
}

const nlohmann::json& RecordFields::at(const char* field) const {
  if (!object_.is_object() || !object_.contains(field))
    refuse(field, "is missing; the record has another format");
  return object_.at(field);
}

std::string RecordFields::text(const char* field) const {
  const nlohmann::json& value = at(field);
  if (!value.is_string()) refuse(field, "must be a string");
  return value.get<std::string>();
}

std::vector<std::string> RecordFields::texts(const char* field) const {
  const nlohmann::json& value = at(field);
  if (!value.is_array()) refuse(field, "must be a list of strings");
  std::vector<std::string> result;
  for (const nlohmann::json& item : value) {
    if (!item.is_string()) refuse(field, "must be a list of strings");
    result.push_back(item.get<std::string>());
  }
  return result;
}

int64_t RecordFields::index(const char* field, int64_t end) const {
  const nlohmann::json& value = at(field);
  int64_t number = -1;
  if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_string()) {
    const auto& digits = value.get_ref<const std::string&>();
    const bool valid =
        !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == std::string::npos;
    if (valid) number = std::stoll(digits);
  }
  if (number < 0 || number >= end)
    user_error("{}: `{}` must be an integer from 0 to {}, the index of the correct choice", place_, field,
               end - 1);
  return number;
}

bool RecordFields::truth(const char* field) const {
  const nlohmann::json& value = at(field);
  return value.is_boolean() ? value.get<bool>() : index(field, 2) == 1;
}

std::vector<RecordFields> RecordFields::objects(const char* field) const {
  const nlohmann::json& value = at(field);
  if (!value.is_array()) refuse(field, "must be a list of objects");
  std::vector<RecordFields> result;
  for (const nlohmann::json& item : value) {
    if (!item.is_object()) refuse(field, "must be a list of objects");
    result.emplace_back(item, place_);
  }
  return result;
}

}  // namespace te::generate
