#include "model/lora_adapter.h"

#include <cmath>
#include <utility>

#include "core/profile.h"
#include "core/random.h"
#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/rearrange/rearrange.h"

namespace te::model {
namespace {

using parameters::ParameterShard;
using parameters::Sharing;

float initial_std(const LoraAdapter::Spec& spec) {
  if (spec.adapter.init == config::AdapterInit::gaussian) return 1.0f / static_cast<float>(spec.adapter.rank);
  // PEFT: uniform between -1 / sqrt(in) and 1 / sqrt(in).
  return static_cast<float>(1.0 / std::sqrt(3.0 * static_cast<double>(spec.in)));
}

/// out [rows, n] (+)= a [rows, k] times b: [n, k] with trans_b, else [k, n]; of experts with offsets.
void multiply(const Context& context, const kernels::GroupedGemm& gemm) {
  if (gemm.offsets) return kernels::grouped_gemm(context, gemm);
  kernels::gemm(
      context,
      {.a = gemm.a, .b = gemm.b, .out = gemm.out, .trans_b = gemm.trans_b, .accumulate = gemm.accumulate});
}

/// out [m, n] (+)= a [rows, m]^T b [rows, n].
void contract(const Context& context, const kernels::GroupedWgrad& gemm) {
  if (gemm.offsets) return kernels::grouped_wgrad(context, gemm);
  kernels::gemm(context,
                {.a = gemm.a, .b = gemm.b, .out = gemm.out, .trans_a = true, .accumulate = gemm.accumulate});
}

}  // namespace

LoraAdapter::LoraAdapter(Spec spec, parameters::ParameterStore& parameters,
                         const parallel::TensorParallel& tensor)
    : spec_(std::move(spec)),
      name_(module_name(spec_.id.parameter(ParameterPart::weight).role, spec_.id.layer) + ".lora"),
      scale_(static_cast<float>(spec_.adapter.scale())),
      dropout_(static_cast<float>(spec_.adapter.dropout)),
      dropout_id_(stream_of(name_ + ".dropout")),
      columns_(static_cast<int64_t>(spec_.targets.size()) * spec_.adapter.rank) {
  const int64_t rank = spec_.adapter.rank, parts = spec_.row_parallel || spec_.experts ? 1 : tensor.size();
  std::vector<int64_t> targeted;
  int64_t rows = 0;
  for (size_t block = 0, next = 0; block < spec_.blocks.size(); ++block) {
    const int64_t local = spec_.blocks[block] / parts;
    if (next < spec_.targets.size() && spec_.targets[next] == block) {
      targets_.push_back({out_, rows / parts, local});
      targeted.push_back(spec_.blocks[block]);
      rows += spec_.blocks[block];
      ++next;
    }
    out_ += local;
  }
  rows_ = rows / parts;
  const auto add = [&](ParameterPart part, ParameterShard shard, Sharing sharing, float std) {
    return parameters.add({.id = spec_.id.parameter(part),
                           .shard = std::move(shard),
                           .init = std > 0 ? parameters::Init::normal : parameters::Init::zeros,
                           .std = std,
                           .decay = true,
                           .sharing = sharing,
                           .group = spec_.group});
  };
  const int64_t all = spec_.experts ? spec_.experts->all : 1;
  const Shape a{all * columns_, spec_.in}, b{all * rows, rank};
  if (spec_.experts) {
    const auto shard = [&](const Shape& shape) {
      return ParameterShard::of_rows(shape, {shape[0]}, spec_.experts->rank, spec_.experts->ranks);
    };
    a_ = add(ParameterPart::lora_a, shard(a), Sharing::sharded, initial_std(spec_));
    b_ = add(ParameterPart::lora_b, shard(b), Sharing::sharded, 0.0f);
  } else if (spec_.row_parallel) {
    a_ = add(ParameterPart::lora_a, ParameterShard::of_columns(a, tensor.rank(), tensor.size()),
             Sharing::sharded, initial_std(spec_));
    b_ = add(ParameterPart::lora_b, ParameterShard::full(b), Sharing::partial, 0.0f);
  } else {
    a_ = add(ParameterPart::lora_a, ParameterShard::full(a), Sharing::partial, initial_std(spec_));
    b_ = add(ParameterPart::lora_b, ParameterShard::of_rows(b, targeted, tensor.rank(), tensor.size()),
             Sharing::sharded, 0.0f);
  }
}

// --- memory ------------------------------------------------------------------------------------------------

void LoraAdapter::plan(MemoryPlan& plan, const Dimensions& dims, int64_t rows, ScratchTag tag,
                       Lifetime scratch, bool training) {
  seq_ = dims.seq;
  const auto add = [&](PlannedTensor& slot, const char* suffix, DType dtype, Shape shape, Buffer use) {
    plan.add(slot, name_ + suffix, MemoryKind::scratch, dtype, shape, {tag / use, scratch});
  };
  const bool equal = spec_.blocks.size() == 1;
  if (!equal)
    plan.add(wide_, name_ + ".block_diagonal", MemoryKind::parameters, dims.dtype,
             {experts() * out_, columns_});
  add(h_, ".h", dims.dtype, {rows, columns_}, Buffer::h);
  if (!training) return;
  add(dh_, ".dh", dims.dtype, {rows, columns_}, Buffer::dh);
  if (dropout_ > 0) add(dropped_, ".dropped", dims.dtype, {rows, a_->shape[1]}, Buffer::dropped);
  if (equal) return;
  add(wide_grad_, ".block_diagonal.grad", DType::f32, {experts() * out_, columns_}, Buffer::wide_grad);
  add(target_grad_, ".grad", DType::f32, b_->shape, Buffer::target_grad);
}

void LoraAdapter::prepare(const Context& context) const {
  if (!block_diagonal()) return;
  const ProfileLabel label("weights");
  context.zero(wide_);
  copy_blocks(context, wide_, b_->value, true);
}

void LoraAdapter::copy_blocks(const Context& context, const Tensor& wide, const Tensor& compact,
                              bool to_wide) const {
  for (size_t i = 0; i < targets_.size(); ++i)
    kernels::copy_block(context, {.full = wide.view({experts(), out_, columns_}),
                                  .part = compact.view({experts(), rows_, spec_.adapter.rank}),
                                  .row = targets_[i].out_row,
                                  .col = static_cast<int64_t>(i) * spec_.adapter.rank,
                                  .part_row = targets_[i].row,
                                  .rows = targets_[i].rows,
                                  .to_full = to_wide});
}

// --- passes ------------------------------------------------------------------------------------------------

/// x: rows from `first` of the layer's input, or of its gradient. The mask depends only on the position in the global
/// batch and in the full tensor.
void LoraAdapter::mask(const Context& context, const Tensor& x, const Tensor& y, int64_t first,
                       const Pass& pass, const AdapterRows& rows) const {
  if (rows.numbers)
    return kernels::dropout(context, {.x = x,
                                      .y = y,
                                      .probability = dropout_,
                                      .seed = pass.dropout_seed,
                                      .stream = dropout_id_,
                                      .numbers = rows.numbers,
                                      .source = rows.source});
  const auto drop_range = [&](int64_t token, int64_t full, int64_t count) {
    kernels::dropout(context, {.x = x.slice_rows(token - first, count),
                               .y = y.slice_rows(token - first, count),
                               .probability = dropout_,
                               .seed = pass.dropout_seed,
                               .stream = dropout_id_,
                               .first_row = static_cast<uint64_t>(pass.first_sample * seq_ + full),
                               .first_col = a_->shard.first_col,
                               .all_cols = a_->shape[1] < spec_.in ? spec_.in : 0});
  };
  if (spec_.ranks == nullptr) return drop_range(first, first, x.rows());
  spec_.ranks->for_whole_ranges(first, x.rows(), drop_range);
}

/// x: rows from `first` of the layer's input.
Tensor LoraAdapter::drop(const Context& context, const Tensor& x, int64_t first, const Pass& pass,
                         const AdapterRows& rows) const {
  if (dropout_ == 0.0f || pass.evaluating()) return x;
  const Tensor dropped = dropped_.slice_rows(first, x.rows());
  mask(context, x, dropped, first, pass, rows);
  return dropped;
}

/// h = scale * x A^T of rows from `first`.
Tensor LoraAdapter::compress(const Context& context, const Tensor& x, int64_t first, const Pass& pass,
                             const AdapterRows& rows) const {
  Tensor h = h_.slice_rows(first, x.rows());
  multiply(context, {.a = drop(context, x, first, pass, rows),
                     .b = a_->value,
                     .offsets = rows.offsets,
                     .out = h,
                     .trans_b = true});
  if (scale_ != 1.0f) kernels::scale(context, h, scale_);
  return h;
}

void LoraAdapter::forward(const Context& context, const Tensor& x, const Tensor& y, int64_t first,
                          int64_t count, const Pass& pass, const AdapterRows& rows) const {
  const ProfileLabel label(name_, "fprop");
  const Tensor h = compress(context, x.slice_rows(first, count), first, pass, rows);
  multiply(context, {.a = h,
                     .b = wide(),
                     .offsets = rows.offsets,
                     .out = y.slice_rows(first, count),
                     .trans_b = true,
                     .accumulate = true});
}

void LoraAdapter::dgrad(const Context& context, const Tensor& dy, const Tensor& dx, int64_t first,
                        int64_t count, const Pass& pass, const AdapterRows& rows) const {
  const ProfileLabel label(name_, "dgrad");
  const Tensor dh = dh_.slice_rows(first, count), to = dx.slice_rows(first, count);
  multiply(context, {.a = dy.slice_rows(first, count), .b = wide(), .offsets = rows.offsets, .out = dh});
  if (scale_ != 1.0f) kernels::scale(context, dh, scale_);
  kernels::GroupedGemm back{.a = dh, .b = a_->value, .offsets = rows.offsets, .out = to};
  if (dropout_ == 0.0f) {
    back.accumulate = true;
    return multiply(context, back);
  }
  back.out = dropped_.slice_rows(first, count);
  multiply(context, back);
  mask(context, back.out, back.out, first, pass, rows);
  kernels::add(context, to, back.out, to);
}

void LoraAdapter::wgrad(const Context& context, const Tensor& dy, const Tensor& x, const Pass& pass,
                        const AdapterRows& rows) const {
  const ProfileLabel label(name_, "wgrad");
  const Tensor h = compress(context, x, 0, pass, rows);
  const Tensor dh = dh_.slice_rows(0, x.rows());
  const auto grad = [&](const Tensor& left, const Tensor& right, const Tensor& out, bool accumulate) {
    contract(context, {.a = left,
                       .b = right,
                       .offsets = rows.offsets,
                       .alignment = kExpertAlignment,
                       .out = out,
                       .accumulate = accumulate});
  };
  grad(dh, dropout_ == 0.0f ? x : dropped_.slice_rows(0, x.rows()), a_->grad, true);
  if (!block_diagonal()) return grad(dy, h, b_->grad, true);
  const Tensor wide_grad{wide_grad_.data, b_->grad.dtype, wide_grad_.shape};
  const Tensor target_grad{target_grad_.data, b_->grad.dtype, target_grad_.shape};
  grad(dy, h, wide_grad, false);
  copy_blocks(context, wide_grad, target_grad, false);
  kernels::add(context, b_->grad, target_grad, b_->grad);
}

}  // namespace te::model
