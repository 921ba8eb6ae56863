#include "common/command_model.h"

#include <algorithm>
#include <string_view>

namespace te::apps {
namespace {

/// "a" and "b" of "TEXT:{a,b}", as CLI::IsMember describes itself.
std::vector<std::string> choices_of(const std::string& type) {
  std::vector<std::string> choices;
  const size_t open = type.find('{'), close = type.find('}', open == type.npos ? 0 : open);
  if (open == type.npos || close == type.npos) return choices;
  for (size_t at = open + 1; at < close;) {
    const size_t end = std::min(type.find(',', at), close);
    choices.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return choices;
}

ValueKind kind_of(const CLI::Option& option, const std::string& value_name,
                  const std::vector<std::string>& choices) {
  if (option.get_items_expected_max() == 0) return ValueKind::none;
  if (!choices.empty()) return ValueKind::choice;
  if (value_name == "KEY=VALUE") return ValueKind::assignment;
  if (option.check_name("--config")) return ValueKind::config;
  for (const std::string_view name : {"FILE", "PATH", "PREFIX", "SPEC", "PROGRAM", "NAME|FILE"})
    if (value_name == name) return ValueKind::file;
  if (value_name == "DIR" || value_name == "FOLDER") return ValueKind::folder;
  return ValueKind::text;
}

OptionModel option_model(const CLI::Option& option) {
  OptionModel model;
  model.positional = option.get_positional();
  for (const std::string& name : option.get_snames()) model.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) model.names.push_back("--" + name);
  if (model.positional) model.names = {option.get_single_name()};
  const std::string type = option.get_type_name();
  model.choices = choices_of(type);
  model.kind = kind_of(option, type.substr(0, type.find(':')), model.choices);
  return model;
}

}  // namespace

CommandModel model_of(const CLI::App& app) {
  CommandModel model{app.get_name(), {}, {}};
  for (const CLI::Option* option : app.get_options()) model.options.push_back(option_model(*option));
  for (const CLI::App* command : app.get_subcommands({})) model.commands.push_back(model_of(*command));
  return model;
}

}  // namespace te::apps
