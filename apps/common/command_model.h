// A command line as CLI11 knows it, in the words that completion scripts and manual pages need.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace te::apps {

/// What a value is, which says how it is completed.
enum class ValueKind { none, text, choice, file, folder, config, assignment };

struct OptionModel {
  std::vector<std::string> names;  ///< with their dashes; the positional's name alone
  bool positional = false;
  bool repeats = false;              ///< may be given several times
  ValueKind kind = ValueKind::none;  ///< none: a flag
  std::string value_name;            ///< "FILE"
  std::vector<std::string> choices;
  std::string description;  ///< one line
};

struct CommandModel {
  std::string name;
  std::string description;  ///< its first line is a heading
  std::string footer;
  std::vector<OptionModel> options;
  std::vector<CommandModel> commands;
};

CommandModel model_of(const CLI::App& app);

/// A KEY=VALUE for --set.
struct KeyModel {
  std::string path;
  std::vector<std::string> values;  ///< empty when any
  bool is_path = false;
  std::string meaning;
};

/// What the config of te-train adds: keys for --set, words that --config takes besides files.
struct ConfigWords {
  std::vector<KeyModel> keys;
  std::vector<std::string> presets;  ///< "preset:gpt2"
  /// What to say of an unknown option that is the name of a key; empty when it is none.
  std::function<std::string(std::string_view)> advice = [](std::string_view) { return std::string(); };
};

/// A script that completes the program's command line. `shell` is bash, zsh or fish (UserError otherwise).
std::string completion_script(const CommandModel& program, const ConfigWords& words,
                              const std::string& shell);

/// The program's manual page, for man.
std::string manual_page(const CommandModel& program, const ConfigWords& words, const std::string& version);

}  // namespace te::apps
