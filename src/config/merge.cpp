#include "config/merge.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "config/key_table.h"
#include "config/presets.h"
#include "config/removed_keys.h"
#include "config/text.h"
#include "core/error.h"
#include "core/file.h"
#include "core/suggest.h"

namespace te::config {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxChain = 16;    // depth of files that extend other files
constexpr int kMaxMergeDepth = 16;  // depth of nested merge keys; an anchor can contain itself
constexpr uint64_t kMaxFileBytes = 8 << 20;
constexpr int kMaxEntries = 10000;  // entries of a file after the expansion of aliases
constexpr std::string_view kExtends = "extends";
constexpr std::string_view kMergeKey = "<<";
constexpr std::string_view kDefinitions = "x-";  // prefix of top-level keys that only define anchors

Origin origin_of(const YAML::Node& node, const std::string& source) {
  return {source, is_preset(source) ? 0 : node.Mark().line + 1};
}

std::string at(const YAML::Node& node, const std::string& source) {
  return origin_of(node, source).str();
}

/// "; did you mean 'configs/run.yaml'?": configs with a similar name in the folder of a missing file, or an empty
/// string.
std::string nearest_files(const std::string& source) {
  constexpr int kMaxFolderEntries = 4096;
  const fs::path missing(source);
  const std::string stem = (missing.extension() == ".yaml" || missing.extension() == ".yml")
                               ? missing.stem().string()
                               : missing.filename().string();
  std::error_code error;
  std::vector<std::pair<std::string, std::string>> found;  // stem, path
  fs::directory_iterator entry(missing.has_parent_path() ? missing.parent_path() : fs::path("."), error);
  for (int i = 0; !error && entry != fs::directory_iterator() && i < kMaxFolderEntries;
       entry.increment(error), ++i) {
    const fs::path& name = entry->path();
    std::error_code ignored;
    if ((name.extension() == ".yaml" || name.extension() == ".yml") && entry->is_regular_file(ignored))
      found.emplace_back(name.stem().string(), (missing.parent_path() / name.filename()).string());
  }
  std::ranges::sort(found);
  NearestNames nearest;
  for (const auto& [other, path] : found) {
    if (const std::optional<int> distance = name_distance(stem, other)) nearest.add(path, *distance);
  }
  return nearest.empty() ? "" : "; " + nearest.question();
}

/// The text of a preset or file. `where` names the line that extends it; empty for a source given as an option.
std::string text_of(const std::string& source, const std::string& where) {
  if (is_preset(source)) return preset_yaml(source, where);
  FileText file = read_file(source, kMaxFileBytes, where.empty() ? FileKind::input : FileKind::regular);
  if (!file) {
    user_error("{}{}: cannot open the configuration file: {}{}", where, source, file.error,
               file.missing ? nearest_files(source) : "");
  }
  return std::move(file.text);
}

std::string identity_of(const std::string& source) {
  std::error_code error;
  if (is_preset(source)) return source;
  const fs::path canonical = fs::weakly_canonical(source, error);
  return error ? source : canonical.string();
}

/// Finds the beginning of the second document of a text. YAML::LoadAll is not used because it does not terminate for
/// some damaged texts.
class SecondDocument : public YAML::EventHandler {
 public:
  explicit SecondDocument(const std::string& text) {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (documents_ < 2 && parser.HandleNextDocument(*this)) ++documents_;
  }
  /// From 1; empty if there is no second document.
  std::optional<int> line() const { return documents_ > 1 ? std::optional(line_ + 1) : std::nullopt; }

  void OnDocumentStart(const YAML::Mark& mark) override { line_ = mark.line; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}

 private:
  int documents_ = 0, line_ = 0;
};

YAML::Node parse(const std::string& text, const std::string& source) {
  try {
    const std::optional<int> second = second_document(text);
    if (!second) return YAML::Load(text);
    user_error("{}:{}: a second YAML document begins here; a configuration must be one document", source,
               *second);
  } catch (const YAML::Exception& error) {
    user_error("{}:{}: broken YAML: {} (column {})", source, error.mark.line + 1, error.msg,
               error.mark.column + 1);
  }
}

bool known_section(const std::string& name) {
  return std::ranges::any_of(sections(), [&](const Section& s) { return s.name == name; });
}

}  // namespace

std::optional<int> second_document(const std::string& text) {
  return SecondDocument(text).line();
}

std::string Origin::str() const {
  return line == 0 ? source : fmt::format("{}:{}", source, line);
}

void SourceReader::read(const std::string& source) {
  read_.insert(identity_of(source));
  read_text(text_of(source, ""), source);
}

void SourceReader::read_text(const std::string& text, const std::string& source) {
  chain_.push_back({source, identity_of(source)});
  const YAML::Node root = parse(text, source);
  if (!root.IsNull()) {
    if (!root.IsMap())
      user_error("{}: expected sections (model, training, ...) with their keys", at(root, source));
    File file = chain_.back();
    read_document(root, file);
  }
  chain_.pop_back();
}

