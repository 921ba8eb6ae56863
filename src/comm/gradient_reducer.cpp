#include "comm/gradient_reducer.h"

#include <algorithm>

namespace te::comm {

using parallel::ReduceOp;
using parameters::Parameter;
using parameters::ParameterStore;

GradientReducer::GradientReducer(const config::ParallelConfig& config, bool tied_embeddings,
                                 const ParameterStore& parameters, const parallel::Groups& groups)
    : parameters_(parameters),
      groups_(groups),
      ties_(groups.embedding().size() > 1 && tied_embeddings),
      data_parallel_(groups.data().size() > 1),
      overlap_(data_parallel_ && config.overlap_grad_reduce) {}

// --- runs --------------------------------------------------------------------------------------------------

/// This rank's segments' parts of the parameter.
std::vector<GradientReducer::Run> GradientReducer::runs_of(const Parameter& parameter) const {
  std::vector<Run> runs;
  for (const ParameterStore::Piece& piece : parameters_.pieces(parameter)) {
    const int64_t begin = parameter.offset + piece.local;
    runs.push_back({begin, begin + piece.count});
  }
  return runs;
}

void GradientReducer::plan(MemoryPlan& plan) {
  bool marked = false;
  int64_t count = 0;
  for (const Parameter& parameter : parameters_.parameters()) {
    const std::vector<Run> runs = runs_of(parameter);
    if (ties_ && parameter.tied()) {
      marked = true;
      tied_.insert(tied_.end(), runs.begin(), runs.end());
    }
    if (groups_.tensor().size() == 1 || parameter.sharing != parameters::Sharing::partial) continue;
    partial_.insert(partial_.end(), runs.begin(), runs.end());
    for (const Run& run : runs) count += run.end - run.begin;
  }
  TE_CHECK(marked || !ties_, "gradients: no parameter of stage {} is marked as tied", groups_.at().pipeline);
  if (count > 0) {
    plan.add(packed_, "partial_grads", MemoryKind::scratch, parameters_.grads.dtype, {count});
  }
}

Tensor GradientReducer::grads_of(const Run& run) const {
  return ParameterStore::part(parameters_.grads, run.begin, run.end - run.begin);
}

// --- over the data group -----------------------------------------------------------------------------------

void GradientReducer::begin(const Context& context) {
  TE_CHECK(!in_flight_, "gradients: a reduction begins before the last one was finished");
  in_flight_ = true;
  if (!data_parallel_) return;
  if (overlap_ && !side_) {
    side_.emplace(context.side(true));
    event_.emplace(context);
  }
  const std::vector<parameters::Bucket>& buckets = parameters_.buckets();
  left_ = buckets.size();
  missing_.assign(left_, 0);
  size_t bucket = 0;
  for (const Parameter& parameter : parameters_.parameters()) {
    while (parameter.offset >= buckets[bucket].end) ++bucket;
    missing_[bucket] += parameter.shape.numel();
  }
}

/// Takes the part of [begin, end) that is the parameter's from what its bucket misses.
void GradientReducer::count_down(const Parameter& parameter, int64_t begin, int64_t end) {
  const int64_t count = std::min(end, parameter.end()) - std::max(begin, parameter.offset);
  if (count <= 0) return;
  const std::vector<parameters::Bucket>& buckets = parameters_.buckets();
  const auto found =
      std::upper_bound(buckets.begin(), buckets.end(), parameter.offset,
                       [](int64_t at, const parameters::Bucket& bucket) { return at < bucket.end; });
  int64_t& missing = missing_[static_cast<size_t>(found - buckets.begin())];
  missing -= count;
  TE_CHECK(missing >= 0, "gradients: elements {}..{} of {} are ready twice in a step", begin, end,
           parameter.name);
}

void GradientReducer::ready(const Context& context, int64_t begin, int64_t end) {
  TE_CHECK(in_flight_, "gradients: elements {}..{} are ready outside of a reduction", begin, end);
  parameters_.check_gradients(begin, end);
  if (!data_parallel_) return;
  for (const Parameter& parameter : parameters_.parameters()) count_down(parameter, begin, end);
  if (!overlap_) return;
  fence(context);
  while (left_ > 0 && missing_[left_ - 1] == 0) reduce_next(*side_);
}

/// What the side context does next starts after the work launched on the context so far. Every ready() does
/// it, not only the one that completes a bucket: the parts of a bucket may come from several streams.
void GradientReducer::fence(const Context& context) {
  event_->record(context);
  event_->wait(*side_);
}

void GradientReducer::reduce_next(const Context& context) {
  --left_;
  groups_.data().reduce_scatter(context, parameters_.grads_of(parameters_.buckets()[left_]),
                                parameters_.grad_of(parameters_.segments()[left_]));
}

void GradientReducer::finish(const Context& context) {
  if (!in_flight_) begin(context);
  parameters_.check_gradients(0, parameters_.flat_size());
  if (overlap_ && left_ > 0) fence(context);
  while (left_ > 0) reduce_next(overlap_ ? *side_ : context);
  if (overlap_) {
    event_->record(*side_);
    event_->wait(context);
  }
  for (const Run& run : tied_) groups_.embedding().all_reduce(context, grads_of(run), ReduceOp::sum);
  sum_partial(context);
  in_flight_ = false;
}

// --- over the tensor group ---------------------------------------------------------------------------------

/// Gains and biases: many and small, so they travel together.
void GradientReducer::sum_partial(const Context& context) const {
  if (partial_.empty()) return;
  const auto for_each_run = [&](auto&& copy) {
    int64_t at = 0;
    for (const Run& run : partial_) {
      const Tensor grads = grads_of(run);
      copy(grads, ParameterStore::part(packed_, at, grads.numel()));
      at += grads.numel();
    }
  };
  for_each_run([&](const Tensor& grads, const Tensor& packed) { context.copy(packed, grads); });
  groups_.tensor().all_reduce(context, packed_, ReduceOp::sum);
  for_each_run([&](const Tensor& grads, const Tensor& packed) { context.copy(grads, packed); });
}

}  // namespace te::comm
