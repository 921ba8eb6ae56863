// Sums gradients over the ranks. After finish(), this rank's segment of every bucket of main gradients has the sum over
// all ranks that contribute to it; the rest of the buckets is undefined.
//
//   1. gradient group          reduce-scatter per bucket, in place, launched while the backward pass runs, over
//                              the ranks of the bucket's group (parallel::Groups::gradient_ranks)
//   2. two pipeline stages     all-reduce of a tied parameter that both have, on the segments
//   3. tensor group            all-reduce of parameters whose gradient each rank has only for its own tokens
//                              (Sharing::partial)
//
// The ranks of a group must issue the same collectives in the same order. Therefore buckets are reduced in a fixed
// order, that of the forward pass reversed (ParameterStore::pass_order), as the backward pass completes them. A bucket
// that is ready early waits for those before it in this order.
//
// Buckets with sharded gradients (ParameterStore::shards_grads) are reduced after every microbatch, when its backward
// pass completes them, and added to the segment. All data-parallel ranks run the same passes, so the order is the same
// on all of them. An element of such a bucket is summed over the data-parallel ranks first and over the microbatches
// second, each in order. Elements of other buckets, and of vectors, are summed over the microbatches first.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::comm {

class GradientReducer {
 public:
  /// tied_embeddings: model.tie_word_embeddings.
  GradientReducer(bool tied_embeddings, parameters::ParameterStore& parameters,
                  const parallel::Groups& groups);
  /// Call it after the store's plan(). InternalError if the config ties parameters of two stages but none is marked as
  /// tied.
  void plan(MemoryPlan& plan);

  /// Call it before the backward pass of the last microbatch, with sharded buckets before that of the first one.
  /// Optional without sharded buckets: finish() then reduces everything.
  void begin(const Context& context);
  /// Call it before each backward pass of a layer, before GEMMs write this microbatch's gradients of elements
  /// [begin, end): for sharded gradients the context waits until the slot's earlier reduction is complete. Also needed
  /// outside of begin() and finish(), where the gradients are discarded.
  void open(const Context& context, int64_t begin, int64_t end);
  /// Marks elements [begin, end) of the flat buffers as final on this rank, by work launched on the context so far: for
  /// the step if this is its last microbatch, else for the microbatch (only sharded buckets use that). Ranges may come
  /// in any order, must not overlap within a microbatch, and may omit alignment gaps. InternalError outside of begin()
  /// and finish(), or if a gradient is stale.
  void ready(const Context& context, int64_t begin, int64_t end, bool last = true);
  /// Reduces all remaining gradients, which must be final. Later work on the context sees the sums. InternalError if a
  /// gradient is stale.
  void finish(const Context& context);
  bool in_flight() const { return in_flight_; }  ///< between begin() and finish()

 private:
  bool divided() const { return parameters_.layout().divides(); }
  bool overlaps() const { return divided() && parameters_.layout().data_parallel.overlap_grad_reduce; }
  struct FlatRange {
    int64_t begin = 0, end = 0;  ///< in the flat buffers, within one segment
  };
  std::vector<FlatRange> ranges_of(const parameters::Parameter& parameter) const;
  Tensor grads_of(const FlatRange& range) const;
  void count_down(const parameters::Parameter& parameter, int64_t begin, int64_t end);
  void fence(const Context& context);
  bool has_unsharded_left();
  void reduce_next(const Context& context);
  void plan_sharded();
  /// Recorded after the last reduction of a sharded bucket's slot.
  Event& slot_is_free(const Context& context, const parameters::Bucket& bucket);
  void reduce_scatter(const Context& context, size_t number, bool adds) const;
  void reduce_sharded(const Context& context, size_t number, bool last);
  void sum_partial(const Context& context) const;

  /// A sharded bucket's state, and its contents other than gradients of linear layers.
  struct Sharded {
    std::vector<parameters::Bucket> gaps;               ///< ranges of its slot without linear layers
    std::vector<const parameters::Parameter*> vectors;  ///< parameters in the gaps
    int64_t linears = 0;                                ///< number of elements of linear layers
    bool started = false;                               ///< the segment has a sum of this step
    bool finished = false;                              ///< the sum includes the last microbatch
  };

  parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  bool has_tied_parameter_;  ///< this stage shares a parameter with another stage
  std::vector<FlatRange> tied_, partial_;
  PlannedTensor packed_;  ///< the ranges of partial_, concatenated; dtype of the main gradients

  std::optional<Context> side_;  // CUDA stream of the collectives, with overlap
  std::optional<Event> event_;
  bool in_flight_ = false;
  std::vector<int64_t>
      missing_;      // per bucket: elements that are not ready; in sharded buckets only linear layers'
  size_t left_ = 0;  // the first left_ buckets of the pass order, if not sharded, have not been reduced
  std::map<size_t, Sharded> sharded_;                            // by bucket
  std::map<std::pair<GradientGroup, int>, Event> slot_is_free_;  // per slot
};

}  // namespace te::comm
