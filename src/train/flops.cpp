#include "train/flops.h"

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

}  // namespace

double flops_per_token(const config::ModelConfig& model) {
  const double hidden = static_cast<double>(model.hidden_size);
  const double attention = hidden * static_cast<double>(model.qkv_width() + model.attention_width());
  double weights = 0.0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    weights += attention + static_cast<double>(model.feed_forward_weights(layer, true));
  const double head = hidden * static_cast<double>(model.padded_vocab_size());
  return 6.0 * (weights + head) + attention_flops(model);
}

}  // namespace te::train
