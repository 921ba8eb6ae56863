#include "bench/layer_config.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "bench/session.h"
#include "config/precision_overrides.h"
#include "core/error.h"

namespace te::bench {
namespace {

/// Whether precision.overrides has a rule that names layers. These are not the same in a model of one layer.
bool names_layers(const std::string& overrides) {
  for (const std::string& rule : config::override_rules(overrides)) {
    std::string selector = rule.substr(0, rule.rfind(':'));
    std::ranges::replace(selector, ',', ' ');
    std::istringstream words(selector);
    for (std::string word; words >> word;)
      if (word == "layers" || word == "layer") return true;
  }
  return false;
}

/// The precision of the layer's linears.
std::vector<config::LinearPrecision> precisions_of(const config::PrecisionConfig& precision) {
  std::vector<config::LinearPrecision> linears;
  for (const LinearKind kind : {LinearKind::qkv, LinearKind::proj, LinearKind::fc1, LinearKind::fc2})
    linears.push_back(config::linear_precision(precision, {0, kind}, 1));
  return linears;
}

/// The precision of a layer in the middle of the model, which is not among the first and last layers in BF16.
void use_layer_precision(const std::string& path, config::PrecisionConfig& precision) {
  if (names_layers(precision.overrides))
    user_error(
        "{}: precision.overrides names layers, but te-bench layer measures one layer for all; --set "
        "precision.overrides to rules for all layers, or to nothing",
        path);
  precision.first_layers_bf16 = precision.last_layers_bf16 = 0;
  if (std::ranges::none_of(precisions_of(config::as_quantized(precision)),
                           &config::LinearPrecision::quantized))
    user_error(
        "{}: precision.overrides keeps all linears in BF16, so that te-bench layer has no FP8 to measure; "
        "--set precision.overrides to other rules, or to nothing",
        path);
}

}  // namespace

bool has_overrides(config::PrecisionConfig precision) {
  const std::vector<config::LinearPrecision> all = precisions_of(precision);
  precision.overrides.clear();
  return precisions_of(precision) != all;
}

config::Config first_layer(const std::string& path, const std::vector<std::string>& overrides) {
  config::Config config = load_without_data(path, overrides);
  if (config.adapter.on())
    user_error(
        "{}: te-bench layer measures pre-training, where all weights of a layer are trained, but "
        "adapter.type is {}; use te-bench step, or --set adapter.type=none",
        path, to_string(config.adapter.type));
  if (config.model.has_experts(0))
    user_error(
        "{}: te-bench layer measures layers without experts (model.num_moe_experts); use te-bench step",
        path);
  use_layer_precision(path, config.precision);
  config.model.num_layers = 1;
  config.parallel.pipeline = config.parallel.virtual_stages = 1;
  config.parallel.pipeline_split = "even";
  config.training.global_batch_size = config.training.micro_batch_size;
  if (config.training.recompute == config::Recompute::full)
    config.training.recompute = config::Recompute::none;
  return config;
}

config::Config layer_config(const std::string& which) {
  config::Config config;
  config.name = which;
  config.model.num_layers = 1;
  config.model.vocab_size = 16;
  config.model.make_vocab_size_divisible_by = 16;
  config.model.hidden_size = 4096;
  config.model.num_attention_heads = 32;
  if (which == "gpt") {
    config.model.family = config::Family::gpt;
    config.model.ffn_hidden_size = 16384;
    config.model.seq_length = 2048;
    config.training.micro_batch_size = 4;
  } else if (which == "llama7b") {
    config.model.family = config::Family::llama;
    config.model.ffn_hidden_size = 11008;
    config.model.seq_length = 4096;
    config.training.micro_batch_size = 2;
  } else {
    user_error("--which {}: must be gpt or llama7b", which);
  }
  config.training.global_batch_size = config.training.micro_batch_size;
  config.training.train_steps = 1;
  config.data.synthetic = true;
  config::resolve_defaults(config);
  return config;
}

}  // namespace te::bench
