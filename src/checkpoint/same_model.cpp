// Checks that a checkpoint belongs to this config's model. The `model` sections of the two configs are compared as text
// because the checkpoint may come from another version of te-train, or from a conversion that sets only some keys.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/loader.h"
#include "core/error.h"
#include "core/log.h"

namespace te::checkpoint {
namespace {

/// Keys that determine names and shapes of tensors, and the number of tokens in the vocabulary.
constexpr std::array<std::string_view, 23> kShapeKeys = {"family",
                                                         "num_layers",
                                                         "hidden_size",
                                                         "ffn_hidden_size",
                                                         "num_attention_heads",
                                                         "kv_channels",
                                                         "vocab_size",
                                                         "num_query_groups",
                                                         "add_qkv_bias",
                                                         "tie_word_embeddings",
                                                         "add_proj_bias",
                                                         "add_mlp_bias",
                                                         "qk_norm",
                                                         "norm_gain",
                                                         "position_embedding",
                                                         "norm_placement",
                                                         "num_moe_experts",
                                                         "moe_ffn_hidden_size",
                                                         "moe_shared_expert_intermediate_size",
                                                         "moe_shared_expert_gate",
                                                         "moe_router_enable_expert_bias",
                                                         "moe_layer_freq",
                                                         "first_k_dense"};
/// Keys that may differ without a warning. If max_position_embeddings matters, the shape of a tensor differs, too.
constexpr std::array<std::string_view, 8> kFreeKeys = {
    "seq_length",      "make_vocab_size_divisible_by", "hidden_dropout",          "attention_dropout",
    "init_method_std", "embedding_init_method_std",    "max_position_embeddings", "zero_init"};

bool is_among(const std::string& key, std::span<const std::string_view> keys) {
  return std::ranges::find(keys, key) != keys.end();
}

std::map<std::string, std::string> model_section(const std::string& yaml) {
  std::map<std::string, std::string> values;
  try {
    const YAML::Node model = YAML::Load(yaml)["model"];
    if (!model.IsMap()) return values;
    for (const auto& item : model)
      values[item.first.as<std::string>()] =
          item.second.IsScalar() ? item.second.Scalar() : YAML::Dump(item.second);
  } catch (const YAML::Exception&) {
    values.clear();  // only shapes are compared then
  }
  return values;
}

}  // namespace

void check_same_model(const WeightSource& source, const config::Config& config) {
  const auto stored = model_section(source.config()), wanted = model_section(config::to_yaml(config));
  const auto differs = [&](const std::string& key) {
    return stored.contains(key) && wanted.contains(key) && stored.at(key) != wanted.at(key);
  };
  for (const std::string_view name : kShapeKeys) {
    const std::string key(name);
    if (!differs(key)) continue;
    user_error(
        "{}: belongs to a different model: model.{} is {}, but this config has {}; use the config that it "
        "was saved with",
        source.title(), key, stored.at(key), wanted.at(key));
  }
  for (const auto& [key, value] : wanted) {
    if (is_among(key, kShapeKeys) || is_among(key, kFreeKeys) || !differs(key)) continue;
    log_warning("{}: was trained with model.{} {}, but this config has {}", source.title(), key,
                stored.at(key), value);
  }
}

void check_same_adapter(const Reader& reader, const config::Config& config) {
  const auto stored = config::stored_values(reader.config()),
             wanted = config::stored_values(config::to_yaml(config));
  const auto value = [](const auto& values, std::string_view key, std::string_view absent) {
    const auto found = values.find(key);
    return found == values.end() ? std::string(absent) : found->second;
  };
  const auto check = [&](std::string_view key, std::string_view absent) {
    const std::string was = value(stored, key, absent), is = value(wanted, key, absent);
    if (was != is)
      user_error("{}: was saved with {} {}, but this config has {}; use the config that it was saved with",
                 reader.folder().string(), key, was, is);
  };
  check("adapter.type", "none");
  if (!config.adapter.on()) return;
  for (const std::string_view key : {"adapter.rank", "adapter.alpha", "adapter.target", "adapter.use_rslora",
                                     "adapter.train_norms", "adapter.train_embeddings"})
    check(key, "");
}

}  // namespace te::checkpoint
