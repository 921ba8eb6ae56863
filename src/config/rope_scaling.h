// model.rope_scaling, a mapping as in Hugging Face's config.json: {rope_type: llama3, factor: 8.0, ...}. Private to
// this folder.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/yaml_value.h"

namespace te::config {

/// Reads `none`, null, or a mapping into config.model. UserError as read_value.
void read_rope_scaling(const YAML::Node& node, const Where& where, Config& config);

/// As YAML, with the parameters of its kind only.
std::string rope_scaling_text(const RopeScaling& scaling);

/// The names of the parameters of a kind: "factor", ...
std::vector<std::string_view> rope_parameters(RopeScalingKind kind);

/// UserError if a parameter is out of range, or if two do not fit together.
void check_rope_scaling(const Config& config);

}  // namespace te::config
