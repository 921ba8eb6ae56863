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
  const double weights =
      hidden * static_cast<double>(model.qkv_width() + model.attention_width() + model.fc1_width()) +
      hidden * static_cast<double>(model.ffn_hidden_size);
  const double head = hidden * static_cast<double>(model.padded_vocab_size());
  const double layers = static_cast<double>(model.num_layers);
  return 6.0 * (layers * weights + head) + attention_flops(model);
}

}  // namespace te::train
