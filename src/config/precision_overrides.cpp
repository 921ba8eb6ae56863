#include "config/precision_overrides.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "config/recipe_traits.h"
#include "config/text.h"
#include "core/error.h"
#include "core/strings.h"

namespace te::config {

namespace {

constexpr std::string_view kSyntax =
    "SELECTOR: SETTING with a selector of {}, layers A-B, fprop | dgrad | wgrad, input | weight | "
    "grad_output, and a setting of bf16 | e4m3 | e5m2 | {}";

/// Bit sets of the GEMMs and operands that a rule selects.
enum Gemms : uint8_t { kFprop = 1, kDgrad = 2, kWgrad = 4, kAllGemms = 7 };
enum Roles : uint8_t { kInput = 1, kWeight = 2, kGradOutput = 4 };

struct LayerRange {
  int64_t first = 0, last = 0;  ///< negative: counted from the end
};

struct Rule {
  std::string text;
  std::vector<LinearKind> linears;  ///< empty: all linears of the layers
  std::vector<LayerRange> layers;   ///< empty: all
  uint8_t gemms = 0, roles = 0;     ///< 0: all
  bool bf16 = false;
  std::optional<Fp8Recipe> recipe;
  std::optional<DType> format;
};

[[noreturn]] void refuse(const Rule& rule, std::string_view problem) {
  std::vector<std::string_view> linears;
  for (const LinearKind linear : kLinearKinds) linears.push_back(to_string(linear));
  user_error("precision.overrides: '{}' {}; a rule is {}", one_line(rule.text), problem,
             fmt::format(kSyntax, fmt::join(linears, " | "), fmt::join(names_of(Fp8Recipe{}), " | ")));
}

/// The parts of a text between any of the separators, without blanks around them and without empty parts.
std::vector<std::string_view> words(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    if (const auto part = trimmed(text.substr(0, end)); !part.empty()) parts.push_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool parse_integer(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

/// Parses "3", "-1", "0-3" or "-2--1"; false for other texts.
bool parse_range(std::string_view text, LayerRange& range) {
  const size_t dash = text.find('-', 1);
  if (dash == std::string_view::npos)
    return parse_integer(text, range.first) && (range.last = range.first, true);
  return parse_integer(text.substr(0, dash), range.first) && parse_integer(text.substr(dash + 1), range.last);
}

void parse_selector(Rule& rule, std::string_view text) {
  static constexpr std::pair<std::string_view, uint8_t> gemms[] = {
      {"fprop", kFprop}, {"dgrad", kDgrad}, {"wgrad", kWgrad}};
  static constexpr std::pair<std::string_view, uint8_t> roles[] = {
      {"input", kInput}, {"weight", kWeight}, {"grad_output", kGradOutput}};
  bool in_layers = false;
  for (const std::string_view word : words(text, " \t,")) {
    const auto named = [&](const auto& entry) { return entry.first == word; };
    LayerRange range;
    if (word == "layers" || word == "layer") {
      in_layers = true;
    } else if (in_layers && parse_range(word, range)) {
      rule.layers.push_back(range);
    } else if (const std::optional<LinearKind> linear = linear_kind_of(word)) {
      rule.linears.push_back(*linear);
    } else if (const auto* gemm = std::find_if(std::begin(gemms), std::end(gemms), named);
               gemm != std::end(gemms)) {
      rule.gemms |= gemm->second;
    } else if (const auto* role = std::find_if(std::begin(roles), std::end(roles), named);
               role != std::end(roles)) {
      rule.roles |= role->second;
    } else {
      refuse(rule, fmt::format("has the unknown word '{}'", one_line(word)));
    }
  }
  if (in_layers && rule.layers.empty()) refuse(rule, "names no layers");
}

void parse_setting(Rule& rule, std::string_view text) {
  Fp8Recipe recipe{};
  if (text == "bf16") {
    rule.bf16 = true;
  } else if (text == "e4m3" || text == "e5m2") {
    rule.format = text == "e4m3" ? DType::e4m3 : DType::e5m2;
    if (rule.gemms != 0) refuse(rule, "sets a format for a GEMM; only operands have a format");
    if (rule.roles == 0) refuse(rule, "sets a format, but names no operand");
  } else if (from_string(text, recipe)) {
    rule.recipe = recipe;
    if (rule.gemms != 0 || rule.roles != 0)
      refuse(rule, "sets a recipe for a part of a linear; a recipe applies to whole linears");
  } else {
    refuse(rule, fmt::format("has the unknown setting '{}'", one_line(text)));
  }
}

std::vector<Rule> parse_rules(const std::string& overrides) {
  std::vector<Rule> rules;
  for (const std::string& own : override_rules(overrides)) {
    const std::string_view text = own;
    Rule rule{.text = own};
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) refuse(rule, "has no colon");
    parse_selector(rule, text.substr(0, colon));
    parse_setting(rule, trimmed(text.substr(colon + 1)));
    rules.push_back(std::move(rule));
  }
  return rules;
}

int64_t absolute_layer(int64_t layer, int64_t num_layers) {
  return layer < 0 ? num_layers + layer : layer;
}

bool names(const Rule& rule, LinearKind linear) {
  return std::ranges::find(rule.linears, linear) != rule.linears.end();
}

/// Refuses layers that do not exist, and ranges that select nothing because they end before they begin.
void check_layers(const Rule& rule, int64_t num_layers) {
  for (const LayerRange& range : rule.layers) {
    for (const int64_t i : {range.first, range.last})
      if (i >= num_layers || i < -num_layers)
        refuse(rule, fmt::format("names layer {} of a model with {}", i, num_layers));
    if (absolute_layer(range.first, num_layers) > absolute_layer(range.last, num_layers))
      refuse(rule, fmt::format("has the range {}-{}, which ends before it begins", range.first, range.last));
  }
  if (!rule.layers.empty() && names(rule, LinearKind::output_layer))
    refuse(rule, "names layers and output_layer, which is not in a layer: give it a separate rule");
}

bool selects(const Rule& rule, const LinearId& linear, int64_t num_layers) {
  if (!rule.linears.empty() && !names(rule, linear.kind)) return false;
  if (linear.kind == LinearKind::output_layer) return !rule.linears.empty();
  if (rule.layers.empty()) return true;
  return std::ranges::any_of(rule.layers, [&](const LayerRange& range) {
    return linear.layer >= absolute_layer(range.first, num_layers) &&
           linear.layer <= absolute_layer(range.last, num_layers);
  });
}

/// The GEMMs that read one of the operands.
uint8_t readers(uint8_t roles) {
  uint8_t gemms = 0;
  if ((roles & kInput) != 0) gemms |= kFprop | kWgrad;
  if ((roles & kWeight) != 0) gemms |= kFprop | kDgrad;
  if ((roles & kGradOutput) != 0) gemms |= kDgrad | kWgrad;
  return gemms;
}

/// The formats that rules set; empty: the recipe's formats.
struct Formats {
  std::optional<DType> input, weight, grad_output;
};

void apply(const Rule& rule, LinearPrecision& linear, Formats& formats) {
  if (rule.recipe) {
    linear.recipe = *rule.recipe;
    linear.fprop = linear.dgrad = linear.wgrad = true;
  }
  if (rule.format) {
    if ((rule.roles & kInput) != 0) formats.input = *rule.format;
    if ((rule.roles & kWeight) != 0) formats.weight = *rule.format;
    if ((rule.roles & kGradOutput) != 0) formats.grad_output = *rule.format;
  }
  if (rule.bf16) {
    const uint8_t named = rule.gemms | readers(rule.roles), gemms = named == 0 ? uint8_t{kAllGemms} : named;
    if ((gemms & kFprop) != 0) linear.fprop = false;
    if ((gemms & kDgrad) != 0) linear.dgrad = false;
    if ((gemms & kWgrad) != 0) linear.wgrad = false;
  }
}

LinearPrecision resolve(const PrecisionConfig& precision, const std::vector<Rule>& rules,
                        const LinearId& linear, int64_t num_layers) {
  LinearPrecision result{.recipe = precision.fp8_recipe};
  if (precision.fp8 == Fp8Mode::off) return result;
  const bool on = linear.kind == LinearKind::output_layer
                      ? precision.fp8_output_layer
                      : linear.layer >= precision.first_layers_bf16 &&
                            linear.layer < num_layers - precision.last_layers_bf16;
  result.fprop = result.dgrad = result.wgrad = on;
  Formats formats;
  for (const Rule& rule : rules)
    if (selects(rule, linear, num_layers)) apply(rule, result, formats);
  result.emulated = is_emulated(precision, result.recipe);
  // Hybrid uses the wider exponent (E5M2) for gradients, because they have the wider range.
  const std::optional<DType> own = traits_of(result.recipe).format;
  const DType gradients = own.value_or(precision.fp8 == Fp8Mode::e4m3 ? DType::e4m3 : DType::e5m2);
  result.input = formats.input.value_or(own.value_or(DType::e4m3));
  result.weight = formats.weight.value_or(own.value_or(DType::e4m3));
  result.grad_output = formats.grad_output.value_or(gradients);
  return result;
}

std::string describe(const LinearPrecision& linear, std::string_view dtype) {
  if (!linear.quantized()) return std::string(dtype);
  std::string text = fmt::format("{}{}: input {}, weight {}, grad_output {}", to_string(linear.recipe),
                                 linear.emulated ? " (emulated)" : "", format_name(linear.input),
                                 format_name(linear.weight), format_name(linear.grad_output));
  std::string high;
  for (const auto& [quantized, name] :
       {std::pair{linear.fprop, "fprop"}, {linear.dgrad, "dgrad"}, {linear.wgrad, "wgrad"}})
    if (!quantized) high += fmt::format("{}{}", high.empty() ? "" : ", ", name);
  return high.empty() ? text : fmt::format("{}; {} in {}", text, high, dtype);
}

}  // namespace

LinearPrecision linear_precision(const PrecisionConfig& precision, const LinearId& linear,
                                 int64_t num_layers) {
  return resolve(precision, parse_rules(precision.overrides), linear, num_layers);
}

PrecisionConfig as_quantized(PrecisionConfig precision) {
  if (precision.fp8 == Fp8Mode::off) precision.fp8 = Fp8Mode::hybrid;
  return precision;
}

std::string precision_table(const PrecisionConfig& precision, int64_t num_layers) {
  const std::vector<Rule> rules = parse_rules(precision.overrides);
  std::string text;
  for (const LinearKind linear : kLinearKinds) {
    const bool output_layer = linear == LinearKind::output_layer;
    const auto precision_in = [&](int64_t layer) {
      return resolve(precision, rules, {static_cast<int>(layer), linear}, num_layers);
    };
    for (int64_t first = 0, end = output_layer ? 1 : num_layers; first < end;) {
      const LinearPrecision one = precision_in(first);
      int64_t last = first;
      while (last + 1 < end && precision_in(last + 1) == one) ++last;
      const std::string layers = output_layer                    ? ""
                                 : first == last                 ? fmt::format("layer {}", first)
                                 : last + 1 == end && first == 0 ? "all layers"
                                                                 : fmt::format("layers {}-{}", first, last);
      text += fmt::format("  {:<13}{:<16}{}\n", to_string(linear), layers,
                          describe(one, to_string(precision.dtype)));
      first = last + 1;
    }
  }
  return text;
}

void check_overrides(const PrecisionConfig& precision, int64_t num_layers) {
  const std::vector<Rule> rules = parse_rules(precision.overrides);
  for (const Rule& rule : rules) check_layers(rule, num_layers);
  for (const LinearKind linear : kLinearKinds) {
    for (int layer = 0; layer < (linear == LinearKind::output_layer ? 1 : num_layers); ++layer) {
      const LinearPrecision one = resolve(precision, rules, {layer, linear}, num_layers);
      const bool input = one.input == DType::e5m2, weight = one.weight == DType::e5m2,
                 grad = one.grad_output == DType::e5m2;
      const std::optional<DType> own = traits_of(one.recipe).format;
      if (one.quantized() && own == DType::e2m1 &&
          (one.input != *own || one.weight != *own || one.grad_output != *own)) {
        user_error(
            "precision.overrides: a rule gives operands of {} of layer {} a format, but {} has E2M1; leave "
            "it out",
            to_string(linear), layer, to_string(one.recipe));
      }
      if ((one.fprop && input && weight) || (one.dgrad && grad && weight) || (one.wgrad && grad && input))
        user_error(
            "precision.overrides: {} of layer {} has a GEMM with two E5M2 operands; give one of them e4m3",
            to_string(linear), layer);
    }
  }
}

std::vector<Fp8Recipe> recipes_of(const PrecisionConfig& precision, int64_t num_layers) {
  const std::vector<Rule> rules = parse_rules(precision.overrides);
  std::vector<Fp8Recipe> recipes;
  for (const LinearKind linear : kLinearKinds) {
    for (int layer = 0; layer < (linear == LinearKind::output_layer ? 1 : num_layers); ++layer) {
      const LinearPrecision one = resolve(precision, rules, {layer, linear}, num_layers);
      if (one.quantized() && std::ranges::find(recipes, one.recipe) == recipes.end())
        recipes.push_back(one.recipe);
    }
  }
  return recipes;
}

std::string emulated_recipes(const PrecisionConfig& precision, int64_t num_layers) {
  std::string names;
  for (const Fp8Recipe recipe : recipes_of(precision, num_layers))
    if (is_emulated(precision, recipe))
      names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(recipe));
  return names;
}

std::vector<std::string> override_rules(const std::string& overrides) {
  std::vector<std::string> rules;
  for (std::string_view line : words(overrides, "\n")) {
    line = line.substr(0, line.find('#'));
    for (const std::string_view rule : words(line, ";")) rules.emplace_back(rule);
  }
  return rules;
}

std::string stateless_overrides(const std::string& overrides) {
  std::string text;
  for (const std::string& rule : override_rules(overrides)) {
    const size_t colon = rule.rfind(':');
    Fp8Recipe recipe{};
    const bool history = colon != std::string::npos &&
                         from_string(trimmed(std::string_view(rule).substr(colon + 1)), recipe) &&
                         traits_of(recipe).history;
    text += history ? fmt::format("{}: tensorwise\n", rule.substr(0, colon)) : fmt::format("{}\n", rule);
  }
  return text;
}

}  // namespace te::config
