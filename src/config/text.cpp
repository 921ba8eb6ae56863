// Quoting, and suggestions for mistyped keys.
#include "config/text.h"

#include <algorithm>
#include <optional>

#include "config/key_table.h"
#include "config/provenance.h"
#include "core/error.h"
#include "core/suggest.h"

namespace te::config {

namespace {

void append_escaped(std::string& result, char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte < 0x20 || byte == 0x7f) {
    result += fmt::format("\\x{:02x}", byte);
  } else {
    result += c;
  }
}

}  // namespace

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    append_escaped(result, c);
  }
  return result + '"';
}

std::string one_line(std::string_view text) {
  constexpr size_t kShown = 120;
  std::string result;
  for (const char c : text.substr(0, kShown)) append_escaped(result, c);
  return text.size() > kShown ? result + "..." : result;
}

std::string key_name(std::string_view path) {
  return fmt::format("'{}'", one_line(path));
}

namespace {

/// Additional distances; an edit of a name costs more than kNearSection or kSynonym.
constexpr int kOtherSection = 50, kNearSection = 25, kSynonym = 20;

std::string_view leaf(std::string_view path) {
  return path.substr(path.rfind('.') + 1);  // npos + 1 is 0: a path without a dot is its own leaf
}

std::string_view section_of(std::string_view path) {
  return path.substr(0, path.find('.'));
}

/// The keys that are nearest to an unknown one. Keys of the same section come first, then keys of a section with a
/// similar name (log, logging); a correct name in a wrong section comes before a wrong name in the correct section.
/// Synonyms count as names of their keys; mistyped ones only in these sections.
NearestNames nearest_keys(std::string_view unknown) {
  const std::string_view name = leaf(unknown), section = section_of(unknown);
  const bool has_section = section.size() != unknown.size();
  NearestNames nearest;
  const auto offer = [&](std::string_view candidate, std::string_view key, int cost, int elsewhere) {
    const bool related = has_section && section == section_of(key);
    const bool near = has_section && name_distance(section, section_of(key)).has_value();
    const std::optional<int> distance = name_distance(name, candidate, near);
    if (!distance || (has_section && !near && cost > 0 && *distance > 0)) return;
    nearest.add(key, *distance + cost + (related ? 0 : near ? kNearSection : elsewhere));
  };
  for (const Key& key : keys()) offer(key.name(), key.path, 0, kOtherSection);
  for (const Synonym& synonym : synonyms()) {
    // A path with a section most probably means that section, so synonyms of keys in other sections come last.
    if (synonym.theirs.find('.') == std::string_view::npos)
      offer(synonym.theirs, synonym.ours, kSynonym, has_section ? 3 * kOtherSection : 0);
    else if (name_distance(unknown, synonym.theirs) == 0)
      nearest.add(synonym.ours, kSynonym);
  }
  return nearest;
}

}  // namespace

std::string suggestion(std::string_view unknown_path) {
  const std::string_view path = unknown_path.substr(0, 128);
  if (const std::string_view hint = hint_of(path); !hint.empty()) return std::string(hint);
  if (path == "extends")
    return "it belongs at the top level of a file; give another file with a second --config";
  NearestNames nearest = nearest_keys(path);
  if (path.find('.') == std::string_view::npos) {
    for (const Section& section : sections()) {
      if (section.name == path)
        return fmt::format("it is a section; name a key in it, such as {}.KEY=VALUE", path);
      nearest.add_if_near(path, section.name);
    }
    nearest.add_if_near(path, "extends");
  }
  return nearest.empty() ? "te-train --describe-keys lists all keys" : nearest.question();
}

std::string set_suggestion(std::string_view option) {
  const std::string_view name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  if (const std::string_view hint = hint_of(name); !hint.empty()) return std::string(hint);
  for (const Section& section : sections())
    if (section.name == name) return fmt::format("did you mean --set {}.KEY=VALUE?", name);
  const NearestNames nearest = nearest_keys(name.substr(0, 128));
  // A more distant name is probably a mistyped option of the program.
  if (nearest.empty() || nearest.distance() > kOtherSection + kSynonym) return "";
  std::string text = nearest.question("");
  for (size_t at = text.find('.'); at != std::string::npos; at = text.find('.', at + 1)) {
    const size_t begin = text.rfind(' ', at) + 1, end = text.find_first_of(" ,?", at);
    text.insert(end, "=VALUE");
    text.insert(begin, "--set ");
    at = end + 12;
  }
  return text;
}

}  // namespace te::config
