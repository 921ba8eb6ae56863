// One YAML value into one field of a Config, strictly: a number is a plain decimal scalar, a boolean is true
// or false, and anything else is an error that shows what was found. Private to this folder.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <string>

#include "config/key_table.h"

namespace te::config {

/// "FILE:LINE: key" of a node, or "--set key=value" whatever the node.
using Where = std::function<std::string(const YAML::Node&)>;

/// UserError "WHERE: expected an integer, got ..." or "... is out of range ...".
void read_value(const Key& key, const YAML::Node& node, const Where& where, Config& config);

}  // namespace te::config
