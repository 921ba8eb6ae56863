// A description of a CLI11 command line from which completion scripts are made.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace te::apps {

/// The kind of a value, which decides how it is completed.
enum class ValueKind { none, text, choice, file, folder, config, assignment };

struct OptionModel {
  std::vector<std::string> names;  ///< with their dashes; of a positional argument its name
  bool positional = false;
  ValueKind kind = ValueKind::none;  ///< none: a flag
  std::vector<std::string> choices;
};

struct CommandModel {
  std::string name;
  std::vector<OptionModel> options;
  std::vector<CommandModel> commands;
};

CommandModel model_of(const CLI::App& app);

/// A KEY=VALUE for --set.
struct KeyModel {
  std::string path;
  std::vector<std::string> values;  ///< empty: any value
  bool is_path = false;
};

/// Words of te-train's config: keys for --set, and presets that --config accepts in addition to files.
struct ConfigWords {
  std::vector<KeyModel> keys;
  std::vector<std::string> presets;  ///< "preset:gpt2"
  /// A suggestion for an unknown option that is the name of a config key; else empty.
  std::function<std::string(std::string_view)> advice = [](std::string_view) { return std::string(); };
};

/// A script that completes the program's command line in bash.
std::string completion_script(const CommandModel& program, const ConfigWords& words);

}  // namespace te::apps
