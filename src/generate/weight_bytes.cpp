#include "generate/weight_bytes.h"

#include <algorithm>
#include <optional>

#include "config/precision_overrides.h"

namespace te::generate {
namespace {

/// The linear layer of a weight, also of experts.
std::optional<LinearKind> linear_of(ParameterRole role) {
  switch (role) {
    case ParameterRole::experts_fc1:
    case ParameterRole::shared_expert_fc1:
      return LinearKind::fc1;
    case ParameterRole::experts_fc2:
    case ParameterRole::shared_expert_fc2:
      return LinearKind::fc2;
    default:
      return linear_kind_of(role);
  }
}

/// Whether passes read a parameter as FP8. Emulated recipes multiply rounded high-precision values, and logits() reads
/// the value of the output layer.
bool reads_fp8(const config::Config& config, const ParameterId& id) {
  const std::optional<LinearKind> kind = linear_of(id.role);
  if (id.part != ParameterPart::weight || id.layer == kNoLayer || !kind) return false;
  const config::LinearPrecision linear =
      config::linear_precision(config.precision, {id.layer, *kind}, config.model.num_layers);
  return linear.fprop && !linear.emulated;
}

}  // namespace

// Excludes the embeddings, of which a pass reads one row per token.
int64_t weight_bytes(const config::Config& config, const model::Stack& stack, int64_t rows) {
  const config::ModelConfig& model = config.model;
  const parameters::Parameter* const words = stack.embedding ? stack.embedding->words() : nullptr;
  const bool tied = model.tie_word_embeddings && stack.output_layer;
  const auto value_bytes = static_cast<int64_t>(dtype_size(stack.config.dims.dtype));
  int64_t bytes = 0;
  for (const parameters::Parameter& parameter : stack.parameters.parameters()) {
    const ParameterRole role = parameter.id.role;
    if ((&parameter == words && !tied) || role == ParameterRole::position_embeddings) continue;
    int64_t values = parameter.shape.numel();
    if (role == ParameterRole::experts_fc1 || role == ParameterRole::experts_fc2)  // a rank has all experts
      values = values / model.num_moe_experts * std::min(model.num_moe_experts, rows * model.moe_router_topk);
    bytes += values * (reads_fp8(config, parameter.id) ? 1 : value_bytes);
  }
  return bytes;
}

}  // namespace te::generate
