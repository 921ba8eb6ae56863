#include "comm/gradient_reducer.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"

namespace te::comm {

using parallel::ReduceOp;
using parameters::Bucket;
using parameters::Parameter;
using parameters::ParameterStore;

GradientReducer::GradientReducer(bool tied_embeddings, ParameterStore& parameters,
                                 const parallel::Groups& groups)
    : parameters_(parameters),
      groups_(groups),
      has_tied_parameter_(groups.embedding().size() > 1 && tied_embeddings) {}

// --- ranges ------------------------------------------------------------------------------------------------

/// The parts of the parameter in this rank's segments.
std::vector<GradientReducer::FlatRange> GradientReducer::ranges_of(const Parameter& parameter) const {
  std::vector<FlatRange> ranges;
  for (const ParameterStore::ShardRange& range : parameters_.shard_ranges(parameter)) {
    const int64_t begin = parameter.offset + range.local;
    ranges.push_back({begin, begin + range.count});
  }
  return ranges;
}

void GradientReducer::plan(MemoryPlan& plan) {
  bool marked = false;
  int64_t count = 0;
  for (const Parameter& parameter : parameters_.parameters()) {
    const std::vector<FlatRange> ranges = ranges_of(parameter);
    if (has_tied_parameter_ && parameter.tied()) {
      marked = true;
      if (parameter.trainable) tied_.insert(tied_.end(), ranges.begin(), ranges.end());
    }
    if (groups_.tensor().size() == 1 || !parameter.trainable ||
        parameter.sharing != parameters::Sharing::partial)
      continue;
    partial_.insert(partial_.end(), ranges.begin(), ranges.end());
    for (const FlatRange& range : ranges) count += range.end - range.begin;
  }
  plan_sharded();
  TE_CHECK(marked || !has_tied_parameter_, "gradients: no parameter of stage {} is marked as tied",
           groups_.at()[parallel::Axis::pipeline]);
  if (count > 0) {
    plan.add(packed_, "partial_grads", MemoryKind::scratch, parameters_.grads.dtype, {count});
  }
}

Tensor GradientReducer::grads_of(const FlatRange& range) const {
  return parameters_.grad_of(range.begin, range.end);
}

// --- over the data group -----------------------------------------------------------------------------------

void GradientReducer::begin(const Context& context) {
  TE_CHECK(!in_flight_, "gradients: a reduction begins before the previous one is finished");
  in_flight_ = true;
  if (!divided()) return;
  if (overlaps() && !side_) {
    side_.emplace(context.side(true));
    event_.emplace(context);
  }
  const std::vector<Bucket>& buckets = parameters_.buckets();
  left_ = buckets.size();
  missing_.assign(left_, 0);
  for (const Parameter& parameter : parameters_.parameters()) {
    if (!parameter.trainable) continue;
    const size_t bucket = parameters_.bucket_at(parameter.offset);
    if (parameter.linear || !parameters_.shards_grads(buckets[bucket]))
      missing_[bucket] += parameter.shape.numel();
  }
  for (auto& [bucket, sharded] : sharded_) sharded.started = sharded.finished = false;
}

/// Subtracts the parameter's elements in [begin, end) from its bucket's missing elements.
void GradientReducer::count_down(const Parameter& parameter, int64_t begin, int64_t end) {
  int64_t& missing = missing_[parameters_.bucket_at(parameter.offset)];
  missing -= std::min(end, parameter.end()) - std::max(begin, parameter.offset);
  TE_CHECK(missing >= 0, "gradients: elements {}..{} of {} are ready twice in a {}", begin, end,
           parameter.name, sharded_.empty() ? "step" : "microbatch");
}

void GradientReducer::ready(const Context& context, int64_t begin, int64_t end, bool last) {
  TE_CHECK(in_flight_, "gradients: elements {}..{} are ready outside of a reduction", begin, end);
  if (!last && sharded_.empty()) return;
  parameters_.check_gradients(begin, end);
  if (!divided()) return;
  std::vector<size_t> complete;  // sharded buckets
  for (const Parameter& parameter : parameters_.parameters()) {
    if (parameter.offset >= end || parameter.end() <= begin || !parameter.trainable) continue;
    const size_t bucket = parameters_.bucket_at(parameter.offset);
    const bool sharded = parameters_.shards_grads(parameters_.buckets()[bucket]);
    if (sharded ? !parameter.linear : !last) continue;
    count_down(parameter, begin, end);
    if (sharded && missing_[bucket] == 0) complete.push_back(bucket);
  }
  if (overlaps()) fence(context);
  for (const size_t bucket : complete) reduce_sharded(overlaps() ? *side_ : context, bucket, last);
  while (overlaps() && has_unsharded_left() && missing_[parameters_.pass_order()[left_ - 1]] == 0)
    reduce_next(*side_);
}

/// Makes the side context wait for the work launched on the context so far. Every ready() calls it, not only the one
/// that completes a bucket, because the parts of a bucket may come from several CUDA streams.
void GradientReducer::fence(const Context& context) {
  event_->record(context);
  event_->wait(*side_);
}

/// Decreases left_ until the last bucket left has gradients that are not sharded; false if there is none.
bool GradientReducer::has_unsharded_left() {
  const auto is_passed = [&](const Bucket& bucket) {
    return !bucket.trainable || parameters_.shards_grads(bucket);
  };
  while (left_ > 0 && is_passed(parameters_.buckets()[parameters_.pass_order()[left_ - 1]])) --left_;
  return left_ > 0;
}

void GradientReducer::reduce_next(const Context& context) {
  reduce_scatter(context, parameters_.pass_order()[--left_], false);
}

/// The bucket's segment = the sum over the ranks of its group; with `adds`, the segment += this sum.
void GradientReducer::reduce_scatter(const Context& context, size_t number, bool adds) const {
  const Bucket& bucket = parameters_.buckets()[number];
  const Tensor full = parameters_.grads_of(bucket),
               shard = parameters_.grad_of(parameters_.segments()[number]);
  parallel::Communicator& ranks = groups_.gradient_ranks(bucket.group);
  if (ranks.size() == 1) return;  // the segment is the bucket
  const int64_t count = shard.numel();
  const Tensor target = adds ? ParameterStore::part(full, ranks.rank() * count, count) : shard;
  ranks.reduce_scatter(context, full, target);
  if (adds) kernels::add(context, shard, target, shard);
}

void GradientReducer::finish(const Context& context) {
  if (!in_flight_) begin(context);
  parameters_.check_gradients(0, parameters_.flat_size());
  for (const auto& [bucket, sharded] : sharded_)
    TE_CHECK(sharded.finished, "gradients: a sharded bucket was not reduced after the last microbatch");
  if (overlaps() && has_unsharded_left()) fence(context);
  while (has_unsharded_left()) reduce_next(overlaps() ? *side_ : context);
  if (overlaps()) {
    event_->record(*side_);
    event_->wait(context);
  }
  for (const FlatRange& range : tied_)
    groups_.embedding().all_reduce(context, grads_of(range), ReduceOp::sum);
  sum_partial(context);
  in_flight_ = false;
}

// --- sharded buckets ---------------------------------------------------------------------------------------

void GradientReducer::plan_sharded() {
  for (size_t number = 0; number < parameters_.buckets().size(); ++number) {
    const Bucket& bucket = parameters_.buckets()[number];
    if (!parameters_.shards_grads(bucket)) continue;
    Sharded& sharded = sharded_[number];
    int64_t end = 0;  // end of the last linear layer in the bucket
    const auto add_gap = [&](int64_t to) {
      if (to > end) sharded.gaps.push_back({.begin = end, .end = to});
    };
    for (const Parameter& parameter : parameters_.parameters()) {
      if (parameter.offset < bucket.begin || parameter.offset >= bucket.end) continue;
      if (!parameter.linear) {
        sharded.vectors.push_back(&parameter);
        continue;
      }
      add_gap(parameter.offset - bucket.begin);
      end = parameter.end() - bucket.begin;
      sharded.linears += parameter.shape.numel();
    }
    add_gap(bucket.size());
  }
}

Event& GradientReducer::slot_is_free(const Context& context, const Bucket& bucket) {
  const std::pair slot{bucket.group, bucket.sharded % parameters_.num_grad_slots(bucket)};
  return slot_is_free_.try_emplace(slot, context).first->second;
}

void GradientReducer::open(const Context& context, int64_t begin, int64_t end) {
  if (sharded_.empty()) return;
  parameters_.mark_linear_grads_stale(begin, end);
  if (!overlaps()) return;
  for (const Bucket& bucket : parameters_.buckets()) {
    if (bucket.end <= begin || end <= bucket.begin || !parameters_.shards_grads(bucket)) continue;
    slot_is_free(context, bucket).wait(context);
  }
}

/// The gradients of vectors, which accumulate over the microbatches, are reduced together with the linear layers of the
/// last microbatch.
void GradientReducer::reduce_sharded(const Context& context, size_t number, bool last) {
  const Bucket& bucket = parameters_.buckets()[number];
  Sharded& sharded = sharded_.at(number);
  const Tensor slot = parameters_.grads_of(bucket);
  for (const Bucket& gap : sharded.gaps) context.zero(ParameterStore::part(slot, gap.begin, gap.size()));
  for (const Parameter* vector : sharded.vectors) {
    if (!last) break;
    const int64_t count = vector->shape.numel();
    context.copy(ParameterStore::part(slot, vector->offset - bucket.begin, count),
                 vector->grad.view({count}));
  }
  reduce_scatter(context, number, sharded.started);
  sharded.started = true;
  sharded.finished = last;
  missing_[number] = sharded.linears;
  if (overlaps()) slot_is_free(context, bucket).record(context);
}

// --- over the tensor group ---------------------------------------------------------------------------------

/// Norm weights and biases are many and small, so they are reduced in one collective.
void GradientReducer::sum_partial(const Context& context) const {
  if (partial_.empty()) return;
  const auto for_each_run = [&](auto&& copy) {
    int64_t at = 0;
    for (const FlatRange& range : partial_) {
      const Tensor grads = grads_of(range);
      copy(grads, ParameterStore::part(packed_, at, grads.numel()));
      at += grads.numel();
    }
  };
  for_each_run([&](const Tensor& grads, const Tensor& packed) { context.copy(packed, grads); });
  groups_.tensor().all_reduce(context, packed_, ReduceOp::sum);
  for_each_run([&](const Tensor& grads, const Tensor& packed) { context.copy(grads, packed); });
}

}  // namespace te::comm
