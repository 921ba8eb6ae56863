#include "comm/parameter_gatherer.h"

namespace te::comm {

ParameterGatherer::ParameterGatherer(const config::ParallelConfig& config,
                                     const parameters::ParameterStore& parameters,
                                     const parallel::Groups& groups)
    : parameters_(parameters),
      groups_(groups),
      data_parallel_(groups.data().size() > 1),
      overlap_(data_parallel_ && config.overlap_param_gather) {}

void ParameterGatherer::gather(const Context& context, size_t bucket) {
  groups_.data().all_gather(context, parameters_.value_of(parameters_.segments()[bucket]),
                            parameters_.values_of(parameters_.buckets()[bucket]));
}

void ParameterGatherer::start(const Context& context) {
  if (!overlap_) return gather_all(context);
  const size_t buckets = parameters_.buckets().size();
  if (!side_) {
    side_.emplace(context.side(true));
    started_.emplace(context);
    for (size_t bucket = 0; bucket < buckets; ++bucket) gathered_.emplace_back(context);
    pending_.assign(buckets, 0);
  }
  started_->record(context);
  started_->wait(*side_);
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    gather(*side_, bucket);
    gathered_[bucket].record(*side_);
    pending_[bucket] = 1;
  }
}

void ParameterGatherer::wait(const Context& context, int64_t begin, int64_t end) {
  for (size_t bucket = 0; bucket < pending_.size(); ++bucket) {
    const parameters::Bucket& range = parameters_.buckets()[bucket];
    if (pending_[bucket] == 0 || range.end <= begin || end <= range.begin) continue;
    gathered_[bucket].wait(context);
    pending_[bucket] = 0;
  }
}

void ParameterGatherer::gather_all(const Context& context) {
  if (!data_parallel_) return;
  wait_all(context);
  for (size_t bucket = 0; bucket < parameters_.buckets().size(); ++bucket) gather(context, bucket);
}

}  // namespace te::comm
