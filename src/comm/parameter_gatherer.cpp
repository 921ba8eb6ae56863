#include "comm/parameter_gatherer.h"

#include <algorithm>

namespace te::comm {

using parameters::Bucket;

ParameterGatherer::ParameterGatherer(const parameters::ParameterStore& parameters,
                                     const parallel::Groups& groups)
    : parameters_(parameters), groups_(groups) {}

void ParameterGatherer::gather(const Context& context, size_t bucket) {
  const Bucket& full = parameters_.buckets()[bucket];
  const parameters::Segment& own = parameters_.segments()[bucket];
  if (parameters_.gathers_bytes(full))
    all_gather(context, full.group, parameters_.bytes_of(own), parameters_.bytes_of(full));
  else
    all_gather(context, full.group, parameters_.value_of(own), parameters_.values_of(full));
}

void ParameterGatherer::all_gather(const Context& context, GradientGroup group, const Tensor& own,
                                   const Tensor& full) const {
  parallel::Communicator& ranks = groups_.gradient_ranks(group);
  if (ranks.size() > 1) ranks.all_gather(context, own, full);  // else the segment is the bucket
}

void ParameterGatherer::cast(const Context& context) const {
  if (cast_) return cast_(context);
  TE_CHECK(!parameters_.bytes, "quantized weights are gathered, but before_gather() was not called");
}

// The number of 16-bit values is even, so they can be summed as 32-bit integers.
void ParameterGatherer::gather_unquantized(const Context& context) const {
  for (const GradientGroup group : kGradientGroups) {
    const Tensor all = parameters_.unquantized_parameters(group);
    if (all.numel() == 0) continue;
    context.zero(all);
    for (const auto& [own, target] : parameters_.unquantized_parts(group)) context.copy(target, own);
    groups_.gradient_ranks(group).all_reduce(context, {all.data, DType::i32, {all.numel() / 2}},
                                             parallel::ReduceOp::sum);
  }
}

void ParameterGatherer::make_side(const Context& context) {
  if (side_) return;
  side_.emplace(context.side(true));
  started_.emplace(context);
  for (size_t bucket = 0; bucket < parameters_.buckets().size(); ++bucket) gathered_.emplace_back(context);
  pending_.assign(gathered_.size(), 0);
}

void ParameterGatherer::start(const Context& context) {
  if (!overlaps()) return gather_buckets(context, false);
  invalidate();
  make_side(context);
  cast(context);
  started_->record(context);
  started_->wait(*side_);
  gather_unquantized(*side_);
  const std::vector<Bucket>& buckets = parameters_.buckets();
  for (const size_t bucket : parameters_.pass_order()) {
    const bool sharded = parameters_.shards_values(buckets[bucket]);
    if (sharded && buckets[bucket].sharded >= parameters_.num_value_slots(buckets[bucket])) continue;
    if (!sharded && !buckets[bucket].trainable) continue;
    if (sharded) {
      fetch(context, bucket);
      continue;
    }
    gather(*side_, bucket);
    gathered_[bucket].record(*side_);
    pending_[bucket] = 1;
  }
}

/// Gathers a bucket into its slot if it is not there, after the work launched on the context so far, which may still
/// read the slot's previous bucket.
void ParameterGatherer::fetch(const Context& context, size_t number) {
  const Bucket& bucket = parameters_.buckets()[number];
  const Bucket*& held = held_[{bucket.region(), bucket.sharded % parameters_.num_value_slots(bucket)}];
  if (held == &bucket) return;
  held = &bucket;
  if (!overlaps()) return gather(context, number);
  make_side(context);
  started_->record(context);
  started_->wait(*side_);
  gather(*side_, number);
  gathered_[number].record(*side_);
  pending_[number] = 1;
}

void ParameterGatherer::wait(const Context& context, int64_t begin, int64_t end, int direction) {
  if (!divided()) return;
  const std::vector<Bucket>& buckets = parameters_.buckets();
  const auto sharded = [&](size_t i) { return parameters_.shards_values(buckets[i]); };
  size_t first = buckets.size(), last = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].end <= begin || end <= buckets[i].begin) continue;
    first = std::min(first, i), last = i;
    if (sharded(i)) fetch(context, i);
    if (pending_.empty() || pending_[i] == 0) continue;
    gathered_[i].wait(context);
    pending_[i] = 0;
  }
  if (!overlaps() || direction == 0 || first == buckets.size()) return;
  const size_t from = direction > 0 ? last : first,
               next = direction > 0 ? from + 1 : from - 1;  // 0 - 1 wraps around: no bucket
  if (next < buckets.size() && sharded(next) && buckets[next].chunk == buckets[from].chunk &&
      buckets[next].region() == buckets[from].region())
    fetch(context, next);
}

void ParameterGatherer::wait_all(const Context& context) {
  for (size_t bucket = 0; bucket < pending_.size(); ++bucket) {
    if (pending_[bucket] != 0) gathered_[bucket].wait(context);
    pending_[bucket] = 0;
  }
}

void ParameterGatherer::gather_all(const Context& context) {
  gather_buckets(context, true);
}

void ParameterGatherer::gather_buckets(const Context& context, bool also_untrained) {
  if (!divided()) return;
  wait_all(context);
  invalidate();
  cast(context);
  gather_unquantized(context);
  for (const size_t number : parameters_.pass_order()) {
    const Bucket& bucket = parameters_.buckets()[number];
    if (parameters_.shards_values(bucket) || bucket.dropped) continue;
    if (bucket.trainable || also_untrained) gather(context, number);
  }
}

}  // namespace te::comm
