#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/profile.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/muon/muon.h"
#include "kernels/muon/newton_schulz.h"

namespace te::optim {

using parameters::Bucket;
using parameters::Parameter;
using parameters::ParameterStore;
using parameters::Segment;

bool has_one_moment(config::OptimizerName optimizer, const Parameter& parameter) {
  return optimizer == config::OptimizerName::muon && parameter.trainable && !parameter.matrices.empty();
}

bool Muon::is_full(const Parameter& parameter) const {
  const int64_t rows = std::accumulate(parameter.matrices.begin(), parameter.matrices.end(), int64_t{0});
  return rows == parameter.shape[0] && parameter.shard.cols == parameter.shard.global_cols();
}

std::vector<Muon::Matrix> Muon::matrices_of(const Parameter& parameter) const {
  const int64_t cols = parameter.shard.global_cols();
  const int64_t partitions = is_full(parameter) || parameter.shard.cols < cols ? 1 : groups_.tensor().size();
  std::vector<Matrix> matrices;
  int64_t row = 0;
  for (const int64_t rows : parameter.matrices) {
    matrices.push_back({rows, cols, row, rows / partitions});
    row += rows / partitions;
  }
  TE_CHECK(row == parameter.shape[0], "{}: matrices of {} rows in {}", parameter.name, row,
           parameter.shape.str());
  return matrices;
}

// --- memory ------------------------------------------------------------------------------------------------

void Muon::plan(MemoryPlan& plan, Lifetime update) {
  buckets_.resize(parameters_.buckets().size());
  int64_t window = 0, shared = 0, elements = 0, side = 0;
  for (const Parameter& parameter : parameters_.parameters()) {
    if (parameter.matrices.empty() || !parameter.trainable) continue;
    const size_t number = parameters_.bucket_at(parameter.offset);
    buckets_[number].push_back(&parameter);
    const bool divided = groups_.gradient_ranks(parameter.group).size() > 1;
    window = std::max(window, divided ? parameters_.buckets()[number].size() : parameter.shape.numel());
    if (!is_full(parameter)) shared = std::max(shared, parameter.shape.numel());
    for (const Matrix& matrix : matrices_of(parameter)) {
      elements = std::max(elements, matrix.rows * matrix.cols);
      side = std::max(side, std::min(matrix.rows, matrix.cols));
    }
  }
  if (window > 0) plan_scratch(plan, update, window, shared, elements, side);
}

void Muon::plan_scratch(MemoryPlan& plan, Lifetime update, int64_t window, int64_t shared, int64_t elements,
                        int64_t side) {
  const auto add = [&](PlannedTensor& slot, const char* name, Buffer buffer, DType dtype, Shape shape) {
    plan.add(slot, name, MemoryKind::scratch, dtype, shape, {buffer, update});
  };
  // U is not multiplied by the loss scale, so FP16 would underflow.
  const DType values = parameters_.layout().dtype, dtype = values == DType::f16 ? DType::bf16 : values;
  add(update_, "muon.update", Buffer::update, dtype, {window});
  if (shared > 0) add(parts_, "muon.parts", Buffer::parts, dtype, {groups_.tensor().size(), shared});
  add(x_, "muon.x", Buffer::x, dtype, {elements});
  add(product_, "muon.product", Buffer::product, dtype, {elements});
  add(gram_, "muon.gram", Buffer::gram, dtype, {side * side});
  add(gram_squared_, "muon.gram_squared", Buffer::gram_squared, dtype, {side * side});
  add(sum_, "muon.sum", Buffer::sum, DType::f32, {1});
  add(sum_scratch_, "muon.sum_scratch", Buffer::sum_scratch, DType::f32,
      {kernels::sum_of_squares_scratch_elements()});
}

// --- a step ------------------------------------------------------------------------------------------------

void Muon::update(const Context& context, const MuonStep& step) const {
  const ProfileLabel label("muon");
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (buckets_[number].empty()) continue;
    const Bucket& bucket = parameters_.buckets()[number];
    parallel::Communicator& ranks = groups_.gradient_ranks(bucket.group);
    const bool shared = ranks.size() > 1;
    if (shared) {
      const Segment& segment = parameters_.segments()[number];
      const Tensor own = ParameterStore::part(update_, segment.begin - bucket.begin, segment.count);
      context.zero(own);  // gaps and other parameters are gathered as zeros
      for (const Parameter* parameter : buckets_[number])
        make_update(context, step, number, bucket.begin, parameter->offset, parameter->end());
      ranks.all_gather(context, own, ParameterStore::part(update_, 0, bucket.size()));
    }
    for (const Parameter* parameter : buckets_[number]) {
      const int64_t origin = shared ? bucket.begin : parameter->offset;
      if (!shared) make_update(context, step, number, origin, parameter->offset, parameter->end());
      update_parameter(context, step, *parameter,
                       ParameterStore::part(update_, parameter->offset - origin, parameter->shape.numel()));
    }
  }
}

