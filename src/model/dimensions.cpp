#include "model/dimensions.h"

#include <algorithm>

namespace te::model {

Dimensions Dimensions::of(const config::Config& config, const parallel::TensorParallel& tensor) {
  const config::ModelConfig& model = config.model;
  const int64_t ranks = tensor.size();
  Dimensions dims;
  dims.batch = config.training.micro_batch_size;
  dims.seq = model.seq_length;
  dims.tokens = dims.batch * dims.seq / config.parallel.context;
  dims.stream = tensor.share(dims.tokens);
  dims.hidden = model.hidden_size;
  dims.qkv = model.qkv_width() / ranks;
  dims.attention = model.attention_width() / ranks;
  dims.ffn = model.ffn_hidden_size / ranks;
  dims.fc1 = model.fc1_width() / ranks;
  dims.vocab = model.padded_vocab_size() / ranks;
  dims.dtype = config.precision.dtype == config::ComputeDType::fp32 ? DType::f32 : DType::bf16;
  return dims;
}

int64_t Dimensions::widest_input() const {
  return std::max({hidden, attention, ffn});
}

}  // namespace te::model
