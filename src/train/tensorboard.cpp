#include "train/tensorboard.h"

#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace te::train {
namespace {

using nlohmann::json;
using Values = std::vector<ProtoMessage>;

std::string tag_of(const std::string& key) {
  constexpr std::array<std::string_view, 4> kSpeed = {"tokens_per_s", "step_ms", "tflops", "speed_of_light"};
  constexpr std::string_view kValid = "valid_";
  if (std::ranges::find(kSpeed, key) != kSpeed.end()) return "perf/" + key;
  return key.starts_with(kValid) ? "valid/" + key.substr(kValid.size()) : "train/" + key;
}

/// Formats text as a Markdown code block.
std::string code(const std::string& text) {
  std::string block = "    ";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n' && i + 1 == text.size()) break;
    block += text[i];
    if (text[i] == '\n') block += "    ";
  }
  return block;
}

void add_value(Values& values, const std::string& tag, const json& value) {
  if (value.is_null()) {
    values.push_back(scalar_value(tag, std::numeric_limits<double>::quiet_NaN()));
  } else if (value.is_boolean()) {
    values.push_back(scalar_value(tag, value.get<bool>() ? 1 : 0));
  } else if (value.is_number()) {
    values.push_back(scalar_value(tag, value.get<double>()));
  } else if (value.is_string()) {
    values.push_back(text_value(tag, code(value.get<std::string>())));
  } else if (value.is_object()) {
    for (const auto& [name, inner] : value.items()) add_value(values, fmt::format("{}/{}", tag, name), inner);
  } else {
    values.push_back(text_value(tag, code(dump_json(value, 2))));
  }
}

/// A quantity of an operand's record; NaN if it has none, which histograms ignore.
double quantity(const json& operand, const char* name) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto found = operand.find(name);
  return found != operand.end() && found->is_number() ? found->get<double>() : kNone;
}

void add_fp8(Values& values, const json& operands) {
  std::map<std::string, std::vector<double>> of_tag;
  std::map<std::string, double> largest;
  for (const json& operand : operands) {
    const std::string role = operand.value("role", "operand");
    for (const char* name : {"amax", "scale"}) {
      const double value = quantity(operand, name);
      // A tensor of zeros has no logarithm.
      if (value > 0) of_tag[std::string("fp8/log2_") + name + "/" + role].push_back(std::log2(value));
    }
    for (const char* name : {"saturated", "flushed", "recast"}) {
      if (!operand.contains(name)) continue;
      const double share = quantity(operand, name);
      of_tag[std::string("fp8/") + name + "/" + role].push_back(share);
      double& most = largest[std::string("fp8/") + name + "_max"];
      most = std::max(most, share);
    }
  }
  for (const auto& [tag, numbers] : of_tag) values.push_back(histogram_value(tag, numbers));
  for (const auto& [tag, share] : largest) values.push_back(scalar_value(tag, share));
}

/// Adds one histogram per tag.
void add_statistics_of(Values& values, const json& operands) {
  std::map<std::string, std::vector<double>> of_tag;
  for (const json& operand : operands) {
    const bool what_if = operand.value("what_if", false);
    const std::string role = operand.value("role", "operand");
    const std::string recipe = what_if ? operand.value("recipe", "") + "/" : "";
    const auto quantities = [&](const char* name) -> std::vector<double>& {
      return of_tag[fmt::format("fp8_statistics/{}{}/{}", recipe, name, role)];
    };
    for (const char* name : {"sqnr_db", "flushed"})
      if (operand.contains(name)) quantities(name).push_back(quantity(operand, name));
    if (what_if) continue;
    for (const char* name : {"kurtosis", "dynamic_range"})
      quantities(name).push_back(quantity(operand, name));
  }
  for (const auto& [tag, numbers] : of_tag) values.push_back(histogram_value(tag, numbers));
}

}  // namespace

TensorBoard::TensorBoard(const std::filesystem::path& directory, int64_t first_step,
                         const std::string& config)
    : file_(directory) {
  file_.start_at(first_step);
  file_.add(first_step, {text_value("config", code(config))});
}

void TensorBoard::add_statistics(const json& record) {
  Values values;
  add_statistics_of(values, record.at("operands"));
  file_.add(record.at("step").get<int64_t>(), values);
}

void TensorBoard::add(const json& record) {
  Values values;
  for (const auto& [key, value] : record.items()) {
    if (key == "step") continue;
    if (key == "fp8" && value.is_array()) {
      add_fp8(values, value);
    } else {
      add_value(values, value.is_structured() ? key : tag_of(key), value);
    }
  }
  file_.add(record.at("step").get<int64_t>(), values);
}

}  // namespace te::train
