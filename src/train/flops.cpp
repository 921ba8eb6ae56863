#include "train/flops.h"

#include "config/adapter.h"

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

/// The weights of linear layers by which a token is multiplied.
double layer_weights(const config::ModelConfig& model) {
  const double attention = static_cast<double>(model.hidden_size) *
                           static_cast<double>(model.qkv_width() + model.attention_width());
  double weights = 0.0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    weights += attention + static_cast<double>(model.feed_forward_weights(layer, true));
  return weights;
}
double head_weights(const config::ModelConfig& model) {
  return static_cast<double>(model.hidden_size) * static_cast<double>(model.padded_vocab_size());
}

}  // namespace

double flops_per_token(const config::ModelConfig& model) {
  return 6.0 * (layer_weights(model) + head_weights(model)) + attention_flops(model);
}

double flops_per_token(const config::Config& config) {
  const config::ModelConfig& model = config.model;
  double flops = flops_per_token(model);
  if (!config.adapter.on()) return flops;
  const double layers = static_cast<double>(model.num_layers);
  const double rank = static_cast<double>(config.adapter.rank);
  flops -= 2.0 * (layer_weights(model) + (config.adapter.train_embeddings ? 0.0 : head_weights(model)));
  for (const LinearKind kind : kLinearKinds) {
    const std::vector<int64_t> blocks = config::linear_blocks(model, kind);
    const double in = static_cast<double>(kind == LinearKind::proj  ? model.attention_width()
                                          : kind == LinearKind::fc2 ? model.ffn_hidden_size
                                                                    : model.hidden_size);
    for (const size_t block : config::adapted_blocks(config.adapter, model, kind))
      flops += 6.0 * rank * (in + static_cast<double>(blocks[block])) * layers;
  }
  return flops;
}

}  // namespace te::train