void SourceReader::read_document(const YAML::Node& root, File& file) {
  const std::vector<Entry> entries = entries_of(root, "", file);
  for (const Entry& entry : entries) {
    if (entry.name == kExtends) read_bases(entry.key, entry.value, file);
  }
  for (const Entry& entry : entries) {
    if (entry.name != kExtends && !entry.name.starts_with(kDefinitions)) read_section(entry, file);
  }
}

void SourceReader::read_bases(const YAML::Node& key, const YAML::Node& value, const File& file) {
  const std::string where = at(key, file.source) + ": extends: ";
  const auto name_of = [&](const YAML::Node& node) {
    if (!node.IsScalar() || node.Scalar().empty())
      user_error("{}expected a file, preset:NAME, or a list of these", where);
    return node.Scalar();
  };
  if (!value.IsSequence()) return read_base(name_of(value), where, file);
  for (const YAML::Node& item : value) read_base(name_of(item), where, file);
}

void SourceReader::read_base(const std::string& name, const std::string& where, const File& file) {
  std::string source = name;
  if (!is_preset(name) && fs::path(name).is_relative())
    source = (fs::path(file.source).parent_path() / name).lexically_normal().string();
  const std::string identity = identity_of(source);
  std::string path;
  bool cycle = false;
  for (const File& open : chain_) {
    cycle = cycle || open.identity == identity;
    if (cycle) path += open.source + " -> ";
  }
  if (cycle) user_error("{}{} extends itself: {}{}; leave one of them out", where, source, path, source);
  if (chain_.size() >= kMaxChain) user_error("{}{}: more than {} files deep", where, source, kMaxChain);
  // Two files extend this base: it was already read for the first one, so it is overridden by both.
  if (!read_.insert(identity).second) return;
  read_text(text_of(source, where), source);
}

void SourceReader::read_section(const Entry& section, File& file) {
  const std::string& name = section.name;
  const std::string place = at(section.key, file.source);
  if (const Key* key = find_key(name))
    user_error("{}: key {} must be in its section; write {}: {{{}: ...}}", place, key_name(name),
               key->section(), key->name());
  if (!known_section(name)) user_error("{}: key {} is unknown; {}", place, key_name(name), suggestion(name));
  if (section.value.IsNull()) return;
  if (!section.value.IsMap()) user_error("{}: {}: expected a section with keys of its own", place, name);
  for (const Entry& entry : entries_of(section.value, name + ".", file)) {
    const std::string path = name + "." + entry.name;
    if (!find_key(path)) user_error("{}: key {}", at(entry.key, file.source), unknown_key_message(path));
    assignments_.push_back({path, origin_of(entry.key, file.source), entry.value});
  }
}

/// The entries of a mapping with distinct names: its own entries, then those that its merge keys add.
std::vector<SourceReader::Entry> SourceReader::entries_of(const YAML::Node& map, const std::string& prefix,
                                                          File& file, int depth) {
  std::vector<Entry> entries, merges;
  std::map<std::string, int> lines;
  for (const auto& node : map) {
    if (++file.expanded > kMaxEntries)
      user_error("{}: the file's aliases expand to more than {} keys", at(node.first, file.source),
                 kMaxEntries);
    if (!node.first.IsScalar()) user_error("{}: expected the name of a key", at(node.first, file.source));
    const Entry entry{node.first.Scalar(), node.first, node.second};
    const int line = entry.key.Mark().line + 1;
    const auto [earlier, is_new] = lines.emplace(entry.name, line);
    if (!is_new) {
      user_error("{}: {}{} is given twice; first in line {}", at(entry.key, file.source), prefix, entry.name,
                 earlier->second);
    }
    (entry.name == kMergeKey ? merges : entries).push_back(entry);
  }
  for (const Entry& merge : merges) add_merged(entries, merge, prefix, file, depth);
  return entries;
}

/// Adds the entries of merged mappings. Existing entries take precedence, then the first of several mappings
/// (https://yaml.org/type/merge.html).
void SourceReader::add_merged(std::vector<Entry>& entries, const Entry& merge, const std::string& prefix,
                              File& file, int depth) {
  const std::string place = at(merge.key, file.source);
  if (depth >= kMaxMergeDepth) user_error("{}: <<: more than {} mappings deep", place, kMaxMergeDepth);
  const auto add = [&](const YAML::Node& map) {
    if (!map.IsMap())
      user_error("{}: <<: expected a mapping, such as the alias *NAME, or a list of them", place);
    for (Entry& entry : entries_of(map, prefix, file, depth + 1)) {
      const bool given =
          std::ranges::any_of(entries, [&](const Entry& other) { return other.name == entry.name; });
      if (!given) entries.push_back(std::move(entry));
    }
  };
  if (!merge.value.IsSequence()) return add(merge.value);
  for (const YAML::Node& map : merge.value) add(map);
}

std::string run_name(const std::vector<std::string>& sources) {
  std::string name;
  for (const std::string& source : sources) {
    if (!name.empty()) name += '+';
    name += is_preset(source) ? std::string(preset_name(source)) : fs::path(source).stem().string();
  }
  return name;
}

}  // namespace te::config
