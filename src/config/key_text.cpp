// Texts of keys, values and rules for errors, YAML and the reference.
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "config/key_table.h"
#include "config/rope_scaling.h"
#include "config/text.h"
#include "core/error.h"

namespace te::config {

namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;  // clang 14 does not deduce it

std::string bound_text(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value)
                                                              : fmt::format("{}", value);
}

std::string sources_text(const std::vector<DataSource>& sources) {
  std::string text = "[";
  for (const DataSource& source : sources) {
    if (text.size() > 1) text += ", ";
    text += fmt::format("[{}, {}]", number_text(source.weight), in_quotes(source.prefix));
  }
  return text + "]";
}

// A single set with the default name is written as a plain list.
std::string sets_text(const std::vector<ValidationSet>& sets) {
  if (sets.empty()) return "[]";
  if (sets.size() == 1 && sets[0].name == ValidationSet{}.name) return sources_text(sets[0].sources);
  std::string text = "{";
  for (const ValidationSet& set : sets) {
    if (text.size() > 1) text += ", ";
    text += fmt::format("{}: {}", in_quotes(set.name), sources_text(set.sources));
  }
  return text + "}";
}

std::string texts_text(const std::vector<std::string>& texts) {
  std::string text = "[";
  for (const std::string& item : texts) text += (text.size() > 1 ? ", " : "") + in_quotes(item);
  return text + "]";
}

}  // namespace

bool Range::contains(double value) const {
  if (!std::isfinite(value)) return false;
  const bool above_low = open_low ? value > low : value >= low;
  const bool below_high = open_high ? value < high : value <= high;
  return above_low && below_high;
}

std::string range_text(const Range& range) {
  const bool has_low = std::isfinite(range.low);
  const bool has_high = std::isfinite(range.high);
  if (has_low && has_high && !range.open_low && !range.open_high) {
    return fmt::format("{} to {}", bound_text(range.low), bound_text(range.high));
  }
  std::string text;
  if (has_low)
    text = fmt::format(fmt::runtime(range.open_low ? "above {}" : "{} or more"), bound_text(range.low));
  if (has_high) {
    if (has_low) text += ", ";
    text += fmt::format(fmt::runtime(range.open_high ? "below {}" : "at most {}"), bound_text(range.high));
  }
  return text;
}

std::string_view type_name(const Key& key) {
  Config config;
  return std::visit(Overloaded{
                        [](int64_t*) { return "integer"; },
                        [](uint64_t*) { return "integer"; },
                        [](double*) { return "number"; },
                        [](bool*) { return "boolean"; },
                        [](std::string*) { return "string"; },
                        [](std::vector<DataSource>*) { return "list"; },
                        [](std::vector<ValidationSet>*) { return "list or mapping"; },
                        [](std::vector<std::string>*) { return "list"; },
                        [](RopeScaling*) { return "mapping"; },
                        [](const EnumField&) { return "name"; },
                    },
                    key.field(config));
}

std::string allowed_values(const Key& key) {
  if (!key.rule.empty()) return std::string(key.rule);
  Config config;
  const Field field = key.field(config);
  if (const auto* names = std::get_if<EnumField>(&field)) {
    return fmt::format("`{}`", fmt::join(names->names, "`, `"));
  }
  if (std::holds_alternative<bool*>(field)) return "`true`, `false`";
  if (std::holds_alternative<std::string*>(field)) return "a path";
  return range_text(key.range);
}

std::string plain_meaning(const Key& key) {
  std::string text(key.meaning);
  std::erase(text, '`');
  // [reference/dtypes.md](dtypes.md#attention) -> docs/reference/dtypes.md
  for (size_t middle; (middle = text.find("](")) != std::string::npos;) {
    const size_t begin = text.rfind('[', middle), end = text.find(')', middle);
    TE_CHECK(begin != std::string::npos && end != std::string::npos, "{}: broken link in the meaning",
             key.path);
    const std::string label = text.substr(begin + 1, middle - begin - 1);
    text.replace(begin, end - begin + 1, (label.ends_with(".md") ? "docs/" : "") + label);
  }
  return text;
}

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  // YAML 1.1 readers interpret a number without a decimal point before its exponent as a string.
  if (text.find('.') == std::string::npos) {
    const size_t exponent = text.find('e');
    text.insert(exponent == std::string::npos ? text.size() : exponent, ".0");
  }
  return text;
}

std::string value_text(const Field& field) {
  return std::visit(Overloaded{
                        [](const int64_t* value) { return std::to_string(*value); },
                        [](const uint64_t* value) { return std::to_string(*value); },
                        [](const double* value) { return number_text(*value); },
                        [](const bool* value) { return std::string(*value ? "true" : "false"); },
                        [](const std::string* value) { return in_quotes(*value); },
                        [](const std::vector<DataSource>* value) { return sources_text(*value); },
                        [](const std::vector<ValidationSet>* value) { return sets_text(*value); },
                        [](const std::vector<std::string>* value) { return texts_text(*value); },
                        [](const RopeScaling* value) { return rope_scaling_text(*value); },
                        [](const EnumField& value) { return std::string(value.names[*value.index]); },
                    },
                    field);
}

namespace {

/// Most numbers are used as float32, where a tiny one would be 0, a huge one infinite, and one near a bound that the
/// range excludes would be that bound. Subnormal numbers are refused, too: their reciprocals are infinite.
void check_float32(const Range& range, double value, std::string_view where) {
  using Limits = std::numeric_limits<float>;
  if (value != 0.0 && std::abs(value) < Limits::min()) {
    user_error("{}: {} is too close to 0 for float32; it must be {}at least 1.2e-38", where,
               number_text(value), range.contains(0.0) ? "0 or " : "");
  }
  if (std::abs(value) > Limits::max())
    user_error("{}: {} is too large for float32; it must be at most 3.4e38", where, number_text(value));
  const auto rounded = static_cast<double>(static_cast<float>(value));
  if (!range.contains(rounded)) {
    user_error("{}: {} is {} in float32; it must be {} in float32, too", where, number_text(value),
               number_text(rounded), range_text(range));
  }
}

}  // namespace

void check_range(const Key& key, Config& config, std::string_view where) {
  const Field field = key.field(config);
  double value = 0.0;
  if (const auto* integer = std::get_if<int64_t*>(&field)) {
    value = static_cast<double>(**integer);
  } else if (const auto* number = std::get_if<double*>(&field)) {
    value = **number;
  } else {
    return;  // unsigned integers are not restricted, and other types have no range
  }
  if (!key.range.contains(value)) {
    user_error("{}: {} is out of range; it must be {}", where, value_text(field), range_text(key.range));
  }
  if (std::holds_alternative<double*>(field)) check_float32(key.range, value, where);
}

}  // namespace te::config
