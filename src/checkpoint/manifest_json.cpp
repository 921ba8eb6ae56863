#include "checkpoint/manifest_json.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "checkpoint/safetensors_header.h"
#include "core/error.h"

namespace te::checkpoint {

void JsonNode::refuse(const std::string& rule) const {
  user_error("{}: key {} {}; use another checkpoint", file_, safetensors::quote_name(path_), rule);
}

bool JsonNode::has(const char* key) const {
  return value_.is_object() && value_.contains(key);
}

JsonNode JsonNode::at(const std::string& key) const {
  if (!value_.is_object()) refuse("must be an object");
  const auto found = value_.find(key);
  const std::string path = path_.empty() ? key : path_ + "." + key;
  if (found == value_.end()) JsonNode(value_, file_, path).refuse("is missing");
  return {*found, file_, path};
}

JsonNode JsonNode::at(size_t index) const {
  return {value_.at(index), file_, fmt::format("{}[{}]", path_, index)};
}

size_t JsonNode::size() const {
  if (!value_.is_array()) refuse("must be a list");
  return value_.size();
}

std::vector<std::string> JsonNode::keys() const {
  if (!value_.is_object()) refuse("must be an object");
  std::vector<std::string> keys;
  for (const auto& item : value_.items()) keys.push_back(item.key());
  return keys;
}

int64_t JsonNode::integer(int64_t min, int64_t max) const {
  if (value_.is_number_unsigned() && max >= 0) {
    const uint64_t value = value_.get<uint64_t>();
    if (value <= static_cast<uint64_t>(max) && static_cast<int64_t>(value) >= min)
      return static_cast<int64_t>(value);
  }
  refuse(fmt::format("must be a whole number from {} to {}", min, max));
}

int64_t JsonNode::count() const {
  return integer(0, std::numeric_limits<int64_t>::max());
}

std::string JsonNode::text() const {
  if (!value_.is_string()) refuse("must be text");
  return value_.get<std::string>();
}

std::string JsonNode::file_name(const char* rule) const {
  std::string name = text();
  if (name.starts_with('.') || name.find('/') != name.npos || name.find('\0') != name.npos) refuse(rule);
  return name;
}

float JsonNode::positive_float() const {
  const float value = value_.is_number() ? value_.get<float>() : 0.0f;
  if (!std::isfinite(value) || value <= 0) refuse("must be a number above 0");
  return value;
}

double JsonNode::number() const {
  const double value = value_.is_number() ? value_.get<double>() : HUGE_VAL;
  if (!std::isfinite(value)) refuse("must be a number");
  return value;
}

uint64_t JsonNode::hex64() const {
  uint64_t value = 0;
  const std::string digits = text();
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 16 || error != std::errc() || end != digits.data() + digits.size())
    refuse("must be a checksum of 16 hexadecimal digits");
  return value;
}

}  // namespace te::checkpoint
