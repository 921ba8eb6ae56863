#include "config/provenance.h"

#include <algorithm>
#include <variant>

#include "config/key_table.h"
#include "config/text.h"
#include "core/error.h"

namespace te::config {

std::string to_yaml(const Config& config, const Provenance& provenance) {
  constexpr size_t kCommentColumn = 48;  // a longer value moves only its own comment
  Config copy = config;
  std::string text;
  for (const Section& section : sections()) {
    text += fmt::format("{}:\n", section.name);
    for (const Key& key : keys()) {
      if (key.section() != section.name) continue;
      const auto origin = provenance.origins.find(key.path), given = provenance.given.find(key.path);
      const std::string line =
          fmt::format("  {}{}: {}", provenance.derived.contains(key.path) ? "# " : "", key.name(),
                      given == provenance.given.end() ? value_text(key.field(copy)) : given->second);
      TE_CHECK(origin != provenance.origins.end(), "the provenance has no origin of {}", key.path);
      text += fmt::format("{:<{}}  # {}\n", line, kCommentColumn, one_line(origin->second));
    }
  }
  return text;
}

std::vector<KeyChoices> key_choices() {
  std::vector<KeyChoices> result;
  Config config;
  for (const Key& key : keys()) {
    KeyChoices choices{.path = std::string(key.path)};
    const Field field = key.field(config);
    if (const auto* names = std::get_if<EnumField>(&field)) {
      choices.values.assign(names->names.begin(), names->names.end());
    } else if (std::holds_alternative<bool*>(field)) {
      choices.values = {"true", "false"};
    }
    choices.is_path = std::holds_alternative<std::string*>(field) ||
                      std::holds_alternative<std::vector<DataSource>*>(field);
    result.push_back(std::move(choices));
  }
  return result;
}

}  // namespace te::config
