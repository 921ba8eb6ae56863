// Sequence parallelism: each rank has some of the tokens of an operand, and its GEMMs read all of them. If the scales
// permit (Quantizer::gathers_quantized()), each rank quantizes its tokens, and the ranks gather FP8 bytes. The bits are
// those of quantizing all tokens on one rank.
//
//   one scale per tensor   the amax is reduced over the ranks; each rank transposes the gathered rows
//   groups of 128 values   each scale covers values of a single rank
//     row-wise             values [tokens, cols]; their scales [cols / 128, tokens] are gathered first, because the
//                          first GEMM needs them
//     column-wise          values [cols, tokens] and scales [tokens / 128, cols] are gathered last; only wgrad reads
//                          them
//
// If a rank's tokens are columns, the ranks gather contiguous blocks [ranks, rows, shard], and a kernel copies the
// columns to their positions. A rank's tokens are runs of whole blocks of 128 (TensorParallel::ranges()).
#pragma once

#include <functional>
#include <string>

#include "core/memory_plan.h"
#include "fp8/quantizer.h"
#include "parallel/tensor_parallel.h"

namespace te::model {

using fp8::ColumnSums;
using fp8::Operand;
using fp8::ProducedOperand;
using fp8::QuantizeMode;
using fp8::Quantizer;
using fp8::ReadyOperand;

/// Work on rows [first, first + count) of an operand, as they arrive; its other rows are not ready yet.
using GatherWork = std::function<void(const ReadyOperand& operand, int64_t first, int64_t count)>;

/// Scratch for gathering a quantized operand of which each rank has [shard, cols].
class OperandGather {
 public:
  /// For an operand [tokens, cols]; nothing if high-precision rows are gathered. If the operand keeps high-precision
  /// values (Quantizer::keeps_high_precision()), FP8 passes do not need them, so groups are gathered in their memory.
  void plan(MemoryPlan& plan, const Quantizer& quantizer, const std::string& name,
            const parallel::TensorParallel& ranks, int64_t tokens, int64_t cols, const Scratch& scratch);
  /// Memory for this rank's rows of `full`: `high_precision` values and their quantized layouts.
  Operand shard_of(const Quantizer& quantizer, const Operand& full, const Tensor& high_precision,
                   const parallel::TensorParallel& ranks);
  /// Completes `full` [tokens, cols] from the tensor-parallel ranks' shards and runs `work` on its rows as they arrive.
  /// Without work, the mode may request the column-wise layout only.
  ReadyOperand gather(const Context& context, const Quantizer& quantizer, parallel::TensorParallel& ranks,
                      const Operand& shard, const ProducedOperand& produced, const Operand& full,
                      QuantizeMode mode, const GatherWork& work, const ColumnSums& sums = {}) const;

  PlannedTensor rowwise;  ///< FP8 [shard, cols], of this rank
  // Only with one scale per 128 values:
  PlannedTensor rowwise_scales;     ///< fp32 [ranks, ceil(cols / 128), shard], of all ranks
  PlannedTensor columnwise;         ///< FP8 [ranks, cols, shard], of all ranks
  PlannedTensor columnwise_scales;  ///< fp32 [shard / 128, cols], of this rank

 private:
  enum class Buffer : uint8_t { rowwise, rowwise_scales, columnwise, columnwise_scales };
  void place_in(const Tensor& values);
  void gather_groups(const Context& context, parallel::TensorParallel& ranks, const Tensor& shard,
                     const ReadyOperand& full, const parallel::TensorParallel::Work& work) const;
};

}  // namespace te::model
