// Sizes of one microbatch in this rank's part of one layer.
#pragma once

#include "config/config.h"
#include "core/tensor.h"
#include "parallel/tensor_parallel.h"

namespace te::model {

struct Dimensions {
  int64_t batch = 0;  ///< sequences of a microbatch
  int64_t seq = 0;
  int64_t tokens =
      0;  ///< tokens on this rank: batch * seq, or with context parallelism an equal part of each sequence
  int64_t residual_rows =
      0;  ///< rows of the residual stream on this rank: tokens, or with sequence parallelism a shard of them
  int64_t hidden = 0;
  int64_t qkv = 0;        ///< width of linear_qkv's output
  int64_t attention = 0;  ///< width of attention's output
  int64_t ffn = 0;        ///< width of linear_fc2's input
  int64_t fc1 = 0;        ///< width of linear_fc1's output: 2 ffn with SwiGLU
  int64_t vocab = 0;      ///< rows of the padded vocabulary
  DType dtype = DType::bf16;

  static Dimensions of(const config::ModelConfig& model, int64_t micro_batch_size, int64_t context_ranks,
                       DType dtype, const parallel::TensorParallel& tensor);
};

}  // namespace te::model
