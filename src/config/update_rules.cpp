#include "config/update_rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "config/text.h"
#include "core/error.h"
#include "core/strings.h"

namespace te::config {
namespace {

constexpr std::string_view kEmbeddings = "embeddings", kNorms = "norms", kMatrices = "matrices",
                           kBiases = "biases";

[[noreturn]] void refuse(const std::string& text, const std::string& problem) {
  user_error(
      "optimizer.groups: {} {}; a rule is SELECTORS: lr_factor X, weight_decay Y (one or both), with "
      "selectors "
      "separated by commas: embeddings, norms, matrices, biases or names as word_embeddings, output_layer, "
      "linear_*",
      in_quotes(text), problem);
}

bool matches(std::string_view selector, ParameterRole role) {
  return fnmatch(std::string(selector).c_str(), std::string(to_string(role)).c_str(), 0) == 0;
}

bool is_kind(std::string_view selector) {
  return selector == kEmbeddings || selector == kNorms || selector == kMatrices || selector == kBiases;
}

void check_selector(const std::string& text, std::string_view selector) {
  bool known = is_kind(selector);
  for (int role = 0; role < static_cast<int>(ParameterRole::other); ++role)
    known = known || matches(selector, static_cast<ParameterRole>(role));
  if (!known) refuse(text, "has the unknown selector " + in_quotes(selector));
}

/// Reads "lr_factor 0.2".
void read_setting(UpdateRule& rule, std::string_view setting) {
  const size_t blank = std::min(setting.find_first_of(" \t"), setting.size());
  const std::string_view name = setting.substr(0, blank), number = trimmed(setting.substr(blank));
  std::optional<double>* const to = name == "lr_factor"      ? &rule.lr_factor
                                    : name == "weight_decay" ? &rule.weight_decay
                                                             : nullptr;
  if (to == nullptr) refuse(rule.text, "has the unknown setting " + in_quotes(setting));
  if (to->has_value()) refuse(rule.text, "sets " + std::string(name) + " twice");
  double value = 0.0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  // The factors are used as float32.
  const bool fits = value == 0.0 || (value >= std::numeric_limits<float>::min() && value <= 1e6);
  if (error != std::errc{} || end != number.data() + number.size() || !fits)
    refuse(rule.text, "needs 0 or a number from 1.2e-38 to 1e6 after " + std::string(name));
  *to = value;
}

bool selects_weight(std::string_view selector, ParameterRole role) {
  if (selector == kEmbeddings)
    return role == ParameterRole::word_embeddings || role == ParameterRole::position_embeddings;
  if (selector == kNorms) return is_norm(role);
  if (selector == kMatrices)
    return !is_norm(role) && role != ParameterRole::word_embeddings &&
           role != ParameterRole::position_embeddings && role != ParameterRole::output_layer;
  return matches(selector, role);
}

}  // namespace

bool UpdateRule::selects(const ParameterId& parameter) const {
  const bool bias = parameter.part == ParameterPart::bias;
  if (bias && parameter.role == ParameterRole::router) return false;  // moe_router_bias_update_rate moves it
  return std::ranges::any_of(selectors, [&](const std::string& selector) {
    return bias || selector == kBiases ? bias && selector == kBiases
                                       : selects_weight(selector, parameter.role);
  });
}

std::vector<UpdateRule> update_rules(const OptimizerConfig& optimizer) {
  std::vector<UpdateRule> rules;
  for (const std::string& text : optimizer.groups) {
    UpdateRule rule{.text = text, .selectors = {}, .lr_factor = {}, .weight_decay = {}};
    const size_t colon = text.find(':');
    if (colon == std::string::npos) refuse(text, "has no colon");
    for (const std::string_view part : split(std::string_view(text).substr(0, colon), ',')) {
      const std::string_view selector = trimmed(part);
      check_selector(text, selector);
      rule.selectors.emplace_back(selector);
    }
    for (const std::string_view setting : split(std::string_view(text).substr(colon + 1), ','))
      read_setting(rule, trimmed(setting));
    rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace te::config
