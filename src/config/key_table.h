// The one table of configuration keys, whose rows are in key_rows_*.cpp. Parsing, range checks, suggestions, to_yaml,
// --help and docs/reference/configuration.md are loops over it; adding a key means adding a field to config.h and a
// row there. Private to this folder.
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

/// An enum of config.h seen as an index into its names.
struct EnumField {
  std::span<const std::string_view> names;
  uint8_t* index;
};

/// Where a key lives inside a Config; the alternative is the key's type.
using Field = std::variant<int64_t*, uint64_t*, double*, bool*, std::string*, std::vector<DataSource>*,
                           std::vector<ValidationSet>*, std::vector<std::string>*, EnumField>;

/// Allowed numbers; an open end excludes the bound itself.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false;
  bool open_high = false;
  bool contains(double value) const;
};

/// Default texts of the table: the key must be given, or the default is the one of the struct.
inline constexpr std::string_view kRequired = "required";
inline constexpr std::string_view kBuiltIn = "";

struct Key {
  std::string_view path;  ///< "section.name"
  Field (*field)(Config&);
  std::string_view default_text;  ///< kRequired, kBuiltIn, or in words when it depends on other keys
  Range range;                    ///< of integers and numbers
  std::string_view meaning;       ///< one sentence of at most 25 words, with unit
  std::string_view rule = {};     ///< allowed values in words, where neither range nor enum says it
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

/// "integer", "number", "boolean", "string", "name", "list", "list or mapping".
std::string_view type_name(const Key& key);
/// Allowed values in words: "1 or more", "off, e4m3, hybrid"; empty when anything goes.
std::string allowed_values(const Key& key);
/// The meaning for a terminal: without the reference's marks, links as paths.
std::string plain_meaning(const Key& key);
/// A range in words: "0 or more and below 1".
std::string range_text(const Range& range);
/// A value as it is written in YAML, on one line.
std::string value_text(const Field& field);
/// A double as YAML: shortest text that reads back as the same double, recognisable as a number.
std::string number_text(double value);

/// Defaults that follow other keys, of those that are not `given`. Where a value stands for "absent" (0, empty, auto),
/// resolve_defaults() does it.
void follow_other_keys(Config& config, const std::function<bool(std::string_view path)>& given);

/// UserError "WHERE: VALUE is out of range: RULE" when a number of the key lies outside its range.
void check_range(const Key& key, Config& config, std::string_view where);

}  // namespace te::config
