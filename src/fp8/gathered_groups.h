// What the tensor ranks of sequence parallelism exchange of an operand whose groups of values with one scale lie within
// a rank's tokens: each rank casts its tokens, and the values travel with their scales. The bits are those of a cast of
// all tokens.
//
//   row-wise      [tokens, cols] rows, as of one scale a tensor; their scales [cols / 128, tokens] before them, as the
//                 first GEMM needs them
//   column-wise   [cols, tokens] behind them: only the weight's gradient reads it; scales [tokens / 128, cols]
//
// Where the tokens of a rank are columns, its block travels as it is, [ranks, rows, shard], and copies put the columns
// in their places. A rank's tokens are runs of whole blocks of 128 (TensorParallel::ranges()).
#pragma once

#include "core/memory_plan.h"
#include "fp8/operand.h"
#include "parallel/tensor_parallel.h"

namespace te::fp8 {

struct QuantizeMode;

/// Scratch of a gather of quantized rows, a rank's of which are [shard, cols].
struct ShardMemory {
  Tensor rowwise;  ///< FP8 [shard, cols]: this rank's values
  // With scales of 128 values:
  Tensor rowwise_scales;     ///< fp32 [ranks, ceil(cols / 128), shard]: all ranks'
  Tensor columnwise;         ///< FP8 [ranks, cols, shard]: all ranks' values
  Tensor columnwise_scales;  ///< fp32 [shard / 128, cols]: this rank's

  /// The tensors of an operand [tokens, cols] without memory. `grouped`: scales are those of 128 values.
  void shape(const parallel::TensorParallel& ranks, DType format, int64_t tokens, int64_t cols, bool grouped);
  void plan(MemoryPlan& plan, const std::string& name, Lifetime lifetime);
  /// Instead: in the memory of a tensor of as many high-precision values as the operand has, which is large enough.
  void place_in(const Tensor& values);

  /// A rank's forms, in place where what has been gathered will lie.
  kernels::Matrix rowwise_of(int rank) const;
  kernels::Matrix columnwise_of(int rank) const;
};

/// The forms of `full` [tokens, cols] that the mode asks for, from those of the ranks' shards in `memory`; and `work`
/// on its rows as the row-wise one arrives. `shard`: this rank's row-wise values.
void gather_groups(const Context& context, parallel::TensorParallel& ranks, const ShardMemory& memory,
                   const Tensor& shard, const Operand& full, const QuantizeMode& mode,
                   const parallel::TensorParallel::Work& work);

}  // namespace te::fp8
