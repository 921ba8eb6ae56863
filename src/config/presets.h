// Architectures of published models, for `extends: preset:NAME` and --config preset:NAME. A preset contains the
// architecture and the sequence length of the model's training, but no batch sizes, data or optimizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace te::config {

/// True for "preset:NAME", even if there is no preset of that name.
bool is_preset(std::string_view source);
/// "gpt2" of "preset:gpt2".
std::string_view preset_name(std::string_view source);

/// The preset as the text of a config file. UserError, beginning with `where` and with the nearest name, if there is no
/// such preset.
std::string preset_yaml(std::string_view source, std::string_view where);

/// "preset:gpt2" and the others.
std::vector<std::string> preset_sources();

/// A table with one line per preset: name, parameters, shape.
std::string describe_presets();

/// Number of parameters of a model without the padding of its vocabulary, as in published model sizes. The config's
/// defaults must be resolved.
int64_t parameter_count(const ModelConfig& model, bool active = false);

}  // namespace te::config
