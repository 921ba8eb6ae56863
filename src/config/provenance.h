// Loads configs from several sources and records the origin of every value.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace te::config {

struct Provenance {
  /// For each key ("model.num_layers"), the origin of its value: "run.yaml:3" (also for a base file), "preset:gpt2",
  /// "--set", "default", or "default: ..." with the keys that it depends on.
  std::map<std::string, std::string, std::less<>> origins;
  std::set<std::string, std::less<>>
      derived;  ///< keys that are not given and whose default depends on others
  /// The given value as YAML, for keys that the run has adjusted to other keys.
  std::map<std::string, std::string, std::less<>> given;
};

/// load_config for several files or presets ("preset:NAME"), merged key by key: later sources take precedence, then
/// overrides. Config::name is the files' stems joined with '+'. UserError as load_config.
Config load_config(const std::vector<std::string>& sources, const std::vector<std::string>& overrides,
                   Provenance* provenance = nullptr);

/// A config file for this run and for variants of it: to_yaml with the origin of each value in a comment. Values that
/// depend on other keys are comments, too, so that a variant which changes those keys derives them again; values that
/// the run has adjusted are written as given. Reading the text under any file name gives `config`.
std::string to_yaml(const Config& config, const Provenance& provenance);

/// A key and its possible values, for shell completion.
struct KeyChoices {
  std::string path;
  std::vector<std::string> values;  ///< for enums and booleans; empty for other types
  bool is_path = false;             ///< whether the value is a string or a list of datasets
};

std::vector<KeyChoices> key_choices();

/// "did you mean --set optimizer.lr=VALUE?" for an option such as --lr that is the name of a key here or in another
/// program; empty for other options.
std::string set_suggestion(std::string_view option);

}  // namespace te::config
