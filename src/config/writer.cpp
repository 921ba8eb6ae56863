// Writes the key table as YAML with a config's values, as help, and as the reference page.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <type_traits>
#include <variant>

#include "config/key_table.h"
#include "core/error.h"

namespace te::config {

namespace {

/// The default as shown in help and reference.
std::string default_shown(const Key& key) {
  if (!key.default_text.empty()) return std::string(key.default_text);
  Config defaults;
  return value_text(key.field(defaults));
}

std::string markdown_row(const Key& key) {
  const bool literal = key.default_text.empty();
  const std::string shown = literal ? fmt::format("`{}`", default_shown(key)) : default_shown(key);
  const std::string_view bold = key.required() ? "**" : "";
  return fmt::format("| `{}` | {} | {}{}{} | {} | {} |\n", key.path, type_name(key), bold, shown, bold,
                     allowed_values(key), key.meaning);
}

/// The value that a key would have in `config` if it were not given; empty if the config would be invalid then.
std::string default_of(const Key& key, Config config, Config& built_in) {
  const Field from = key.field(built_in);
  std::visit(
      [&](auto to) {
        const auto source = std::get<decltype(to)>(from);
        if constexpr (std::is_same_v<decltype(to), EnumField>) {
          *to.index = *source.index;
        } else {
          *to = *source;
        }
      },
      key.field(config));
  follow_other_keys(config, [&](std::string_view path) { return path != key.path; });
  try {
    resolve_defaults(config);
  } catch (const UserError&) {
    return "";
  }
  return value_text(key.field(config));
}

}  // namespace

std::string to_yaml(const Config& config) {
  Config copy = config;
  std::string text;
  for (const Section& section : sections()) {
    text += fmt::format("{}:\n", section.name);
    for (const Key& key : keys()) {
      if (key.section() == section.name)
        text += fmt::format("  {}: {}\n", key.name(), value_text(key.field(copy)));
    }
  }
  return text;
}

std::vector<ChangedKey> changed_keys(const std::string& before, const Config& now) {
  const std::map<std::string, std::string, std::less<>> values = stored_values(before);
  Config copy = now;
  std::vector<ChangedKey> changed;
  for (const Key& key : keys()) {
    const auto found = values.find(key.path);
    const std::string value = value_text(key.field(copy));
    if (found != values.end() && found->second != value)
      changed.push_back({std::string(key.path), found->second, value});
  }
  return changed;
}

std::string string_in(const std::string& yaml, std::string_view path) {
  try {
    const size_t dot = path.find('.');
    const YAML::Node section = YAML::Load(yaml)[std::string(path.substr(0, dot))];
    const YAML::Node value = section.IsMap() ? section[std::string(path.substr(dot + 1))] : YAML::Node();
    return value.IsScalar() ? value.Scalar() : "";
  } catch (const YAML::Exception&) {
    return "";
  }
}

std::vector<SetKey> explicit_keys(const Config& config) {
  Config copy = config, built_in;
  std::vector<SetKey> set;
  for (const Key& key : keys()) {
    const std::string value = value_text(key.field(copy));
    if (key.required() || value != default_of(key, config, built_in))
      set.push_back({key.section(), key.name(), value});
  }
  return set;
}

std::string describe_keys() {
  size_t width = 0;
  for (const Key& key : keys()) width = std::max(width, key.path.size());
  std::string text;
  for (const Key& key : keys()) {
    std::string allowed = allowed_values(key);
    std::erase(allowed, '`');
    text += fmt::format("  {:<{}}  {}{}{} [{}]  {}\n", key.path, width, type_name(key),
                        allowed.empty() ? "" : ": ", allowed, default_shown(key), plain_meaning(key));
  }
  return text;
}

std::string config_reference_markdown() {
  std::string text;
  for (const Section& section : sections()) {
    text += fmt::format("{}### {}\n\n{}\n\n", text.empty() ? "" : "\n", section.name, section.intro);
    text += "| Key | Type | Default | Allowed | Meaning |\n|---|---|---|---|---|\n";
    for (const Key& key : keys()) {
      if (key.section() == section.name) text += markdown_row(key);
    }
  }
  return text;
}

}  // namespace te::config
