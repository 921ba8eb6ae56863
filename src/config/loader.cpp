// YAML text and --set overrides into a Config: every key is looked up in the table, read strictly, and
// reported with its file and line when it is wrong. Defaults that depend on other keys come last, then
// validation.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "config/key_table.h"
#include "config/text.h"
#include "config/yaml_value.h"
#include "core/error.h"

namespace te::config {

namespace {

class Loader {
 public:
  explicit Loader(const std::string& source) : source_(source) {
    config_.name = std::filesystem::path(source).stem().string();
  }

  void read_text(const std::string& text);
  void read_override(const std::string& assignment);
  Config finish(const std::vector<std::string>& overrides);

 private:
  void read_section(const std::string& name, const YAML::Node& key_node, const YAML::Node& body);
  void note_key(const std::string& path, const YAML::Node& key_node);
  std::string key_text(const YAML::Node& key_node) const;
  std::string at(const YAML::Mark& mark) const { return fmt::format("{}:{}", source_, mark.line + 1); }
  void check_required() const;

  std::string source_;
  Config config_;
  std::map<std::string, int> lines_;          ///< line of each section and key seen in the file
  std::set<std::string, std::less<>> given_;  ///< keys given in the file or by an override
};

std::vector<YAML::Node> parse_yaml(const std::string& text, const std::string& source) {
  try {
    return YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    user_error("{}:{}: broken YAML: {} (column {})", source, error.mark.line + 1, error.msg,
               error.mark.column + 1);
  }
}

void Loader::read_text(const std::string& text) {
  const std::vector<YAML::Node> documents = parse_yaml(text, source_);
  if (documents.size() > 1) {
    user_error("{}: a configuration is one YAML document, but there is another one", at(documents[1].Mark()));
  }
  if (documents.empty() || documents[0].IsNull()) return;
  const YAML::Node& root = documents[0];
  if (!root.IsMap()) {
    user_error("{}: expected sections (model, training, ...) with their keys", at(root.Mark()));
  }
  for (const auto& entry : root) read_section(key_text(entry.first), entry.first, entry.second);
}

std::string Loader::key_text(const YAML::Node& key_node) const {
  if (!key_node.IsScalar()) user_error("{}: expected the name of a key", at(key_node.Mark()));
  return key_node.Scalar();
}

void Loader::note_key(const std::string& path, const YAML::Node& key_node) {
  const int line = key_node.Mark().line + 1;
  const auto [earlier, is_new] = lines_.emplace(path, line);
  if (!is_new) user_error("{}:{}: {} is given twice; first in line {}", source_, line, path, earlier->second);
}

void Loader::read_section(const std::string& name, const YAML::Node& key_node, const YAML::Node& body) {
  bool known = false;
  for (const Section& section : sections()) known = known || section.name == name;
  if (!known) user_error("{}: key {} is unknown; {}", at(key_node.Mark()), key_name(name), suggestion(name));
  note_key(name, key_node);
  if (body.IsNull()) return;
  if (!body.IsMap()) user_error("{}: {}: expected a section with keys of its own", at(key_node.Mark()), name);
  for (const auto& entry : body) {
    const std::string path = name + "." + key_text(entry.first);
    const Key* key = find_key(path);
    if (!key)
      user_error("{}: key {} is unknown; {}", at(entry.first.Mark()), key_name(path), suggestion(path));
    note_key(path, entry.first);
    given_.insert(path);
    const YAML::Mark key_mark = entry.first.Mark();
    const Where where = [&](const YAML::Node& node) {
      // A value that is not there has no place of its own.
      const bool placed = node.IsDefined() && !node.IsNull() && node.Mark().line >= key_mark.line;
      return fmt::format("{}: {}", at(placed ? node.Mark() : key_mark), path);
    };
    read_value(*key, entry.second, where, config_);
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
  if (!key) user_error("{}: key {} is unknown; {}", shown, key_name(path), suggestion(path));
  YAML::Node value;
  if (std::holds_alternative<std::string*>(key->field(config_))) {
    value = YAML::Node(text);  // as it is: a shell has already taken the quotes off
  } else {
    try {
      value = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      user_error("{}: broken YAML: {}", shown, error.msg);
    }
  }
  given_.insert(path);
  read_value(
      *key, value, [&](const YAML::Node&) { return shown; }, config_);
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

Config Loader::finish(const std::vector<std::string>& overrides) {
  check_required();
  if (!given_.contains("model.tie_word_embeddings")) {
    config_.model.tie_word_embeddings = config_.model.family == Family::gpt;
  }
  try {
    resolve_defaults(config_);
    validate(config_);
  } catch (const UserError& error) {
    if (overrides.empty()) user_error("{}: {}", source_, error.what());
    user_error("{} with --set {}: {}", source_, one_line(fmt::format("{}", fmt::join(overrides, " --set "))),
               error.what());
  }
  return config_;
}

}  // namespace

Config parse_config(const std::string& yaml_text, const std::string& source_name,
                    const std::vector<std::string>& overrides) {
  Loader loader(source_name);
  loader.read_text(yaml_text);
  for (const std::string& assignment : overrides) loader.read_override(assignment);
  return loader.finish(overrides);
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  if (std::filesystem::is_directory(path)) user_error("{}: is a directory, not a configuration file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) user_error("{}: cannot open the configuration file: {}", path, std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  return parse_config(text.str(), path, overrides);
}

}  // namespace te::config