void Muon::make_update(const Context& context, const MuonStep& step, size_t bucket, int64_t origin,
                       int64_t begin, int64_t end) const {
  const Segment& segment = parameters_.segments()[bucket];
  begin = std::max(begin, segment.begin), end = std::min(end, segment.begin + segment.count);
  if (begin >= end) return;
  kernels::muon_momentum(context, {.main_grad = parameters_.grad_of(begin, end),
                                   .momentum = ParameterStore::part(
                                       step.momentum, segment.shard + begin - segment.begin, end - begin),
                                   .update = ParameterStore::part(update_, begin - origin, end - begin),
                                   .decay = static_cast<float>(config_.muon_momentum),
                                   .nesterov = true,
                                   .grad_multiplier = step.grad_multiplier,
                                   .skip = step.skip});
}

void Muon::update_parameter(const Context& context, const MuonStep& step, const Parameter& parameter,
                            const Tensor& mine) const {
  // At most one range, as this rank has one segment per bucket.
  const std::vector<ParameterStore::ShardRange> ranges = parameters_.shard_ranges(parameter);
  if (ranges.empty()) return;
  const int64_t begin = ranges[0].local, end = begin + ranges[0].count;
  Tensor parts = mine;
  if (!is_full(parameter)) {
    parts = ParameterStore::part(parts_.view({parts_.numel()}), 0, mine.numel() * groups_.tensor().size());
    groups_.tensor().all_gather(context, mine, parts);
  }
  for (const Matrix& matrix : matrices_of(parameter)) {
    const int64_t first = matrix.first_row * parameter.shard.cols;
    const int64_t last = first + matrix.local_rows * parameter.shard.cols;
    if (end <= first || last <= begin) continue;
    const Tensor orthogonal = orthogonalized(context, parameter, matrix, parts);
    apply(context, step, parameter, matrix, orthogonal, std::max(begin, first), std::min(end, last));
  }
}

namespace {

/// The region of a matrix that tensor-parallel rank `rank` holds.
kernels::ParameterRegion region_of(const Parameter& parameter, int64_t local_rows, int rank) {
  const bool columns = parameter.shard.cols < parameter.shard.global_cols();
  return {.local_cols = parameter.shard.cols,
          .first_local = 0,
          .global_row = columns ? 0 : local_rows * rank,
          .global_col = columns ? parameter.shard.cols * rank : 0,
          .global_cols = parameter.shard.global_cols()};
}

}  // namespace

Tensor Muon::orthogonalized(const Context& context, const Parameter& parameter, const Matrix& matrix,
                            const Tensor& parts) const {
  const Tensor x = ParameterStore::part(x_, 0, matrix.rows * matrix.cols).view({matrix.rows, matrix.cols});
  const int64_t part_size = parameter.shape.numel(), cols = parameter.shard.cols;
  for (int rank = 0; rank * part_size < parts.numel(); ++rank) {
    kernels::muon_place(context,
                        {.part = ParameterStore::part(parts, rank * part_size + matrix.first_row * cols,
                                                      matrix.local_rows * cols),
                         .full = x,
                         .region = region_of(parameter, matrix.local_rows, rank)});
  }
  const int64_t n = std::min(matrix.rows, matrix.cols);
  kernels::newton_schulz(context, {.x = x,
                                   .product = ParameterStore::part(product_, 0, x.numel()).view(x.shape),
                                   .gram = ParameterStore::part(gram_, 0, n * n).view({n, n}),
                                   .gram_squared = ParameterStore::part(gram_squared_, 0, n * n).view({n, n}),
                                   .sum = sum_,
                                   .scratch = sum_scratch_,
                                   .iterations = kNewtonSchulzSteps});
  return x;
}

/// Applies the update to elements [begin, end) of this rank's part of the parameter, all within the matrix and the
/// segment.
void Muon::apply(const Context& context, const MuonStep& step, const Parameter& parameter,
                 const Matrix& matrix, const Tensor& orthogonal, int64_t begin, int64_t end) const {
  const size_t number = parameters_.bucket_at(parameter.offset);
  const Segment& segment = parameters_.segments()[number];
  const int64_t within = parameter.offset + begin - segment.begin;
  const parameters::MainParams main = parameters_.main_of(segment).part(within, end - begin);
  const bool writes_values = !parameters_.fp32() && parameters_.flat_values();
  kernels::ParameterRegion region =
      region_of(parameter, matrix.local_rows, is_full(parameter) ? 0 : groups_.tensor().rank());
  region.first_local = begin - matrix.first_row * parameter.shard.cols;
  const kernels::AdamWGroup own = update_groups_.of(parameter);
  kernels::muon_update(
      context,
      {.main_param = main.fp32,
       .param = writes_values ? ParameterStore::part(parameters_.value_of(segment), within, end - begin)
                              : Tensor{},
       .remainder = main.remainder,
       .orthogonal = orthogonal,
       .region = region,
       .lr = step.lr * own.lr_factor,
       .weight_decay = own.weight_decay,
       .scale = kMuonScale * std::sqrt(static_cast<double>(std::max(matrix.rows, matrix.cols))),
       .skip = step.skip});
}

}  // namespace te::optim
