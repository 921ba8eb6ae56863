// Configs of several sources, and where each of their values came from.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace te::config {

/// For each key ("model.num_layers") the place its value came from: "run.yaml:3" (a base file too), "preset:gpt2",
/// "--set", "default", "default: ..." with the keys that it followed from.
struct Provenance {
  std::map<std::string, std::string, std::less<>> origins;
  std::set<std::string, std::less<>> derived;  ///< keys that are not given, and whose default follows others
  std::map<std::string, std::string, std::less<>>
      given;  ///< as YAML, where the run has fitted it to other keys
};

/// load_config of several files or presets ("preset:NAME"), merged key by key: a later one wins, overrides are last.
/// Config::name joins the files' stems by '+'. UserError as load_config.
Config load_config(const std::vector<std::string>& sources, const std::vector<std::string>& overrides,
                   Provenance* provenance = nullptr);

/// A config to start a run with, or another one like it: to_yaml with the origin of each value in a comment. What was
/// derived from other keys is a comment, too, so that a run which changes those keys derives it again; a value that the
/// run has fitted is the one that was given. Read under any file name it gives `config`.
std::string to_yaml(const Config& config, const Provenance& provenance);

/// A key with what it may be set to, for shell completion.
struct KeyChoices {
  std::string path;
  std::vector<std::string> values;  ///< of names and booleans; empty for anything else
  bool is_path = false;             ///< a string or list of paths
  std::string meaning;              ///< plain text
};

std::vector<KeyChoices> key_choices();

/// "did you mean --set optimizer.lr=VALUE?" for an option, such as --lr, that is the name of a key here or in another
/// program; empty when it is none.
std::string set_suggestion(std::string_view option);

}  // namespace te::config
