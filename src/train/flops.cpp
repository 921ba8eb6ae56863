#include "train/flops.h"

namespace te::train {

double flops_per_token(const config::ModelConfig& model) {
  const double hidden = static_cast<double>(model.hidden_size);
  const double weights =
      hidden * static_cast<double>(model.qkv_width() + model.attention_width() + model.fc1_width()) +
      hidden * static_cast<double>(model.ffn_hidden_size);
  const double head = hidden * static_cast<double>(model.padded_vocab_size());
  const double layers = static_cast<double>(model.num_layers);
  // Keys of a token on average: half of the sequence, less with a sliding window.
  const double seq = static_cast<double>(model.seq_length),
               span = static_cast<double>(model.attention_span());
  const double attention =
      6.0 * (span * (2.0 * seq - span) / seq) * static_cast<double>(model.attention_width());
  return 6.0 * (layers * weights + head) + layers * attention;
}

}  // namespace te::train
