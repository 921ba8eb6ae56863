// Strict readers of scalars and of lists of datasets.
#include "config/yaml_value.h"

#include <charconv>
#include <cmath>

#include "config/text.h"
#include "core/error.h"

namespace te::config {

namespace {

bool is_quoted(const YAML::Node& node) {
  return node.Tag() == "!";  // yaml-cpp's tag of scalars in quotes
}

std::string found(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  if (!node.IsScalar()) return "nothing";
  std::string text = node.Scalar();
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return (is_quoted(node) ? "the string " : "") + in_quotes(text);
}

[[noreturn]] void ill_typed(const std::string& expected, const YAML::Node& node, const Where& where) {
  user_error("{}: expected {}, got {}", where(node), expected, found(node));
}

/// The whole text as a decimal number; no octal, hexadecimal, infinity or NaN.
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
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx")) {
    user_error("{}: {} names a file; give the prefix {}", where(node), in_quotes(prefix),
               in_quotes(prefix.substr(0, prefix.size() - 4)));
  }
  return prefix;
}

DataSource read_source(const YAML::Node& node, const Where& where) {
  double weight = 1.0;
  if (node.IsScalar()) {
    // [0.5, path] without the outer brackets would otherwise be taken for two prefixes.
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

struct Reader {
  const YAML::Node& node;
  const Where& where;

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
  void operator()(std::vector<DataSource>* value) const {
    value->clear();
    if (node.IsScalar()) {
      value->push_back(read_source(node, where));
    } else if (node.IsSequence()) {
      for (const YAML::Node& item : node) value->push_back(read_source(item, where));
    } else {
      ill_typed("[[weight, prefix], ...], a list of prefixes, or one prefix", node, where);
    }
  }
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
  std::visit(Reader{node, where}, key.field(config));
  check_range(key, config, where(node));
}

}  // namespace te::config
