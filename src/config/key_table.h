// The table of configuration keys; its rows are in key_rows_*.cpp. Parsing, range checks, suggestions, to_yaml, --help
// and docs/reference/configuration.md are loops over it. A new key needs a field in config.h and a row in the table.
// Private to this folder.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace te::config {

/// An enum of config.h as an index into its names.
struct EnumField {
  std::span<const std::string_view> names;
  uint8_t* index;
};

/// Pointer to the field of a key in a Config; the alternative is the key's type.
using Field = std::variant<int64_t*, uint64_t*, double*, bool*, std::string*, std::vector<DataSource>*,
                           std::vector<ValidationSet>*, std::vector<std::string>*, RopeScaling*, EnumField>;

/// The allowed range of a number; an open end excludes the bound.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false;
  bool open_high = false;
  bool contains(double value) const;
};

/// Special default texts of the table: the key is required, or its default is that of the struct.
inline constexpr std::string_view kRequired = "required";
inline constexpr std::string_view kBuiltIn = "";

struct Key {
  std::string_view path;  ///< "section.name"
  Field (*field)(Config&);
  std::string_view default_text;  ///< kRequired, kBuiltIn, or a description if it depends on other keys
  Range range;                    ///< of integers and numbers
  std::string_view meaning;       ///< one sentence of at most 25 words, with unit
  std::string_view rule = {};     ///< allowed values in words, if range and enum do not define them
  bool required() const { return default_text == kRequired; }
  std::string_view section() const { return path.substr(0, path.find('.')); }
  std::string_view name() const { return path.substr(path.find('.') + 1); }
};

struct Section {
  std::string_view name;
  std::string_view intro;
};

std::span<const Section> sections();
std::span<const Key> keys();
const Key* find_key(std::string_view path);

/// "integer", "number", "boolean", "string", "name", "list", "mapping", "list or mapping".
std::string_view type_name(const Key& key);
/// Allowed values in words: "1 or more", "off, e4m3, hybrid"; empty if there is no restriction.
std::string allowed_values(const Key& key);
/// The meaning as plain text: without Markdown, with links as paths.
std::string plain_meaning(const Key& key);
/// A range in words: "0 or more and below 1".
std::string range_text(const Range& range);
/// A value as YAML, on one line.
std::string value_text(const Field& field);
/// A double as YAML: the shortest text that is read back as the same double and is recognizable as a number.
std::string number_text(double value);

/// Sets defaults that depend on other keys, for keys that are not `given`. resolve_defaults() handles the keys with a
/// value that means "not given" (0, empty, auto).
void follow_other_keys(Config& config, const std::function<bool(std::string_view path)>& given);

/// UserError "WHERE: VALUE is out of range; it must be RULE" if the number of the key is outside its range, also after
/// rounding to float32, or if float32 has no normal number for it.
void check_range(const Key& key, Config& config, std::string_view where);

}  // namespace te::config
