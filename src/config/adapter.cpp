#include "config/adapter.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>

#include "config/text.h"
#include "core/error.h"

namespace te::config {
namespace {

constexpr int64_t kRankMultiple = 8;  // rows of 16 bytes in BF16
constexpr LinearKind kAdaptable[] = {LinearKind::qkv, LinearKind::proj, LinearKind::fc1, LinearKind::fc2};

/// `block`: PEFT's name.
bool targets(const AdapterConfig& adapter, LinearKind kind, const std::string& block) {
  const std::string brief = block.substr(0, block.find('_'));
  return std::ranges::any_of(adapter.target, [&](const std::string& name) {
    const auto is = [&](const std::string& text) { return fnmatch(name.c_str(), text.c_str(), 0) == 0; };
    return name == "all-linear" || is(block) || is(brief) || is(std::string(to_string(kind)));
  });
}

void check_targets(const Config& c) {
  if (c.adapter.target.empty())
    user_error("adapter.target is empty; name matrices such as q and v, or all-linear");
  std::vector<std::string> names = {"all-linear"};
  for (const LinearKind kind : kAdaptable)
    for (const std::string& block : block_names(c.model, kind))
      names.push_back(block.substr(0, block.find('_')));
  for (const std::string& name : c.adapter.target) {
    AdapterConfig one = c.adapter;
    one.target = {name};
    const bool found = std::any_of(std::begin(kAdaptable), std::end(kAdaptable), [&](LinearKind kind) {
      return !adapted_blocks(one, c.model, kind).empty();
    });
    if (!found)
      user_error("adapter.target: {} is not a matrix of this model's layers; it has {}", in_quotes(name),
                 fmt::join(names, ", "));
  }
}

// Dropout draws eight columns of a tensor-parallel rank at once.
void check_dropout(const Config& c) {
  const int64_t tensor = c.parallel.tensor;
  if (c.adapter.dropout == 0.0 || tensor == 1) return;
  for (const auto& [key, width] : {std::pair{"num_attention_heads * kv_channels", c.model.attention_width()},
                                   std::pair{"ffn_hidden_size", c.model.ffn_hidden_size}})
    if (width % (8 * tensor) != 0)
      user_error(
          "adapter.dropout ({}) needs model.{} ({}) to be a multiple of 8 * parallel.tensor = {}; set it to "
          "0",
          c.adapter.dropout, key, width, 8 * tensor);
}

// Decoding during training reads only the base's weights.
void check_decoding(const Config& c) {
  for (const auto& [key, steps] : {std::pair{"logging.generate_every", c.logging.generate_every},
                                   std::pair{"evaluation.every", c.evaluation.every}})
    if (steps > 0)
      user_error(
          "{} ({}) is not supported with adapter.type {}; set it to 0 and run te-generate with checkpoints",
          key, steps, to_string(c.adapter.type));
}

}  // namespace

double AdapterConfig::scale() const {
  return alpha / (use_rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

std::vector<int64_t> linear_blocks(const ModelConfig& model, const LinearId& id) {
  const int64_t keys = model.num_query_groups * model.kv_channels;
  const int64_t ffn = id.expert >= 0               ? model.moe_ffn_hidden_size
                      : id.expert == kSharedExpert ? model.moe_shared_expert_intermediate_size
                                                   : model.ffn_hidden_size;
  switch (id.kind) {
    case LinearKind::qkv:
      return {model.attention_width(), keys, keys};
    case LinearKind::fc1:
      return std::vector<int64_t>(model.gated() ? 2 : 1, ffn);
    case LinearKind::proj:
    case LinearKind::fc2:
      return {model.hidden_size};
    case LinearKind::output_layer:
      break;
  }
  return {model.padded_vocab_size()};
}

std::vector<LinearId> layer_linears(const ModelConfig& model, int layer) {
  std::vector<LinearId> linears{{layer, LinearKind::qkv}, {layer, LinearKind::proj}};
  const bool experts = model.has_experts(layer);
  for (const int expert : {experts ? 0 : kNoExpert, kSharedExpert}) {
    if (expert == kSharedExpert && !(experts && model.moe_shared_expert_intermediate_size > 0)) continue;
    for (const LinearKind kind : {LinearKind::fc1, LinearKind::fc2}) linears.push_back({layer, kind, expert});
  }
  return linears;
}

std::vector<std::string> block_names(const ModelConfig& model, LinearKind kind) {
  switch (kind) {
    case LinearKind::qkv:
      return {"q_proj", "k_proj", "v_proj"};
    case LinearKind::proj:
      return {"o_proj"};
    case LinearKind::fc1:
      if (model.gated()) return {"gate_proj", "up_proj"};
      return {"up_proj"};
    case LinearKind::fc2:
      return {"down_proj"};
    case LinearKind::output_layer:
      break;
  }
  return {};
}

std::vector<size_t> adapted_blocks(const AdapterConfig& adapter, const ModelConfig& model, LinearKind kind) {
  std::vector<size_t> blocks;
  if (!adapter.on()) return blocks;
  const std::vector<std::string> names = block_names(model, kind);
  for (size_t i = 0; i < names.size(); ++i)
    if (targets(adapter, kind, names[i])) blocks.push_back(i);
  return blocks;
}

int64_t adapter_parameters(const AdapterConfig& adapter, const ModelConfig& model, const LinearId& id) {
  const std::vector<int64_t> blocks = linear_blocks(model, id);
  const int64_t in = id.kind == LinearKind::proj ? model.attention_width()
                     : id.kind == LinearKind::fc2
                         ? linear_blocks(model, {id.layer, LinearKind::fc1, id.expert})[0]
                         : model.hidden_size;
  int64_t count = 0;
  for (const size_t block : adapted_blocks(adapter, model, id.kind))
    count += adapter.rank * (in + blocks[block]);
  return count;
}

bool adapts_mlp(const AdapterConfig& adapter, const ModelConfig& model) {
  return !adapted_blocks(adapter, model, LinearKind::fc1).empty() ||
         !adapted_blocks(adapter, model, LinearKind::fc2).empty();
}

std::vector<std::string> adapted_matrices(const AdapterConfig& adapter, const ModelConfig& model) {
  std::vector<std::string> matrices;
  for (const LinearKind kind : kAdaptable) {
    const std::vector<std::string> names = block_names(model, kind);
    for (const size_t block : adapted_blocks(adapter, model, kind)) matrices.push_back(names[block]);
  }
  return matrices;
}

std::function<bool(const ParameterId&)> trained_parameters(const Config& config) {
  if (config.trains || !config.adapter.on()) return config.trains;
  return [norms = config.adapter.train_norms,
          embeddings = config.adapter.train_embeddings](const ParameterId& id) {
    const bool embedding = has_vocabulary_rows(id.role) || id.role == ParameterRole::position_embeddings;
    return is_adapter(id.part) || (norms && is_norm(id.role)) || (embeddings && embedding);
  };
}

void check_adapter(const Config& c) {
  const AdapterConfig& a = c.adapter;
  if (!a.on()) return;
  if (a.rank % kRankMultiple != 0)
    user_error("adapter.rank ({}) is not a multiple of {}; the nearest is {}", a.rank, kRankMultiple,
               (a.rank + kRankMultiple / 2) / kRankMultiple * kRankMultiple);
  check_targets(c);
  if (a.train_norms && !c.model.norm_gain && !c.model.qk_norm_gain())
    user_error(
        "adapter.train_norms: the norms of this model have no gains (model.norm_gain is false); leave it "
        "out");
  if (c.checkpoint.init_from.empty())
    user_error(
        "adapter.type {} needs checkpoint.init_from, the checkpoint or Hugging Face folder of the weights "
        "that it adapts",
        to_string(a.type));
  if (c.optimizer.name == OptimizerName::muon)
    user_error("optimizer.name muon is for whole weight matrices; with adapter.type {} set it to adamw",
               to_string(a.type));
  if (c.parallel.schedule == PipelineSchedule::zero_bubble)
    user_error(
        "parallel.schedule zero_bubble defers weight gradients, which adapter.type {} does not support; set "
        "it to 1f1b",
        to_string(a.type));
  check_dropout(c);
  check_decoding(c);
}

}  // namespace te::config
