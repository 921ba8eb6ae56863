// Creates a Config from files (read by merge.h) and --set overrides. Every value is parsed strictly, and errors name
// its file and line. Defaults that depend on other keys are resolved last, followed by validation.
#include <fmt/ranges.h>

#include <array>
#include <cctype>
#include <map>

#include "config/key_table.h"
#include "config/merge.h"
#include "config/provenance.h"
#include "config/removed_keys.h"
#include "config/text.h"
#include "config/validate_experts.h"
#include "config/yaml_value.h"
#include "core/error.h"

namespace te::config {

namespace {

constexpr std::string_view kNamedByFile = "logging.directory";

class Loader {
 public:
  explicit Loader(const std::vector<std::string>& sources)
      : source_(fmt::format("{}", fmt::join(sources, " + "))) {
    config_.name = run_name(sources);
  }

  void read(const std::vector<Assignment>& assignments);
  void read_override(const std::string& assignment);
  /// Checks that only concern what a user writes, not stored configs.
  void check_given() const;
  /// `origins` may be null.
  Config finish(Provenance* origins);
  /// After finish().
  template <class Rule>
  void apply(Rule&& rule);

 private:
  void check_required() const;
  std::string places(std::string_view message) const;
  Provenance provenance(const Config& before);

  std::string source_;  ///< for messages that do not refer to a key
  Config config_;
  std::map<std::string, std::string, std::less<>> given_;  ///< given keys with their places
};

void Loader::read(const std::vector<Assignment>& assignments) {
  for (const Assignment& assignment : assignments) {
    const Key* key = find_key(assignment.path);
    TE_CHECK(key, "an unknown key was read: {}", assignment.path);
    const Where where = [&](const YAML::Node& node) {
      // A missing value has no position; an alias has the position of its anchor, so use the key's position instead.
      Origin at = assignment.at;
      const bool placed = node.IsDefined() && !node.IsNull() && node.Mark().line + 1 >= at.line;
      if (placed && at.line > 0) at.line = node.Mark().line + 1;
      return fmt::format("{}: {}", at.str(), assignment.path);
    };
    read_value(*key, assignment.value, where, config_);
    given_[assignment.path] = assignment.at.str();
  }
}

void Loader::read_override(const std::string& assignment) {
  const std::string shown = fmt::format("--set {}", one_line(assignment));
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    user_error("{}: expected KEY=VALUE, such as --set model.num_layers=4", shown);
  }
  const std::string path = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  const Key* key = find_key(path);
  if (!key) user_error("{}: key {}", shown, unknown_key_message(path));
  YAML::Node value;
  if (std::holds_alternative<std::string*>(key->field(config_))) {
    value = YAML::Node(text);  // not parsed as YAML: the shell has already removed quotes
  } else {
    try {
      if (second_document(text)) user_error("{}: expected one value, got a second YAML document", shown);
      value = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      user_error("{}: broken YAML: {}", shown, error.msg);
    }
  }
  given_[path] = "--set";
  read_value(
      *key, value, [&](const YAML::Node&) { return shown; }, config_);
}

namespace {

/// Keys that have no effect unless another key enables them. A config that gives the other key, even with the value
/// that disables it, may have them: an override that disables a part of its base leaves the keys of that part.
struct Enabled {
  std::string_view keys, by;  ///< `keys` that end with a dot: all keys of the section
};

constexpr auto kEnabled = std::to_array<Enabled>({
    {"adapter.", "adapter.type"},
    {"model.moe_router_bias_update_rate", "model.moe_router_enable_expert_bias"},
    {"training.eval_microbatches", "training.eval_interval"},
    {"optimizer.wsd_decay_steps", "optimizer.decay"},
    {"optimizer.muon_momentum", "optimizer.name"},
    {"precision.loss_scale", "precision.dtype"},
    {"precision.initial_loss_scale", "precision.dtype"},
    {"logging.fp8_what_if", "logging.fp8_statistics_every"},
    {"guard.", "guard.every"},
});

std::vector<std::string> paths_in(const Key& key, Config config) {
  const Field field = key.field(config);
  std::vector<std::string> paths;
  const auto add = [&](const std::vector<DataSource>& sources) {
    for (const DataSource& source : sources) paths.push_back(source.prefix);
  };
  if (const auto* text = std::get_if<std::string*>(&field); text && allowed_values(key).ends_with("a path"))
    paths.push_back(**text);
  if (const auto* sources = std::get_if<std::vector<DataSource>*>(&field)) add(**sources);
  if (const auto* sets = std::get_if<std::vector<ValidationSet>*>(&field))
    for (const ValidationSet& set : **sets) add(set.sources);
  return paths;
}

}  // namespace

void Loader::check_given() const {
  for (const auto& [path, place] : given_) {
    for (const auto& [names, by] : kEnabled) {
      const bool named = names.ends_with('.') ? path.starts_with(names) : path == names;
      if (named && !given_.contains(by))
        user_error("{}: {} has no effect without {}: set it, or leave {} out", place, path, by, path);
    }
    for (const std::string& text : paths_in(*find_key(path), config_)) {
      if (text.starts_with('~') || text.starts_with('$') || text.find("${") != text.npos)
        user_error("{}: {}: {} is not expanded; give the path itself, or ./ before a name that starts so",
                   place, path, in_quotes(text));
    }
  }
}

void Loader::check_required() const {
  std::vector<std::string_view> missing;
  for (const Key& key : keys()) {
    if (key.required() && !given_.contains(key.path)) missing.push_back(key.path);
  }
  if (given_.contains("model.family") && config_.model.family == Family::llama &&
      !given_.contains("model.ffn_hidden_size")) {
    missing.push_back("model.ffn_hidden_size");
  }
  if (missing.size() == 1) user_error("{}: the required key {} is missing", source_, missing[0]);
  if (!missing.empty()) user_error("{}: required keys are missing: {}", source_, fmt::join(missing, ", "));
}

/// "default", with the keys that it depends on.
std::string default_origin(const Key& key) {
  return key.default_text.empty() ? "default" : fmt::format("default: {}", key.default_text);
}

/// Position of `name` as a whole word in a message; npos if it does not occur.
size_t find_word(std::string_view message, std::string_view name) {
  const auto part_of_name = [&](size_t at) {
    return at < message.size() &&
           (std::isalnum(static_cast<unsigned char>(message[at])) != 0 || message[at] == '_');
  };
  size_t found = message.find(name);
  while (found != std::string_view::npos && (part_of_name(found - 1) || part_of_name(found + name.size())))
    found = message.find(name, found + 1);
  return found;
}

/// The keys that a message names, in its order, with the origin of each value; the sources if it names no key.
std::string Loader::places(std::string_view message) const {
  std::map<size_t, std::string> found;
  for (const Key& key : keys()) {
    const size_t at = find_word(message, key.path);
    if (at == std::string_view::npos) continue;
    const auto given = given_.find(key.path);
    found[at] = fmt::format("{}: {}", key.path, given == given_.end() ? default_origin(key) : given->second);
  }
  std::string text;
  for (const auto& [at, place] : found) text += (text.empty() ? "" : ", ") + place;
  return text.empty() ? source_ : text;
}

// Errors end with the places of the keys that they name.
template <class Rule>
void Loader::apply(Rule&& rule) {
  try {
    rule(config_);
  } catch (const UserError& error) {
    user_error("{} ({})", error.what(), places(error.what()));
  }
}

/// `before`: the config before defaults were resolved.
Provenance Loader::provenance(const Config& before) {
  Provenance result;
  Config given = before;
  for (const Key& key : keys()) {
    const std::string path(key.path), was = value_text(key.field(given)), is = value_text(key.field(config_));
    std::string& origin = result.origins[path];
    if (const auto found = given_.find(path); found != given_.end()) {
      origin = found->second + (was == is ? "" : fmt::format("; {} in this run: adjusted to other keys", is));
      if (was != is) result.given[path] = was;
      continue;
    }
    origin = default_origin(key);
    if (was != is || !key.default_text.empty()) result.derived.insert(path);
  }
  // This default depends on the file name, which is not a key, and the text can be saved under another name.
  result.derived.erase(std::string(kNamedByFile));
  result.given.erase(std::string(kNamedByFile));
  return result;
}

Config Loader::finish(Provenance* origins) {
  check_required();
  const Config before = config_;
  follow_other_keys(config_, [&](std::string_view path) { return given_.contains(path); });
  apply([](Config& config) {
    resolve_defaults(config);
    validate(config);
  });
  if (origins) *origins = provenance(before);
  return config_;
}

}  // namespace

Config parse_config(const std::string& yaml_text, const std::string& source_name,
                    const std::vector<std::string>& overrides) {
  SourceReader reader;
  reader.read_text(yaml_text, source_name);
  Loader loader({source_name});
  loader.read(reader.assignments());
  for (const std::string& assignment : overrides) loader.read_override(assignment);
  return loader.finish(nullptr);
}

Config load_config(const std::vector<std::string>& sources, const std::vector<std::string>& overrides,
                   Provenance* provenance) {
  SourceReader reader;
  for (const std::string& source : sources) reader.read(source);
  Loader loader(sources);
  loader.read(reader.assignments());
  for (const std::string& assignment : overrides) loader.read_override(assignment);
  loader.check_given();
  Config config = loader.finish(provenance);
  loader.apply(check_router_learns);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return load_config(std::vector<std::string>{path}, overrides);
}

}  // namespace te::config
