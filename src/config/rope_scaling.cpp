#include "config/rope_scaling.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "config/key_rows.h"
#include "config/text.h"
#include "core/error.h"

namespace te::config {
namespace {

struct Parameter {
  Key key;
  bool linear, llama3, yarn;  ///< the kinds that have it

  std::string_view name() const { return key.path.substr(key.path.rfind('.') + 1); }
  bool belongs_to(RopeScalingKind kind) const {
    return (kind == RopeScalingKind::linear && linear) || (kind == RopeScalingKind::llama3 && llama3) ||
           (kind == RopeScalingKind::yarn && yarn);
  }
};

#define TE_PARAMETER(name) TE_KEY(model.rope_scaling.name)

const auto kParameters = std::to_array<Parameter>({
    {{TE_PARAMETER(factor), kRequired, at_least(1), {}}, true, true, true},
    {{TE_PARAMETER(original_max_position_embeddings), kBuiltIn, from_to(1, 1e9), {}}, false, true, true},
    {{TE_PARAMETER(low_freq_factor), kBuiltIn, above(0), {}}, false, true, false},
    {{TE_PARAMETER(high_freq_factor), kBuiltIn, above(0), {}}, false, true, false},
    {{TE_PARAMETER(beta_fast), kBuiltIn, above(0), {}}, false, false, true},
    {{TE_PARAMETER(beta_slow), kBuiltIn, above(0), {}}, false, false, true},
    {{TE_PARAMETER(attention_factor), kBuiltIn, at_least(0), {}}, false, false, true},
    {{TE_PARAMETER(truncate), kBuiltIn, kAny, {}}, false, false, true},
});

constexpr std::string_view kExpected = "none, or a mapping such as {rope_type: llama3, factor: 8.0}";
constexpr std::string_view kType = "rope_type", kOldType = "type";

RopeScalingKind kind_of(const YAML::Node& node, const Where& where) {
  const YAML::Node type = node[std::string(node[std::string(kType)] ? kType : kOldType)];
  RopeScalingKind kind{};
  if (type.IsDefined() && type.IsScalar() && type.Scalar() == "default") return RopeScalingKind::none;
  if (!type.IsDefined() || !type.IsScalar() || !from_string(type.Scalar(), kind) ||
      kind == RopeScalingKind::none)
    ill_typed("rope_type linear, llama3 or yarn", type.IsDefined() ? type : node, where);
  return kind;
}

}  // namespace

std::vector<std::string_view> rope_parameters(RopeScalingKind kind) {
  std::vector<std::string_view> names;
  for (const Parameter& parameter : kParameters)
    if (parameter.belongs_to(kind)) names.push_back(parameter.name());
  return names;
}

void read_rope_scaling(const YAML::Node& node, const Where& where, Config& config) {
  RopeScaling& scaling = config.model.rope_scaling;
  scaling = {};
  if (node.IsNull() || (node.IsScalar() && node.Scalar() == "none")) return;
  if (!node.IsMap()) ill_typed(std::string(kExpected), node, where);
  scaling.kind = kind_of(node, where);
  if (scaling.kind == RopeScalingKind::none) return;
  std::set<std::string> given;
  for (const auto& entry : node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (!given.insert(name).second) user_error("{}: {} is given twice", where(entry.first), name);
    if (name == kType || name == kOldType) continue;
    const auto* const parameter = std::ranges::find_if(
        kParameters, [&](const auto& p) { return p.name() == name && p.belongs_to(scaling.kind); });
    if (parameter == kParameters.end())
      user_error("{}: {} is not a parameter of rope_type {}, which has {}", where(entry.first),
                 key_name(name), to_string(scaling.kind), fmt::join(rope_parameters(scaling.kind), ", "));
    read_value(
        parameter->key, entry.second, [&](const YAML::Node& at) { return where(at) + ": " + name; }, config);
  }
  if (!given.contains("factor"))
    user_error("{}: rope_type {} needs factor", where(node), to_string(scaling.kind));
}

std::string rope_scaling_text(const RopeScaling& scaling) {
  if (scaling.kind == RopeScalingKind::none) return "none";
  Config config;
  config.model.rope_scaling = scaling;
  std::string text = fmt::format("{{{}: {}", kType, to_string(scaling.kind));
  for (const Parameter& parameter : kParameters) {
    if (parameter.belongs_to(scaling.kind))
      text += fmt::format(", {}: {}", parameter.name(), value_text(parameter.key.field(config)));
  }
  return text + "}";
}

void check_rope_scaling(const Config& config) {
  const RopeScaling& scaling = config.model.rope_scaling;
  Config copy = config;
  for (const Parameter& parameter : kParameters) {
    if (parameter.belongs_to(scaling.kind))
      check_range(parameter.key, copy, fmt::format("model.rope_scaling: {}", parameter.name()));
  }
  if (scaling.kind == RopeScalingKind::llama3 && scaling.low_freq_factor >= scaling.high_freq_factor) {
    user_error("model.rope_scaling: low_freq_factor ({}) must be below high_freq_factor ({})",
               scaling.low_freq_factor, scaling.high_freq_factor);
  }
  if (scaling.kind == RopeScalingKind::yarn && scaling.beta_slow >= scaling.beta_fast) {
    user_error("model.rope_scaling: beta_slow ({}) must be below beta_fast ({})", scaling.beta_slow,
               scaling.beta_fast);
  }
}

}  // namespace te::config
