// The identity of the model's parameters and linear layers. Code selects them by role and layer. Names are for messages
// and files; all of them come from one table, in parameter_id.cpp.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace te {

constexpr int kNoLayer = -1;

/// The linear layers, in the order of the forward pass.
enum class LinearKind : uint8_t { qkv, proj, fc1, fc2, output_layer };
inline constexpr std::array kLinearKinds{LinearKind::qkv, LinearKind::proj, LinearKind::fc1, LinearKind::fc2,
                                         LinearKind::output_layer};

/// What a parameter does in the model, in the order of the forward pass.
enum class ParameterRole : uint8_t {
  word_embeddings,
  position_embeddings,
  embedding_norm,
  input_norm,
  linear_qkv,
  q_norm,
  k_norm,
  linear_proj,
  post_attention_norm,
  pre_mlp_norm,
  router,
  experts_fc1,  ///< all experts of a layer, one after another
  experts_fc2,
  shared_expert_gate,
  shared_expert_fc1,
  shared_expert_fc2,
  linear_fc1,
  linear_fc2,
  post_mlp_norm,
  final_norm,
  output_layer,
  other  ///< not in the table of names; the parameter's spec has its name
};
enum class ParameterPart : uint8_t {
  weight,
  bias,
  lora_a,  ///< of a linear layer's adapter: A [rank per target, in]
  lora_b   ///< B [rows of the targets, rank]
};
constexpr bool is_adapter(ParameterPart part) {
  return part == ParameterPart::lora_a || part == ParameterPart::lora_b;
}

/// The ranks that sum a parameter's gradient and shard its master weights and moments
/// (parallel::Groups::gradient_ranks).
enum class GradientGroup : uint8_t {
  dense,   ///< all data-parallel ranks
  expert,  ///< ranks that hold the same experts
  stage    ///< all ranks of a pipeline stage: full weights on tensor-parallel ranks with different tokens
};
inline constexpr std::array kGradientGroups{GradientGroup::dense, GradientGroup::expert,
                                            GradientGroup::stage};

std::string_view to_string(LinearKind kind);     ///< "linear_fc1"
std::string_view to_string(ParameterRole role);  ///< "linear_fc1", "input_layernorm"
std::optional<LinearKind> linear_kind_of(std::string_view name);
std::optional<LinearKind> linear_kind_of(ParameterRole role);
ParameterRole role_of(LinearKind kind);
bool is_norm(ParameterRole role);
/// True for the embedding and the output layer, which have a row per token, then rows that pad the vocabulary. The
/// number of padding rows depends on the tensor parallelism of the run that stored them.
bool has_vocabulary_rows(ParameterRole role);

/// "layers.3"
std::string layer_name(int64_t layer);
/// "layers.3.mlp.linear_fc1"; without a layer "final_layernorm".
std::string module_name(ParameterRole role, int layer = kNoLayer);

struct ParameterId {
  ParameterRole role = ParameterRole::other;
  int layer = kNoLayer;
  ParameterPart part = ParameterPart::weight;

  std::string name() const;  ///< "layers.3.mlp.linear_fc1.weight"
  bool operator==(const ParameterId&) const = default;
};

/// Experts of a layer are numbered from 0.
constexpr int kNoExpert = -1, kSharedExpert = -2;

struct LinearId {
  int layer = 0;  ///< of the output layer: the number of layers
  LinearKind kind = LinearKind::qkv;
  int expert = kNoExpert;  ///< of fc1 and fc2 in a mixture of experts

  /// "layers.3.mlp.linear_fc1", "layers.3.mlp.experts.5.linear_fc1", "layers.3.mlp.shared_experts.linear_fc1"
  std::string name() const;
  /// One parameter has the weights of all experts of a layer.
  ParameterId parameter(ParameterPart part) const;
  auto operator<=>(const LinearId&) const = default;
};

}  // namespace te
