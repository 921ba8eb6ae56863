#include "model/dimensions.h"

namespace te::model {

Dimensions Dimensions::of(const config::ModelConfig& model, int64_t micro_batch_size, int64_t context_ranks,
                          DType dtype, const parallel::TensorParallel& tensor) {
  const int64_t ranks = tensor.size();
  Dimensions dims;
  dims.batch = micro_batch_size;
  dims.seq = model.seq_length;
  dims.tokens = dims.batch * dims.seq / context_ranks;
  dims.residual_rows = tensor.shard(dims.tokens);
  dims.hidden = model.hidden_size;
  dims.qkv = model.qkv_width() / ranks;
  dims.attention = model.attention_width() / ranks;
  dims.ffn = model.ffn_hidden_size / ranks;
  dims.fc1 = model.fc1_width() / ranks;
  dims.vocab = model.padded_vocab_size() / ranks;
  dims.dtype = dtype;
  return dims;
}

}  // namespace te::model
