// Strict parsers of scalars and of lists of datasets.
#include "config/yaml_value.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "config/rope_scaling.h"
#include "config/text.h"
#include "core/dataset_prefix.h"
#include "core/error.h"
#include "core/strings.h"

namespace te::config {

namespace {

bool is_quoted(const YAML::Node& node) {
  return node.Tag() == "!";  // yaml-cpp's tag for quoted scalars
}

std::string found(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  if (!node.IsScalar()) return "nothing";
  std::string text = node.Scalar();
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return (is_quoted(node) ? "the string " : "") + in_quotes(text);
}

}  // namespace

void ill_typed(const std::string& expected, const YAML::Node& node, const Where& where) {
  user_error("{}: expected {}, got {}", where(node), expected, found(node));
}

namespace {

/// Parses the whole text as a decimal number; octal, hexadecimal, infinity and NaN are refused.
template <class T>
bool parse_number(std::string_view text, T& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  if constexpr (std::is_floating_point_v<T>) return std::isfinite(value);
  return true;
}

template <class T>
bool plain_number(const YAML::Node& node, T& value) {
  return node.IsScalar() && !is_quoted(node) && parse_number(node.Scalar(), value);
}

std::string read_prefix(const YAML::Node& node, const Where& where) {
  if (!node.IsScalar() || node.Scalar().empty()) ill_typed("the path prefix of a dataset", node, where);
  const std::string& prefix = node.Scalar();
  if (const std::string_view named = prefix_of_dataset_file(prefix); !named.empty()) {
    user_error("{}: {} names a file; give the prefix {}", where(node), in_quotes(prefix),
               in_quotes(std::string(named)));
  }
  return prefix;
}

DataSource read_source(const YAML::Node& node, const Where& where) {
  double weight = 1.0;
  if (node.IsScalar()) {
    // [0.5, path] without the outer brackets would otherwise be interpreted as two prefixes.
    if (plain_number(node, weight))
      ill_typed("a path prefix or [weight, prefix] (is a pair of brackets missing?)", node, where);
    return {1.0, read_prefix(node, where)};
  }
  if (!node.IsSequence() || node.size() != 2) ill_typed("a path prefix or [weight, prefix]", node, where);
  if (!plain_number(node[0], weight)) ill_typed("a number as the weight of a dataset", node[0], where);
  if (!(weight > 0.0))
    user_error("{}: the weight {} of a dataset must be above 0", where(node[0]), number_text(weight));
  return {weight, read_prefix(node[1], where)};
}

constexpr const char* kSources = "[[weight, prefix], ...], a list of prefixes, or one prefix";

std::vector<DataSource> read_sources(const YAML::Node& node, const Where& where, const char* expected) {
  if (node.IsScalar()) return {read_source(node, where)};
  if (!node.IsSequence()) ill_typed(expected, node, where);
  std::vector<DataSource> sources;
  for (const YAML::Node& item : node) sources.push_back(read_source(item, where));
  return sources;
}

// The name becomes a column of loss.csv and a key of metrics.jsonl.
std::string read_set_name(const YAML::Node& node, const Where& where) {
  const std::string name = node.IsScalar() ? node.Scalar() : "";
  if (!is_plain_name(name))
    ill_typed("the name of a validation set (letters, digits, _, - and .)", node, where);
  return name;
}

struct Reader {
  const YAML::Node& node;
  const Where& where;
  Config& config;

  void operator()(int64_t* value) const {
    if (!plain_number(node, *value)) ill_typed("an integer", node, where);
  }
  void operator()(uint64_t* value) const {
    if (!plain_number(node, *value)) ill_typed("an integer from 0 to 2^64 - 1", node, where);
  }
  void operator()(double* value) const {
    if (!plain_number(node, *value)) ill_typed("a number", node, where);
  }
  void operator()(bool* value) const {
    const bool plain = node.IsScalar() && !is_quoted(node);
    if (!plain || (node.Scalar() != "true" && node.Scalar() != "false"))
      ill_typed("true or false", node, where);
    *value = node.Scalar() == "true";
  }
  void operator()(std::string* value) const {
    if (!node.IsScalar()) ill_typed("a string", node, where);
    *value = node.Scalar();
  }
  void operator()(std::vector<DataSource>* value) const { *value = read_sources(node, where, kSources); }
  void operator()(std::vector<ValidationSet>* value) const {
    value->clear();
    if (!node.IsMap()) {
      std::vector<DataSource> sources = read_sources(
          node, where,
          "a mapping of names to datasets, [[weight, prefix], ...], a list of prefixes, or one prefix");
      if (!sources.empty()) value->push_back({.sources = std::move(sources)});
      return;
    }
    for (const auto& entry : node) {
      const std::string name = read_set_name(entry.first, where);
      for (const ValidationSet& other : *value)
        if (other.name == name)
          user_error("{}: the validation set {} is given twice", where(entry.first), name);
      value->push_back({name, read_sources(entry.second, where, kSources)});
      if (value->back().sources.empty())
        user_error("{}: the validation set {} names no dataset", where(entry.second), name);
    }
  }
  void operator()(std::vector<std::string>* value) const {
    value->clear();
    if (node.IsScalar()) {
      value->push_back(node.Scalar());
      return;
    }
    if (!node.IsSequence()) ill_typed("a list of texts, or one text", node, where);
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) ill_typed("a text", item, where);
      value->push_back(item.Scalar());
    }
  }
  void operator()(RopeScaling*) const { read_rope_scaling(node, where, config); }
  void operator()(const EnumField& field) const {
    for (size_t i = 0; node.IsScalar() && i < field.names.size(); ++i) {
      if (field.names[i] == node.Scalar()) {
        *field.index = static_cast<uint8_t>(i);
        return;
      }
    }
    const bool several = field.names.size() > 1;
    ill_typed(fmt::format("{}{}", several ? "one of " : "", fmt::join(field.names, ", ")), node, where);
  }
};

}  // namespace

void read_value(const Key& key, const YAML::Node& node, const Where& where, Config& config) {
  std::visit(Reader{node, where, config}, key.field(config));
  check_range(key, config, where(node));
}

}  // namespace te::config
