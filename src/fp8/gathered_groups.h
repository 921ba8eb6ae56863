// All-gather of quantized operands under sequence parallelism, for recipes whose scales each cover values of a single
// rank: each rank quantizes its tokens, and the ranks gather FP8 values and scales. The bits are those of quantizing
// all tokens on one rank.
//
//   row-wise      values [tokens, cols]; their scales [cols / 128, tokens] are gathered first, because the first GEMM
//                 needs them
//   column-wise   values [cols, tokens] and scales [tokens / 128, cols] are gathered last; only wgrad reads them
//
// If a rank's tokens are columns, the ranks gather contiguous blocks [ranks, rows, shard], and a kernel copies the
// columns to their positions. A rank's tokens are runs of whole blocks of 128 (TensorParallel::ranges()).
#pragma once

#include "core/memory_plan.h"
#include "fp8/operand.h"
#include "parallel/tensor_parallel.h"

namespace te::fp8 {

struct QuantizeMode;

/// Scratch for gathering a quantized operand of which each rank has [shard, cols].
struct ShardMemory {
  Tensor rowwise;  ///< FP8 [shard, cols], of this rank
  // Only with one scale per 128 values:
  Tensor rowwise_scales;     ///< fp32 [ranks, ceil(cols / 128), shard], of all ranks
  Tensor columnwise;         ///< FP8 [ranks, cols, shard], of all ranks
  Tensor columnwise_scales;  ///< fp32 [shard / 128, cols], of this rank

  /// Sets the shapes for an operand [tokens, cols]; no memory. `grouped`: one scale per 128 values.
  void shape(const parallel::TensorParallel& ranks, DType format, int64_t tokens, int64_t cols, bool grouped);
  void plan(MemoryPlan& plan, const std::string& name, Lifetime lifetime);
  /// Instead of plan(): uses the memory of `values`, which has as many high-precision elements as the operand and is
  /// therefore large enough.
  void place_in(const Tensor& values);

  /// The layouts of a rank's shard, placed within the buffers of the gather.
  kernels::Matrix rowwise_of(int rank) const;
  kernels::Matrix columnwise_of(int rank) const;
};

/// Gathers the layouts of `full` [tokens, cols] that `mode` requests from the ranks' shards in `memory`, and runs
/// `work` on rows of the row-wise layout as they arrive. `shard`: this rank's row-wise values.
void gather_groups(const Context& context, parallel::TensorParallel& ranks, const ShardMemory& memory,
                   const Tensor& shard, const Operand& full, const QuantizeMode& mode,
                   const parallel::TensorParallel::Work& work);

}  // namespace te::fp8
