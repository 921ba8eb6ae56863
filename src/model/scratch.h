// Buffers that live only inside one layer's pass and are therefore shared by all layers of a stage. Each is
// planned once at its largest size.
#pragma once

#include "config/config.h"
#include "core/memory_plan.h"
#include "parallel/tensor_parallel.h"

namespace te::model {

/// Sizes that recur: of one microbatch through this rank's part of one layer.
struct Dimensions {
  int64_t batch = 0;  ///< sequences of a microbatch
  int64_t seq = 0;
  int64_t tokens = 0;  ///< batch * seq
  int64_t stream =
      0;  ///< rows of the residual stream here: tokens, or with sequence parallelism a share of them
  int64_t hidden = 0;
  int64_t qkv = 0;        ///< width of linear_qkv's output
  int64_t attention = 0;  ///< width of attention's output
  int64_t ffn = 0;        ///< width of linear_fc2's input
  int64_t fc1 = 0;        ///< width of linear_fc1's output: 2 ffn with SwiGLU
  int64_t vocab = 0;      ///< rows of the padded vocabulary
  DType dtype = DType::bf16;

  static Dimensions of(const config::Config& config, const parallel::TensorParallel& tensor);
  int64_t widest_input() const;  ///< of the four linears
  int64_t widest_output() const;
};

struct Scratch {
  // Operands of the linear in work.
  Tensor input_hp;       ///< tokens x widest input
  Tensor input_rowwise;  ///< the same in FP8
  Tensor input_columnwise;
  Tensor grad_rowwise;  ///< tokens x widest output, FP8
  Tensor grad_columnwise;
  // With sequence parallelism: what travels between a share of the tokens and all of them.
  Tensor whole;               ///< [tokens, hidden]
  Tensor share_hp;            ///< [stream, hidden]
  Tensor share_rowwise;       ///< [stream, hidden] FP8
  Tensor share_grad_rowwise;  ///< [stream, hidden] FP8
  // The forward pass.
  Tensor delta;  ///< [stream, hidden]: a sublayer's output before its residual add
  // The backward pass. With selective recompute d_inner is also linear_fc1's input, in both passes.
  Tensor d_stream;  ///< [stream, hidden]: gradient of the residual stream
  Tensor d_branch;  ///< [stream, hidden]: gradient that enters or leaves a sublayer
  Tensor d_wide;    ///< tokens x max(fc1, qkv): gradient of linear_fc1's or linear_qkv's output
  /// tokens x max(ffn, attention), with selective recompute x widest input: gradient of linear_fc2's or linear_proj's input
  Tensor d_inner;
  Tensor column_sums;  ///< partial sums of bias gradients
  Tensor norm_sums;    ///< partial sums of norm gradients
  Tensor attention;    ///< workspace of the attention kernels

  void plan(MemoryPlan& plan, const Dimensions& dims, bool fp8, bool recompute_inputs,
            int64_t attention_bytes);
};

}  // namespace te::model
