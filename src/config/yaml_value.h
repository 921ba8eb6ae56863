// Strict parsing of a YAML value into a field of a Config: a number must be a plain decimal scalar, a boolean must be
// true or false; errors show the value. Private to this folder.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <string>

#include "config/key_table.h"

namespace te::config {

/// "FILE:LINE: key" of a node, or "--set key=value" for an override.
using Where = std::function<std::string(const YAML::Node&)>;

/// UserError "WHERE: expected EXPECTED, got ...".
[[noreturn]] void ill_typed(const std::string& expected, const YAML::Node& node, const Where& where);

/// UserError "WHERE: expected an integer, got ..." or "... is out of range ...".
void read_value(const Key& key, const YAML::Node& node, const Where& where, Config& config);

}  // namespace te::config
