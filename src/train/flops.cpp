#include "train/flops.h"

#include "config/adapter.h"
#include "config/precision_overrides.h"
#include "config/recipe_traits.h"

namespace te::train {
namespace {

/// Attention FLOPs of all layers. A token attends to half of the sequence on average, less with a sliding window.
double attention_flops(const config::ModelConfig& model) {
  const double seq = static_cast<double>(model.seq_length);
  double keys = 0.0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const double span = static_cast<double>(model.of_layer(layer).attention_span());
    keys += span * (2.0 * seq - span) / seq;
  }
  return 6.0 * keys * static_cast<double>(model.attention_width());
}

/// Elements of the router and of the shared expert's gate.
int64_t router_weights(const config::ModelConfig& model, int64_t layer) {
  if (!model.has_experts(layer)) return 0;
  return model.hidden_size * (model.num_moe_experts + (model.moe_shared_expert_gate ? 1 : 0));
}

/// The elements of a linear's weights by which a token is multiplied.
int64_t active_weights(const config::ModelConfig& model, int64_t layer, LinearKind kind) {
  switch (kind) {
    case LinearKind::qkv:
      return model.hidden_size * model.qkv_width();
    case LinearKind::proj:
      return model.hidden_size * model.attention_width();
    case LinearKind::fc1:
    case LinearKind::fc2:
      break;
    case LinearKind::output_layer:
      return model.hidden_size * model.padded_vocab_size();
  }
  const int64_t both = model.feed_forward_weights(layer, true) - router_weights(model, layer);
  const int64_t fc2 = both / (model.gated() ? 3 : 2);
  return kind == LinearKind::fc2 ? fc2 : both - fc2;
}

}  // namespace

TokenFlops token_flops(const config::Config& config) {
  const config::ModelConfig& model = config.model;
  const auto trained = config::trained_parameters(config);
  TokenFlops flops{.high_precision = attention_flops(model)};
  const auto add_gemm = [&](bool fp8, int64_t weights) {
    (fp8 ? flops.fp8 : flops.high_precision) += 2.0 * static_cast<double>(weights);
  };
  const auto add_linear = [&](const LinearId& id) {
    const config::LinearPrecision linear = config::linear_precision(config.precision, id, model.num_layers);
    const bool native = !linear.emulated;
    const int64_t weights = active_weights(model, id.layer, id.kind);
    add_gemm(native && linear.fprop, weights);
    add_gemm(native && linear.dgrad, weights);
    if (!trained || trained(id.parameter(ParameterPart::weight))) add_gemm(native && linear.wgrad, weights);
  };
  for (int layer = 0; layer < static_cast<int>(model.num_layers); ++layer) {
    for (const LinearKind kind : {LinearKind::qkv, LinearKind::proj}) add_linear({layer, kind});
    for (const LinearKind kind : {LinearKind::fc1, LinearKind::fc2})
      add_linear({layer, kind, model.has_experts(layer) ? 0 : kNoExpert});
    for (const LinearId& id : config::layer_linears(model, layer))
      add_gemm(false, (id.expert >= 0 ? 3 * model.moe_router_topk : 3) *
                          config::adapter_parameters(config.adapter, model, id));
    const bool wgrad = !trained || trained({ParameterRole::router, layer});
    add_gemm(false, (wgrad ? 3 : 2) * router_weights(model, layer));
  }
  add_linear({static_cast<int>(model.num_layers), LinearKind::output_layer});
  return flops;
}

double flops_per_token(const config::Config& config) {
  return token_flops(config).total();
}

double flops_per_token(const config::ModelConfig& model) {
  config::Config config;
  config.model = model;
  return flops_per_token(config);
}

}  // namespace te::train
