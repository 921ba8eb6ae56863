#include "model/operand_gather.h"

#include "core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "kernels/rearrange/rearrange.h"

namespace te::model {

using kernels::ScaleLayout;
using parallel::TensorParallel;

void OperandGather::plan(MemoryPlan& plan, const Quantizer& quantizer, const std::string& name,
                         const TensorParallel& ranks, int64_t tokens, int64_t cols, const Scratch& scratch) {
  if (!quantizer.gathers_quantized(ranks, tokens)) return;
  const fp8::OperandLayouts& layouts = quantizer.layouts();
  const int64_t shard = ranks.shard(tokens), size = ranks.size();
  const bool groups = !layouts.one_scale(), places = groups && quantizer.keeps_high_precision();
  const auto add = [&](PlannedTensor& slot, const char* suffix, Buffer buffer, DType dtype, Shape shape) {
    if (places)
      slot = {nullptr, dtype, shape};
    else
      plan.add(slot, name + suffix, MemoryKind::scratch, dtype, shape,
               {scratch.tag / buffer, scratch.lifetime});
  };
  add(rowwise, ".rowwise", Buffer::rowwise, layouts.format, {shard, cols});
  if (!groups) return;
  const Shape scales = kernels::scale_shape(ScaleLayout::vectors, shard, cols);
  add(rowwise_scales, ".rowwise.scale_inv", Buffer::rowwise_scales, DType::f32, {size, scales[0], scales[1]});
  add(columnwise, ".columnwise", Buffer::columnwise, layouts.format, {size, cols, shard});
  add(columnwise_scales, ".columnwise.scale_inv", Buffer::columnwise_scales, DType::f32,
      kernels::scale_shape(ScaleLayout::vectors, cols, shard));
}

// Uses the memory of `values`, which has as many high-precision elements as the operand and is therefore large enough.
// The sizes of all tensors except the last are multiples of 128 bytes, so each has the alignment of the first.
void OperandGather::place_in(const Tensor& values) {
  size_t end = 0;
  for (PlannedTensor* slot : {&rowwise, &rowwise_scales, &columnwise, &columnwise_scales}) {
    slot->data = values.as<char>() + end;
    end += slot->bytes();
  }
  TE_CHECK(end <= values.bytes(), "the layouts of a shard need {} bytes, {} has {}", end, values.shape.str(),
           values.bytes());
}

namespace {

/// The block [rows, cols] of rank `rank` in blocks [ranks, rows, cols].
Tensor block_of(const Tensor& blocks, int rank) {
  const int64_t rows = blocks.dim(1);
  return blocks.slice_rows(rank * rows, rows);
}

/// Copies the ranks' blocks [ranks, rows, shard] to the columns of `full` [rows, tokens].
void place_columns(const Context& stream, const TensorParallel& ranks, const Tensor& blocks,
                   const Tensor& full) {
  for (const parallel::TokenRange& own : ranks.ranges(full.cols()))
    kernels::column_chunks(stream, {.full = full,
                                    .parts = blocks,
                                    .begin = own.begin - ranks.rank() * own.count,
                                    .at = own.local,
                                    .cols = own.count,
                                    .join = true});
}

}  // namespace

Operand OperandGather::shard_of(const Quantizer& quantizer, const Operand& full, const Tensor& high_precision,
                                const TensorParallel& ranks) {
  Operand shard{.high_precision = high_precision, .is_shard = true};
  if (!quantizer.gathers_quantized(ranks, full.rowwise.rows())) return shard;
  if (quantizer.layouts().one_scale()) {
    shard.rowwise = {rowwise, full.rowwise.scales, full.rowwise.layout};
  } else {
    if (quantizer.keeps_high_precision()) place_in(full.high_precision);
    shard.rowwise = {rowwise, block_of(rowwise_scales, ranks.rank()), ScaleLayout::vectors};
    shard.columnwise = {block_of(columnwise, ranks.rank()), columnwise_scales, ScaleLayout::vectors};
  }
  if (const Tensor own = ranks.shard_view(full.rowwise.values)) shard.rowwise.values = own;
  return shard;
}

ReadyOperand OperandGather::gather(const Context& context, const Quantizer& quantizer, TensorParallel& ranks,
                                   const Operand& shard, const ProducedOperand& produced, const Operand& full,
                                   QuantizeMode mode, const GatherWork& work, const ColumnSums& sums) const {
  const auto work_on = [&](const ReadyOperand& ready) {
    return work ? TensorParallel::Work(
                      [&work, &ready](int64_t first, int64_t count) { work(ready, first, count); })
                : TensorParallel::Work();
  };
  const bool quantized = quantizer.layouts().quantized() && !quantizer.in_high_precision();
  if (quantized && !quantizer.gathers_quantized(ranks, full.rowwise.rows())) {
    // Gather high-precision rows, then quantize all of them.
    if (sums.into && !produced.sums.into)
      kernels::bias_gradient(context, produced.high_precision, sums.into, sums.scratch);
    ranks.gather(context, produced.high_precision, full.high_precision);
    const ReadyOperand ready =
        quantizer.complete(context, full, {.high_precision = full.high_precision}, mode);
    if (work) work(ready, 0, full.high_precision.rows());
    return ready;
  }
  // 1. Quantize the shard before gathering FP8 bytes. A scale per tensor is that of all shards.
  const bool groups = quantized && !quantizer.layouts().one_scale();
  QuantizeMode shard_mode = mode;
  if (!groups) shard_mode.rowwise = true;  // the columnwise layout is its transpose
  quantizer.complete(context, shard, produced, shard_mode, sums);
  ReadyOperand ready;
  if (!quantized) {
    ready.high_precision = full.high_precision;
    ranks.gather(context, produced.high_precision, full.high_precision, work_on(ready));
    return ready;
  }
  if (shard_mode.rowwise) ready.rowwise = full.rowwise;
  if (mode.columnwise) ready.columnwise = full.columnwise;
  if (groups) {
    gather_groups(context, ranks, shard.rowwise.values, ready, work_on(ready));
    return ready;
  }
  ranks.gather(context, shard.rowwise.values, full.rowwise.values, work_on(ready));
  // 2. Transpose the gathered rows.
  if (mode.columnwise) kernels::transpose_fp8(context, full.rowwise.values, full.columnwise.values);
  return ready;
}

// The layouts that `full` has, from the ranks' shards; `shard`: this rank's row-wise values.
void OperandGather::gather_groups(const Context& context, TensorParallel& ranks, const Tensor& shard,
                                  const ReadyOperand& full, const TensorParallel::Work& work) const {
  const auto gather_blocks = [&](const Context& stream, const Tensor& blocks, const Tensor& into) {
    ranks.gather_blocks(stream, block_of(blocks, ranks.rank()), blocks);
    place_columns(stream, ranks, blocks, into);
  };
  const auto gather_rowwise_scales = [&](const Context& stream) {
    gather_blocks(stream, rowwise_scales, full.rowwise.scales);
  };
  const auto gather_columnwise = [&](const Context& stream) {
    gather_blocks(stream, columnwise, full.columnwise.values);
    ranks.gather_rows(stream, columnwise_scales, full.columnwise.scales);
  };
  if (!full.rowwise) {
    TE_CHECK(full.columnwise && !work, "work on rows requires the row-wise layout");
    return gather_columnwise(context);
  }
  TensorParallel::ExtraTransfers extra{.before_work = gather_rowwise_scales, .overlapped = {}};
  if (full.columnwise) extra.overlapped = gather_columnwise;
  ranks.gather(context, shard, full.rowwise.values, work, extra);
}

}  // namespace te::model
