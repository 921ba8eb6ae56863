#include "core/parameter_id.h"

#include <algorithm>
#include <iterator>

#include <spdlog/fmt/fmt.h>

namespace te {
namespace {

struct Row {
  ParameterRole role;
  std::string_view path, name;  ///< of the module within its layer or the model
  std::optional<LinearKind> linear{};
};

constexpr Row kTable[] = {
    {ParameterRole::word_embeddings, "embedding.", "word_embeddings"},
    {ParameterRole::position_embeddings, "embedding.", "position_embeddings"},
    {ParameterRole::embedding_norm, "embedding.", "embedding_norm"},
    {ParameterRole::input_norm, "", "input_layernorm"},
    {ParameterRole::linear_qkv, "self_attention.", "linear_qkv", LinearKind::qkv},
    {ParameterRole::q_norm, "self_attention.", "q_layernorm"},
    {ParameterRole::k_norm, "self_attention.", "k_layernorm"},
    {ParameterRole::linear_proj, "self_attention.", "linear_proj", LinearKind::proj},
    {ParameterRole::post_attention_norm, "", "post_attention_layernorm"},
    {ParameterRole::pre_mlp_norm, "", "pre_mlp_layernorm"},
    {ParameterRole::router, "mlp.", "router"},
    {ParameterRole::experts_fc1, "mlp.", "experts.linear_fc1"},
    {ParameterRole::experts_fc2, "mlp.", "experts.linear_fc2"},
    {ParameterRole::shared_expert_gate, "mlp.", "shared_experts.gate"},
    {ParameterRole::shared_expert_fc1, "mlp.", "shared_experts.linear_fc1"},
    {ParameterRole::shared_expert_fc2, "mlp.", "shared_experts.linear_fc2"},
    {ParameterRole::linear_fc1, "mlp.", "linear_fc1", LinearKind::fc1},
    {ParameterRole::linear_fc2, "mlp.", "linear_fc2", LinearKind::fc2},
    {ParameterRole::post_mlp_norm, "", "post_mlp_layernorm"},
    {ParameterRole::final_norm, "", "final_layernorm"},
    {ParameterRole::output_layer, "", "output_layer", LinearKind::output_layer},
    {ParameterRole::other, "", "other"},
};

constexpr bool is_in_order() {
  for (size_t i = 0; i < std::size(kTable); ++i)
    if (static_cast<size_t>(kTable[i].role) != i) return false;
  return std::size(kTable) == static_cast<size_t>(ParameterRole::other) + 1;
}
static_assert(is_in_order(), "row_of() takes a role as the index of its row");

constexpr const Row& row_of(ParameterRole role) {
  return kTable[static_cast<size_t>(role)];
}

}  // namespace

std::string_view to_string(LinearKind kind) {
  return row_of(role_of(kind)).name;
}

std::string_view to_string(ParameterRole role) {
  return row_of(role).name;
}

std::optional<LinearKind> linear_kind_of(std::string_view name) {
  const auto* row = std::find_if(std::begin(kTable), std::end(kTable),
                                 [&](const Row& one) { return one.linear && one.name == name; });
  return row == std::end(kTable) ? std::nullopt : row->linear;
}

std::optional<LinearKind> linear_kind_of(ParameterRole role) {
  return row_of(role).linear;
}

ParameterRole role_of(LinearKind kind) {
  return std::find_if(std::begin(kTable), std::end(kTable),
                      [&](const Row& row) { return row.linear == kind; })
      ->role;
}

bool is_norm(ParameterRole role) {
  switch (role) {
    case ParameterRole::embedding_norm:
    case ParameterRole::input_norm:
    case ParameterRole::q_norm:
    case ParameterRole::k_norm:
    case ParameterRole::post_attention_norm:
    case ParameterRole::pre_mlp_norm:
    case ParameterRole::post_mlp_norm:
    case ParameterRole::final_norm:
      return true;
    default:
      return false;
  }
}

bool has_vocabulary_rows(ParameterRole role) {
  return role == ParameterRole::word_embeddings || role == ParameterRole::output_layer;
}

std::string layer_name(int64_t layer) {
  return "layers." + std::to_string(layer);
}

std::string module_name(ParameterRole role, int layer) {
  const Row& row = row_of(role);
  std::string name = layer == kNoLayer ? "" : layer_name(layer) + ".";
  return name.append(row.path).append(row.name);
}

std::string ParameterId::name() const {
  constexpr std::string_view kParts[] = {".weight", ".bias", ".lora_a", ".lora_b"};
  return module_name(role, layer).append(kParts[static_cast<size_t>(part)]);
}

std::string LinearId::name() const {
  if (expert >= 0) return fmt::format("{}.mlp.experts.{}.{}", layer_name(layer), expert, to_string(kind));
  const ParameterId weight = parameter(ParameterPart::weight);
  return module_name(weight.role, weight.layer);
}

ParameterId LinearId::parameter(ParameterPart part) const {
  const bool fc1 = kind == LinearKind::fc1;
  if (expert >= 0) return {fc1 ? ParameterRole::experts_fc1 : ParameterRole::experts_fc2, layer, part};
  if (expert == kSharedExpert)
    return {fc1 ? ParameterRole::shared_expert_fc1 : ParameterRole::shared_expert_fc2, layer, part};
  return {role_of(kind), kind == LinearKind::output_layer ? kNoLayer : layer, part};
}

}  // namespace te
