// Shapes of published models, for `extends: preset:NAME` and --config preset:NAME. A preset holds the architecture and
// the sequence length that the model was trained with; batches, data and optimizer are the run's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace te::config {

/// True for "preset:NAME", whether or not there is a preset of that name.
bool is_preset(std::string_view source);
/// "gpt2" of "preset:gpt2".
std::string_view preset_name(std::string_view source);

/// The preset as a config file's text. UserError, beginning with `where`, that names the nearest preset when there is
/// none of the name.
std::string preset_yaml(std::string_view source, std::string_view where);

/// "preset:gpt2" and the others.
std::vector<std::string> preset_sources();

/// A line per preset: name, parameters, shape.
std::string describe_presets();

/// Parameters of a model without the padding of its vocabulary, which is how models' sizes are published. The config's
/// defaults are resolved.
int64_t parameter_count(const ModelConfig& model);

}  // namespace te::config
