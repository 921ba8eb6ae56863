#include "fp8/gathered_groups.h"

#include "core/error.h"
#include "fp8/recipe.h"
#include "kernels/rearrange/rearrange.h"

namespace te::fp8 {

using kernels::Matrix;
using kernels::ScaleLayout;
using parallel::TensorParallel;

void ShardMemory::shape(const TensorParallel& ranks, DType format, int64_t tokens, int64_t cols,
                        bool grouped) {
  const int64_t shard = ranks.shard(tokens), size = ranks.size();
  rowwise = {nullptr, format, {shard, cols}};
  if (!grouped) return;
  const Shape scales = kernels::scale_shape(ScaleLayout::vectors, shard, cols);
  rowwise_scales = {nullptr, DType::f32, {size, scales[0], scales[1]}};
  columnwise = {nullptr, format, {size, cols, shard}};
  columnwise_scales = {nullptr, DType::f32, kernels::scale_shape(ScaleLayout::vectors, cols, shard)};
}

void ShardMemory::plan(MemoryPlan& plan, const std::string& name, Lifetime lifetime) {
  const auto add = [&](Tensor& slot, const char* suffix) {
    if (slot.shape.rank() > 0)
      plan.add(slot, name + suffix, MemoryKind::scratch, slot.dtype, slot.shape, lifetime);
  };
  add(rowwise, ".rowwise");
  add(rowwise_scales, ".rowwise.scale_inv");
  add(columnwise, ".columnwise");
  add(columnwise_scales, ".columnwise.scale_inv");
}

// The sizes of all tensors except the last are multiples of 128 bytes, so each has the alignment of the first.
void ShardMemory::place_in(const Tensor& values) {
  size_t end = 0;
  for (Tensor* slot : {&rowwise, &rowwise_scales, &columnwise, &columnwise_scales}) {
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
    kernels::column_pieces(stream, {.full = full,
                                    .parts = blocks,
                                    .begin = own.begin - ranks.rank() * own.count,
                                    .at = own.local,
                                    .cols = own.count,
                                    .join = true});
}

}  // namespace

Matrix ShardMemory::rowwise_of(int rank) const {
  return {rowwise, block_of(rowwise_scales, rank), ScaleLayout::vectors};
}

Matrix ShardMemory::columnwise_of(int rank) const {
  return {block_of(columnwise, rank), columnwise_scales, ScaleLayout::vectors};
}

void gather_groups(const Context& context, TensorParallel& ranks, const ShardMemory& memory,
                   const Tensor& shard, const Operand& full, const QuantizeMode& mode,
                   const TensorParallel::Work& work) {
  const auto gather_blocks = [&](const Context& stream, const Tensor& blocks, const Tensor& into) {
    ranks.gather_blocks(stream, block_of(blocks, ranks.rank()), blocks);
    place_columns(stream, ranks, blocks, into);
  };
  const auto rowwise_scales = [&](const Context& stream) {
    gather_blocks(stream, memory.rowwise_scales, full.rowwise.scales);
  };
  const auto columnwise = [&](const Context& stream) {
    gather_blocks(stream, memory.columnwise, full.columnwise.values);
    ranks.gather_rows(stream, memory.columnwise_scales, full.columnwise.scales);
  };
  if (!mode.rowwise) {
    TE_CHECK(mode.columnwise && !work, "work on rows requires the row-wise layout");
    return columnwise(context);
  }
  TensorParallel::Companions companions{.before_work = rowwise_scales, .overlapped = {}};
  if (mode.columnwise) companions.overlapped = columnwise;
  ranks.gather(context, shard, full.rowwise.values, work, companions);
}

}  // namespace te::fp8
