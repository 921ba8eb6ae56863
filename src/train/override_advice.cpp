#include "train/override_advice.h"

#include <fmt/ranges.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "config/precision_overrides.h"
#include "core/strings.h"

namespace te::train {
namespace {

const std::vector<std::string> kGemms = {"fprop", "dgrad", "wgrad"};

/// The advice for one linear of one layer.
struct Choice {
  std::string recipe;          ///< empty: unchanged
  std::set<std::string> bf16;  ///< GEMMs
};

using Inspected = std::vector<const InspectedQuantization*>;

/// The quality under another recipe, or the run's own for an empty one; null if that recipe was not measured.
const QuantizationQuality* under(const InspectedQuantization& entry, const std::string& recipe) {
  if (recipe.empty() || recipe == entry.recipe) return &entry.own;
  const auto found = entry.others.find(recipe);
  return found == entry.others.end() ? nullptr : &found->second;
}

/// The quantizations that are harmful under a recipe.
Inspected harmful_quantizations(const Inspected& inspected, const std::string& recipe,
                                const QuantizationLimits& limits) {
  Inspected result;
  for (const InspectedQuantization* entry : inspected)
    if (harmful(*under(*entry, recipe), entry->operand.format, limits)) result.push_back(entry);
  return result;
}

/// A recipe rule enables FP8 for the whole linear, so GEMMs that were BF16 must be listed again.
Choice choose(const Inspected& inspected, const config::LinearPrecision& linear,
              const std::vector<std::string>& recipes, const QuantizationLimits& limits) {
  Choice choice;
  Inspected left = harmful_quantizations(inspected, "", limits);
  for (const std::string& recipe : recipes) {
    const bool tried =
        std::ranges::all_of(inspected, [&](const auto* entry) { return under(*entry, recipe); });
    if (left.empty() || !tried || recipe == inspected.front()->recipe) continue;
    Inspected then = harmful_quantizations(inspected, recipe, limits);
    if (then.size() >= left.size()) continue;
    choice.recipe = recipe;
    left = std::move(then);
  }
  for (const InspectedQuantization* entry : left)
    choice.bf16.insert(entry->gemms.begin(), entry->gemms.end());
  for (const auto& [quantized, gemm] :
       {std::pair{linear.fprop, "fprop"}, {linear.dgrad, "dgrad"}, {linear.wgrad, "wgrad"}})
    if (!quantized && !(choice.recipe.empty() && choice.bf16.empty())) choice.bf16.insert(gemm);
  if (choice.bf16.size() == kGemms.size()) choice.recipe.clear();
  return choice;
}

// --- rules -------------------------------------------------------------------------------------------------

/// Rule text after the linears -> kind of linear -> its layers.
using Settings = std::map<std::string, std::map<LinearKind, std::vector<int>>>;

/// Kinds of linears with the same layers share a rule.
void add_rules(std::vector<std::string>& rules, const Settings& settings, int64_t num_layers) {
  for (const auto& [setting, layers_of] : settings) {
    std::map<std::vector<int>, std::vector<std::string_view>> kinds_of;
    for (const auto& [kind, layers] : layers_of) {
      if (kind == LinearKind::output_layer)  // not part of a layer
        rules.push_back(fmt::format("{}{}", to_string(kind), setting));
      else
        kinds_of[layers].push_back(to_string(kind));
    }
    for (const auto& [layers, kinds] : kinds_of) {
      const bool all = static_cast<int64_t>(layers.size()) == num_layers;
      rules.push_back(fmt::format("{}{}{}", all ? "" : fmt::format("layers {} ", number_ranges(layers)),
                                  fmt::join(kinds, ", "), setting));
    }
  }
}

std::string bf16_setting(const std::set<std::string>& gemms) {
  std::string text;
  if (gemms.size() < kGemms.size())
    for (const std::string& gemm : kGemms)
      if (gemms.contains(gemm)) text += fmt::format("{} {}", text.empty() ? "" : ",", gemm);
  return text + ": bf16";
}

std::string yaml_of(const std::vector<std::string>& lines, const config::PrecisionConfig& precision,
                    config::Fp8Recipe reference) {
  std::string yaml = "precision:\n";
  if (precision.dtype == config::ComputeDType::fp16) yaml += "  dtype: bf16\n";
  if (precision.fp8 == config::Fp8Mode::off) {
    yaml += fmt::format("  fp8: hybrid\n  fp8_recipe: {}\n", config::to_string(reference));
    if (precision.fp8_calibrate) yaml += "  fp8_calibrate: false\n";
  }
  yaml += "  overrides: |\n";
  for (const std::string& line : lines) yaml += fmt::format("    {}\n", line);
  return yaml;
}

/// The lowest SQNR among a linear's operands that FP8 GEMMs still read under a choice.
double worst_under(const Inspected& inspected, const Choice& choice) {
  double worst = std::numeric_limits<double>::infinity();
  for (const InspectedQuantization* entry : inspected) {
    const bool read = std::ranges::any_of(
        entry->gemms, [&](const std::string& gemm) { return !choice.bf16.contains(gemm); });
    if (read) worst = std::fmin(worst, under(*entry, choice.recipe)->sqnr_db);
  }
  return worst;
}

}  // namespace

OverrideAdvice advise(const std::vector<InspectedQuantization>& inspected,
                      const config::PrecisionConfig& precision, int64_t num_layers,
                      const std::vector<std::string>& recipes, const QuantizationLimits& limits,
                      config::Fp8Recipe reference) {
  std::map<LinearId, Inspected> linears;
  for (const InspectedQuantization& entry : inspected) linears[entry.operand.linear].push_back(&entry);
  OverrideAdvice advice{.worst_now_db = std::numeric_limits<double>::infinity(),
                        .worst_then_db = std::numeric_limits<double>::infinity()};
  Settings by_recipe, bf16;
  for (const auto& [at, own] : linears) {
    const config::LinearPrecision linear =
        config::linear_precision(config::as_quantized(precision), at, num_layers);
    const Choice choice = choose(own, linear, recipes, limits);
    if (!choice.recipe.empty()) by_recipe[": " + choice.recipe][at.kind].push_back(at.layer);
    if (!choice.bf16.empty()) bf16[bf16_setting(choice.bf16)][at.kind].push_back(at.layer);
    advice.worst_now_db = std::fmin(advice.worst_now_db, worst_under(own, {}));
    advice.worst_then_db = std::fmin(advice.worst_then_db, worst_under(own, choice));
  }
  add_rules(advice.rules, by_recipe, num_layers);
  add_rules(advice.rules, bf16, num_layers);
  std::vector<std::string> lines = config::override_rules(precision.overrides);
  lines.insert(lines.end(), advice.rules.begin(), advice.rules.end());
  advice.overrides = fmt::format("{}", fmt::join(lines, "\n"));
  if (!advice.rules.empty()) advice.yaml = yaml_of(lines, precision, reference);
  return advice;
}

}  // namespace te::train
