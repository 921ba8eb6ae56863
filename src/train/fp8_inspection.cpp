#include "train/fp8_inspection.h"

#include <fmt/ranges.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "config/precision_overrides.h"
#include "core/error.h"
#include "train/json_number.h"

namespace te::train {
namespace {

using fp8::OperandRole;
using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

QuantizationQuality quality_of(const QuantizationStatistics& s) {
  return {kernels::sqnr_db(s.sums), kernels::saturated_fraction(s.sums), kernels::underflow_fraction(s.sums)};
}

/// Combines two results; a NaN is ignored.
QuantizationQuality worse(const QuantizationQuality& a, const QuantizationQuality& b) {
  return {std::fmin(a.sqnr_db, b.sqnr_db), std::fmax(a.saturated, b.saturated),
          std::fmax(a.flushed, b.flushed)};
}

/// The FP8 GEMMs that read an operand in a layout.
std::vector<std::string> gemms_of(OperandRole role, const std::string& layouts,
                                  const config::LinearPrecision& linear) {
  const bool rowwise = layouts != "columnwise", columnwise = layouts != "rowwise";
  std::vector<std::string> gemms;
  if (linear.fprop && role != OperandRole::grad_output && rowwise) gemms.emplace_back("fprop");
  if (linear.dgrad &&
      ((role == OperandRole::weight && columnwise) || (role == OperandRole::grad_output && rowwise)))
    gemms.emplace_back("dgrad");
  if (linear.wgrad && role != OperandRole::weight && columnwise) gemms.emplace_back("wgrad");
  return gemms;
}

/// The quantizations of one operand.
struct Group {
  std::vector<const QuantizationStatistics*> own, what_if;
};

/// In the order of first appearance.
std::vector<Group> groups_of(const Fp8Statistics& statistics) {
  std::map<std::pair<LinearId, OperandRole>, size_t> index;
  std::vector<Group> groups;
  for (const QuantizationStatistics& s : statistics.operands) {
    const auto [found, added] = index.try_emplace({s.operand.linear, s.operand.role}, groups.size());
    if (added) groups.emplace_back();
    Group& group = groups[found->second];
    if (s.recipe != "none") (s.what_if ? group.what_if : group.own).push_back(&s);
  }
  return groups;
}

/// The recipe of an override rule if it was measured, else the reference; delayed is never measured.
std::string_view recipe_that_was_tried(const Group& group, config::Fp8Recipe wanted,
                                       config::Fp8Recipe reference) {
  const bool tried = std::ranges::any_of(
      group.what_if, [&](const auto* s) { return s->recipe == config::to_string(wanted); });
  return config::to_string(tried ? wanted : reference);
}

std::map<std::string, QuantizationQuality> others_of(const Group& group, const QuantizationStatistics& own) {
  std::map<std::string, QuantizationQuality> others;
  for (const QuantizationStatistics* other : group.what_if) {
    const bool fits = other->layouts == own.layouts || other->layouts == "both" || own.layouts == "both";
    if (!fits || other->recipe == own.recipe) continue;
    const auto [found, added] = others.try_emplace(other->recipe, quality_of(*other));
    if (!added) found->second = worse(found->second, quality_of(*other));
  }
  return others;
}

std::string decibels(double value) {
  if (std::isnan(value)) return "-";
  return std::isinf(value) ? "exact" : fmt::format("{:.1f}", value);
}

std::string percent(double share) {
  if (std::isnan(share)) return "-";
  return share == 0 ? "0" : share < 5e-5 ? "<0.01%" : fmt::format("{:.2f}%", 100 * share);
}

json quality_json(const QuantizationQuality& q) {
  return {{"sqnr_db", number(q.sqnr_db)}, {"saturated", number(q.saturated)}, {"flushed", number(q.flushed)}};
}

}  // namespace

double normal_sqnr_db(DType format) {
  return format == DType::e2m1 ? 20.5 : format == DType::e4m3 ? 31.5 : 25.5;
}

double shortfall_db(const QuantizationQuality& quality, DType format) {
  return std::isnan(quality.sqnr_db) ? -kInfinity : normal_sqnr_db(format) - quality.sqnr_db;
}

bool harmful(const QuantizationQuality& quality, DType format, const QuantizationLimits& limits) {
  return shortfall_db(quality, format) > limits.tolerance_db || quality.saturated > limits.saturated ||
         quality.flushed > limits.flushed;
}

std::vector<InspectedQuantization> inspected_quantizations(const Fp8Statistics& statistics,
                                                           const config::PrecisionConfig& precision,
                                                           int64_t num_layers, config::Fp8Recipe reference) {
  const bool runs_in_fp8 = precision.fp8 != config::Fp8Mode::off;
  config::PrecisionConfig judged = config::as_quantized(precision);
  if (!runs_in_fp8) judged.fp8_recipe = reference;
  std::vector<InspectedQuantization> inspected;
  for (const Group& group : groups_of(statistics)) {
    for (const QuantizationStatistics* s : runs_in_fp8 ? group.own : group.what_if) {
      const config::LinearPrecision linear = config::linear_precision(judged, s->operand.linear, num_layers);
      if (!runs_in_fp8 && s->recipe != recipe_that_was_tried(group, linear.recipe, reference)) continue;
      const std::vector<std::string> gemms = gemms_of(s->operand.role, s->layouts, linear);
      if (gemms.empty()) continue;
      inspected.push_back({.operand = s->operand,
                           .recipe = s->recipe,
                           .gemms = gemms,
                           .amax = s->sums.amax,
                           .own = quality_of(*s),
                           .others = others_of(group, *s)});
    }
  }
  return inspected;
}

void sort_worst_first(std::vector<InspectedQuantization>& inspected, const QuantizationLimits& limits) {
  const auto key = [&](const InspectedQuantization& entry) {
    return std::pair(!harmful(entry.own, entry.operand.format, limits),
                     -shortfall_db(entry.own, entry.operand.format));
  };
  std::ranges::stable_sort(inspected, [&](const InspectedQuantization& a, const InspectedQuantization& b) {
    return key(a) < key(b);
  });
}

std::string quantization_table(const std::vector<InspectedQuantization>& inspected, size_t rows,
                               const std::vector<std::string>& recipes, const QuantizationLimits& limits) {
  std::string text =
      fmt::format("  {:>5} {:<12} {:<16} {:<12} {:<10} {:>9} {:>9} {:>8} {:>6} ", "layer", "linear",
                  "operand", "GEMMs", "recipe", "amax", "saturated", "flushed", "SQNR");
  for (const std::string& recipe : recipes) text += fmt::format(" {}", recipe);
  text += "\n";
  for (size_t i = 0; i < std::min(rows, inspected.size()); ++i) {
    const InspectedQuantization& c = inspected[i];
    const LinearId& linear = c.operand.linear;
    text += fmt::format("{} {:>5} {:<12} {:<16} {:<12} {:<10} {:>9.4g} {:>9} {:>8} {:>6} ",
                        harmful(c.own, c.operand.format, limits) ? "!" : " ",
                        linear.kind == LinearKind::output_layer ? "" : std::to_string(linear.layer),
                        to_string(linear.kind),
                        fmt::format("{} {}", fp8::role_name(c.operand.role), format_name(c.operand.format)),
                        fmt::format("{}", fmt::join(c.gemms, ", ")), c.recipe, c.amax,
                        percent(c.own.saturated), percent(c.own.flushed), decibels(c.own.sqnr_db));
    for (const std::string& recipe : recipes) {
      const auto found = c.others.find(recipe);
      text += fmt::format(" {:>{}}", found == c.others.end() ? "" : decibels(found->second.sqnr_db),
                          recipe.size());
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

json to_json(const InspectedQuantization& entry, const QuantizationLimits& limits) {
  json record = quality_json(entry.own);
  record.update({{"layer", entry.operand.linear.layer},
                 {"linear", entry.operand.linear.name()},
                 {"role", fp8::role_name(entry.operand.role)},
                 {"format", dtype_name(entry.operand.format)},
                 {"gemms", entry.gemms},
                 {"recipe", entry.recipe},
                 {"amax", number(entry.amax)},
                 {"harmful", harmful(entry.own, entry.operand.format, limits)},
                 {"what_if", json::object()}});
  for (const auto& [recipe, quality] : entry.others) record["what_if"][recipe] = quality_json(quality);
  return record;
}

}  // namespace te::train
